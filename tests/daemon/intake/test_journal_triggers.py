"""Triggers and a daemon that is killed at any instruction: each fires exactly once for each record.

The judge is that of test_journal.py: a child that takes in one machine instruction at a time, whose shared
memory is read after each. The final result is compared with a plain model of the triggers (`expected`).
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.intake.dying import (
    SLOT,
    Kept,
    Producer,
    open_buffers,
    open_ring,
    record,
    stepped_through,
)
from tests.daemon.record_path import write
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import Cells, Trigger
from utracefsd.consumers.ftrace.trigger._triggers import (
    EventSwitch,
    SnapshotTrigger,
    Stacktrace,
    TracingSwitch,
)
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._intake import Intake

COUNT = 1_000_000
EVENT = parse(b"seen u64 n")


@functools.cache
def every(rest: int) -> Any:
    """n % 8 == rest, as filters can express it; thousands of daemons have the same."""
    values = " || ".join(f"n == {n}" for n in range(rest, 64, 8))
    return parse_filter(values.encode(), EVENT.fields)


class World:
    """Two instances, two events, and these triggers:

    instance 0, event a:    traceoff if n % 8 == 5     enable_event:b if n % 8 == 1
                            snapshot if n % 8 == 3     stacktrace, which counts every record
    instance 0, event b:    traceon    disable_event:b     (neither waits for the record)
    instance 1, event a:    traceon if n % 8 == 4    traceoff on event b    stacktrace; a is enabled
    """

    def __init__(
        self,
        folder: Path,
        kept: Kept | None = None,
        ring: tuple[int, int] | None = None,
        fired: dict[Any, Any] | None = None,
    ) -> None:
        new = kept is None
        self.kept: Kept = dict(kept or {})
        self.cells = Cells(folder / "cells")
        self.buffers, self.journal = open_buffers(folder, 2, self.cells, new, fired)
        if new:
            self.buffers[0].add_spare()
        self.a = Tracepoint(20, b"a", EVENT.fields)
        self.b = Tracepoint(21, b"b", EVENT.fields)
        self.sinks = [FtraceSink(buffer, number, self.cells) for number, buffer in enumerate(self.buffers)]
        self.triggers: dict[str, Trigger] = {}
        for number, sink in enumerate(self.sinks):
            sink.tracing_cell = self._cell(f"tracing {number}", 1)
            sink.tracing_on = bool(self.cells.value(sink.tracing_cell))
        a0, b0 = self._probe(0, self.a, True), self._probe(0, self.b, False)
        a1, b1 = self._probe(1, self.a, True), self._probe(1, self.b, False)
        self.b0 = b0
        b0.soft_cell = self._cell("soft", 0)
        b0.soft_disabled = not self.cells.value(b0.soft_cell)
        zero, other = self.sinks
        self._set(
            a0,
            off=lambda **how: TracingSwitch(zero, False, COUNT, filter=every(5), **how),
            enable=lambda **how: EventSwitch(b0, True, COUNT, filter=every(1), **how),
            snapshot=lambda **how: SnapshotTrigger(zero, COUNT, filter=every(3), **how),
            count=lambda **how: Stacktrace(self.cells, COUNT, **how),
        )
        self._set(
            b0,
            turn_on=lambda **how: TracingSwitch(zero, True, COUNT, **how),
            disable=lambda **how: EventSwitch(b0, False, COUNT, **how),
        )
        self._set(
            a1,
            on1=lambda **how: TracingSwitch(other, True, COUNT, filter=every(4), **how),
            count1=lambda **how: Stacktrace(self.cells, COUNT, **how),
        )
        self._set(b1, off1=lambda **how: TracingSwitch(other, False, COUNT, **how))
        self.cells.drop_the_rest()
        self.intake = Intake(4)
        self.ring = open_ring((self.a, self.b), self.journal, self.intake, new, ring)

    def _cell(self, name: str, value: int) -> int:
        if name in self.kept:
            assert self.cells.keep(*self.kept[name])
            return self.kept[name][0]
        index = self.cells.give(value)
        self.kept[name] = (index, self.cells.key(index))
        return index

    def _probe(self, number: int, tracepoint: Tracepoint, enabled: bool) -> FtraceProbe:
        probe = FtraceProbe(self.sinks[number])
        probe.soft_disabled = not enabled
        tracepoint.attach(probe)
        return probe

    def _set(self, probe: FtraceProbe, **makers: Any) -> None:
        made = {name: make(kept=self.kept.get(name)) for name, make in makers.items()}
        for name, trigger in made.items():
            self.kept[name] = (trigger.cell, trigger.key)
        self.triggers |= made
        probe.triggers = tuple(made.values())

    def result(self) -> dict[str, Any]:
        """The whole visible state."""
        spare = self.buffers[0].spare
        assert spare is not None
        return {
            "live": numbers(self.buffers[0]),
            "spare": numbers(spare),
            "other": numbers(self.buffers[1]),
            "on": [sink.tracing_on for sink in self.sinks],
            "b": not self.b0.soft_disabled,
            **{name: COUNT - trigger.count for name, trigger in self.triggers.items()},
        }


def numbers(buffer: RingBuffer) -> list[tuple[int, int]]:
    """(id, n) of each record."""
    return [
        (struct.unpack_from("<H", data)[0], struct.unpack_from("<Q", data, 8)[0])
        for _, _, data, _ in buffer.cursor()
    ]


def expected(sequence: list[tuple[int, int]]) -> dict[str, Any]:
    """The effect of records (0 a, 1 b; n) on `World`, in plain Python."""
    live: list[tuple[int, int]] = []
    spare: list[tuple[int, int]] = []
    other: list[tuple[int, int]] = []
    on, on1, b = True, True, False
    fired = dict.fromkeys(
        ("off", "enable", "snapshot", "count", "turn_on", "disable", "on1", "count1", "off1"), 0
    )
    for event, n in sequence:
        small = n % 8 if n < 64 else -1
        if event == 0:
            if small == 1 and not b:
                b = True
                fired["enable"] += 1
            if on:
                live.append((20, n))
            if small == 3:
                live, spare = spare, live
                fired["snapshot"] += 1
            fired["count"] += 1
            if small == 5 and on:
                on = False
                fired["off"] += 1
            if on1:
                other.append((20, n))
            if small == 4 and not on1:
                on1 = True
                fired["on1"] += 1
            fired["count1"] += 1
        else:
            if not on:
                on = True
                fired["turn_on"] += 1
            if b:
                b = False
                fired["disable"] += 1
            if on1:
                on1 = False
                fired["off1"] += 1
    return {"live": live, "spare": spare, "other": other, "on": [on, on1], "b": b, **fired}


SEQUENCE = [(0, n) if n % 7 != 6 else (1, n) for n in range(26)]
FILES = ["0/cpu0", "0/cpu0.b", "0/spare", "1/cpu0", "journal", "cells"]


def emit(producer: Producer, sequence: list[tuple[int, int]]) -> None:
    producer.emit(b"".join(record(n, index=event) for event, n in sequence))


def test_killed_at_any_instruction(folder: Path) -> None:
    before = folder / "before"
    before.mkdir()
    world = World(before)
    assert world.ring is not None
    producer = Producer(world.ring.fd)
    emit(producer, SEQUENCE[:1])
    world.intake.take_in()
    emit(producer, SEQUENCE[1:])
    want = expected(SEQUENCE)
    assert all(want[name] for name in world.triggers), "each kind fires"
    judged = stepped_through(World, world, before, FILES, folder / "after", want)
    assert judged > 20 * len(SEQUENCE), "the states of the way were not seen"


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_ring_that_comes_back_late(folder: Path, comes_back: bool) -> None:
    """Other records are dispatched first; the triggers that fired for the interrupted one are remembered
    until then."""
    world = World(folder)
    assert world.ring is not None
    fds = (os.dup(world.ring.fd), os.dup(world.ring.doorbell))
    emit(Producer(fds[0]), [(0, 9)])
    # As if killed when all triggers had fired, before the record was consumed.
    world.intake.take_in()
    kept, at = world.kept, 0
    del world
    with open(folder / "journal", "r+b") as file:
        file.seek(SLOT + 24)
        file.write(struct.pack("<Q", at))
    emit_again = record(9)
    memory = mmap.mmap(fds[0], os.fstat(fds[0]).st_size)
    memory[65536 : 65536 + len(emit_again)] = emit_again
    struct.pack_into("<Q", memory, 128, 0)
    heir = World(folder, kept)
    ((key, (position, fired)),) = heir.journal.fired.items()
    assert (position, len(fired)) == (0, 3), "enable_event and both that count"
    write(heir.a, struct.pack("<Q", 1), ts_ns=1, cpu=0, pid=1)
    write(heir.a, struct.pack("<Q", 3), ts_ns=1, cpu=0, pid=1)
    assert COUNT - heir.triggers["count"].count == 3
    log = heir.journal.fired
    del heir
    last = World(folder, kept, fds if comes_back else None, log)
    assert last.journal.fired == {key: (0, fired)}
    if comes_back:
        assert last.intake.take_in() == 1
        assert last.journal.fired == {}
    assert COUNT - last.triggers["count"].count == 3
    for fd in fds:
        os.close(fd)
