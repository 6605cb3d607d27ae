"""Histograms and a daemon that is killed at any instruction: each counts each record exactly once.

The judge is that of test_journal.py: a child that takes in one machine instruction at a time, whose shared
memory is read after each. The final counts are compared with a Counter.
"""

from __future__ import annotations

import functools
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from tests.daemon.consumers.ftrace.histograms import NoVariables, defined
from tests.daemon.intake.dying import (
    Kept,
    Producer,
    open_buffers,
    open_ring,
    record,
    stepped_through,
)
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.hist._hist import Entries, Hist, HistTable, Link
from utracefsd.consumers.ftrace.hist.fields import Flag, HistField
from utracefsd.consumers.ftrace.hist.program import compile_definition
from utracefsd.consumers.ftrace.hist.variables import Context, Reference
from utracefsd.consumers.ftrace.trigger._triggers import HistSwitch, HistTrigger
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._intake import Intake

EVENT = parse(b"seen u64 n")
KEYS = 128
PAUSES, CONTINUES = 6, 9
"""Values of a record's n from which the second instance's histogram does not count, or counts again."""


class OneVariable(NoVariables):
    """`$x`, of any trigger."""

    def reference(self, context: Context, system: bytes, event: bytes, name: bytes) -> HistField:
        field = HistField(Flag.VAR_REF, type=b"u64", size=8, name=name, var_index=0)
        context.references.append(Reference(None, 0, field))
        return field


@functools.cache
def compiled(text: bytes) -> tuple[Any, tuple[int, int, int]]:
    """Its program, and the shape of its table; thousands of daemons have the same."""
    definition = defined(text, EVENT, OneVariable())
    program = compile_definition(definition)
    return program, (definition.parts.bits, definition.key_size, program.nr_words)


@functools.cache
def parsed(filter: bytes) -> Any:
    return parse_filter(filter, EVENT.fields)


class World:
    """An event in two instances. The first stores it and has two histograms, `all` and, with `n > 2`, `some`,
    which is too small for all keys. `reader` reads once what `setter` set for the record before, where that
    was not 5; `taker` swaps the first's buffer and its spare at each n that is larger than all before. The
    second has one, `other`, and triggers that pause and continue it."""

    def __init__(
        self,
        folder: Path,
        kept: Kept | None = None,
        ring: tuple[int, int] | None = None,
        fired: dict[Any, Any] | None = None,
    ) -> None:
        new = kept is None
        self.folder = folder
        self.kept: Kept = dict(kept or {})
        self.cells = Cells(folder / "cells")
        (self.buffer,), self.journal = open_buffers(folder, 1, self.cells, new, fired)
        if new:
            self.buffer.add_spare()
        self.tracepoint = Tracepoint(20, b"seen", EVENT.fields)
        self.tables: dict[str, HistTable] = {}
        probe = FtraceProbe(FtraceSink(self.buffer, 0, self.cells))
        self.tracepoint.attach(probe)
        # Small tables, since all of their memory is compared after each instruction.
        probe.triggers = (
            self._hist(probe.sink, "all", b"keys=n.log2:vals=n:size=128"),
            self._hist(probe.sink, "some", b"keys=n:vals=n,hitcount.percent:size=128", b"n > 2"),
            self._hist(probe.sink, "reader", b"keys=1:vals=n-$x:size=128"),
            self._hist(probe.sink, "setter", b"keys=1:x=n:size=128", b"n != 5"),
            self._hist(probe.sink, "taker", b"keys=n.log2:x=n:onmax($x).snapshot():size=128"),
        )
        reader, setter, taker = (trigger.hist for trigger in probe.triggers[2:])
        reader.link([Link(setter, 0, True)], ())
        taker.link((), [(1, True, 0, False, True, None)])
        for trigger in probe.triggers:
            trigger.finish()
        other = FtraceProbe(FtraceSink(RingBuffer(1, 8), 1, self.cells))
        other.soft_disabled = True
        self.tracepoint.attach(other)
        counts = self._hist(other.sink, "other", b"keys=1:size=128")
        other.triggers = (counts,)
        switches = []
        for name, on, n in (("off", False, PAUSES), ("on", True, CONTINUES)):
            filter = parsed(b"n == %d" % n)
            switches.append(HistSwitch(other, on, 1 << 40, filter=filter, kept=self.kept.get(name)))
            self.kept[name] = (switches[-1].cell, switches[-1].key)
        other.triggers = (*switches, counts)
        self.cells.drop_the_rest()
        self.intake = Intake(4)
        self.ring = open_ring((self.tracepoint,), self.journal, self.intake, new, ring)

    def _hist(self, sink: FtraceSink, name: str, text: bytes, filter: bytes | None = None) -> HistTrigger:
        program, shape = compiled(text)
        path = str(self.folder / name)
        table = HistTable.adopt(*shape, path) if name in self.kept else HistTable.create(*shape, path)
        self.tables[name] = table
        trigger = HistTrigger(
            sink,
            Hist(program, table),
            filter=None if filter is None else parsed(filter),
            kept=self.kept.get(name),
        )
        self.kept[name] = (trigger.cell, trigger.key)
        return trigger

    def result(self) -> dict[str, Any]:
        """All counts, and how many records the ring buffer took."""
        found: dict[str, Any] = {
            name: ({key: words[:2] for key, words in Entries(table).piece()}, table.hits, table.drops)
            for name, table in self.tables.items()
        }
        for name, spare in (("stored", False), ("snapshot", True)):
            cursor = self.buffer.cursor(snapshot=spare)
            found[name] = [struct.unpack_from("<Q", data, 8)[0] for _, _, data, _ in cursor]
        found["taken"] = self.tables["taker"].taken
        return found


def expected(numbers: list[int]) -> dict[str, Any]:
    """The same, in plain Python."""
    logs: Counter[int] = Counter()
    log_sums: Counter[int] = Counter()
    some: dict[int, int] = {}
    drops = others = 0
    active = True
    reads = read_sum = 0
    x: int | None = None
    stored: list[int] = []
    snapshot: list[int] = []
    largest = 0
    for n in numbers:
        stored.append(n)
        if n > largest:
            largest = n
            stored, snapshot = snapshot, stored
        if x is not None:
            reads += 1
            read_sum += n - x
            x = None
        if n != 5:
            x = n
        log = (n - 1).bit_length() if n > 1 else 0
        logs[log] += 1
        log_sums[log] += n
        if n > 2 and (n in some or len(some) < KEYS):
            some[n] = some.get(n, 0) + 1
        elif n > 2:
            drops += 1
        active = n != PAUSES and (active or n == CONTINUES)
        others += active

    def key(n: int) -> bytes:
        return struct.pack("<Q", n)

    return {
        "all": ({key(log): (count, log_sums[log]) for log, count in logs.items()}, len(numbers), 0),
        "some": ({key(n): (count, n * count) for n, count in some.items()}, sum(some.values()), drops),
        "reader": ({key(1): (reads, read_sum % (1 << 64))} if reads else {}, reads, 0),
        "setter": setter_counts(numbers),
        "other": ({key(1): (others,)} if others else {}, others, 0),
        "taker": ({key(log): (count, 3) for log, count in logs.items()}, len(numbers), 0),
        "stored": stored,
        "snapshot": snapshot,
        "taken": (key((largest - 1).bit_length()), largest) if largest else None,
    }


def setter_counts(numbers: list[int]) -> tuple[dict[bytes, tuple[int, ...]], int, int]:
    """How often, and nothing of whether it was read: the mask of what is set follows."""
    count = sum(n != 5 for n in numbers)
    is_set = int(bool(numbers) and numbers[-1] != 5)
    return ({struct.pack("<Q", 1): (count, is_set)} if count else {}), count, 0


SEQUENCE = [1, 5, 5, PAUSES, 2, 3000, CONTINUES, 5, 3001, 5]
FILES = ["0/cpu0", "0/cpu0.b", "0/spare", "journal", "cells"]
FILES += ["all", "some", "reader", "setter", "taker", "other"]


def emit(producer: Producer, numbers: list[int]) -> None:
    producer.emit(b"".join(record(n) for n in numbers))


def test_killed_at_any_instruction(folder: Path) -> None:
    before = folder / "before"
    before.mkdir()
    world = World(before)
    assert world.ring is not None
    producer = Producer(world.ring.fd)
    first = [1, *range(1000, 1000 + KEYS - 2)]  # room for one key more, and then none
    emit(producer, first)
    world.intake.take_in()
    emit(producer, SEQUENCE)
    want = expected([*first, *SEQUENCE])
    assert want["some"][2] > 0, "some have no room"
    judged = stepped_through(World, world, before, FILES, folder / "after", want)
    assert judged > 40 * len(SEQUENCE), "the states of the way were not seen"
