"""Synthetic events and a daemon that is killed at any instruction: none is recorded twice, and the next
daemon knows how many are lost. The records that cause them are counted exactly once."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from tests.daemon.consumers.ftrace.histograms import defined
from tests.daemon.intake.dying import Kept, Producer, judge, mapped, open_buffers, open_ring, record
from tests.daemon.stepping import stepping
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.hist._hist import Emission, Hist, HistTable
from utracefsd.consumers.ftrace.hist.program import compile_definition
from utracefsd.consumers.ftrace.trigger._triggers import HistTrigger
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._intake import Intake

EVENT = parse(b"seen u64 number")
DEFINITION = defined(b"keys=1:x=number:onmax($x).save(number):size=128", EVENT)
PROGRAM = compile_definition(DEFINITION)
SHAPE = DEFINITION.parts.bits, DEFINITION.key_size, PROGRAM.nr_words
FILES = ["0/cpu0", "1/cpu0", "journal", "cells", "table"]


class World:
    """An event whose histogram records a synthetic one, with the same number, in another buffer: for each
    record, and once more for one that is larger than all before."""

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
        self.lost = self.cells.lost_deferred
        self.buffers, self.journal = open_buffers(folder, 2, self.cells, new, fired)
        tracepoint = Tracepoint(20, b"seen", EVENT.fields)
        made = Tracepoint(21, b"made", EVENT.fields)
        made.attach(FtraceProbe(FtraceSink(self.buffers[1], 1, self.cells)))
        probe = FtraceProbe(FtraceSink(self.buffers[0], 0, self.cells))
        tracepoint.attach(probe)
        path = str(folder / "table")
        self.table = HistTable.create(*SHAPE, path) if new else HistTable.adopt(*SHAPE, path)
        hist = Hist(PROGRAM, self.table)
        trigger = HistTrigger(probe.sink, hist, kept=self.kept.get("trigger"))
        self.kept["trigger"] = (trigger.cell, trigger.key)
        emission = Emission(made, 8, [(False, 0, 0, 8, False, False)])
        hist.link((), [(-1, False, 0, False, False, emission), (1, True, 0, False, False, emission)])
        trigger.finish()
        probe.triggers = (trigger,)
        self.cells.drop_the_rest()
        self.intake = Intake(4)
        self.ring = open_ring((tracepoint,), self.journal, self.intake, new, ring)

    def result(self) -> dict[str, Any]:
        made = [struct.unpack_from("<Q", data, 8)[0] for _, _, data, _ in self.buffers[1].cursor()]
        return {"hits": self.table.hits, "made": made, "lost": self.lost}


NUMBERS = [3, 1, 7, 7]
MADE = [3, 3, 1, 7, 7, 7]


def is_part(found: list[int], of: list[int]) -> bool:
    """In their order, with gaps."""
    rest = iter(of)
    return all(number in rest for number in found)


def test_killed_at_any_instruction(folder: Path) -> None:
    before = folder / "before"
    before.mkdir()
    world = World(before)
    assert world.ring is not None
    producer = Producer(world.ring.fd)
    producer.emit(b"".join(record(n) for n in NUMBERS))
    files = [mapped(before / name) for name in FILES]
    steps = under_way = whole = 0
    found: dict[str, Any] = {}
    with stepping(world.intake.take_in, lambda: [memory[:] for memory in files]) as states:
        for state in states:
            steps += 1
            if state is not None:
                contents = dict(zip(FILES, state, strict=True))
                found = judge(World, folder / "after", producer.memory[:], contents, world.kept, False)
                made, lost = found["made"], found["lost"]
                assert found["hits"] == len(NUMBERS)
                assert is_part(made, MADE), made
                assert len(MADE) - len(made) <= lost <= 2, found
                whole += not lost
            under_way += found["lost"] > 0
    assert found == {"hits": len(NUMBERS), "made": MADE, "lost": 0}
    assert whole > 20 and 0 < under_way < steps, "states of both kinds were seen"


def test_nothing_is_lost_when_it_was_recorded(folder: Path) -> None:
    world = World(folder)
    assert world.ring is not None
    Producer(world.ring.fd).emit(record(1) + record(2))
    world.intake.take_in()
    kept = world.kept
    assert world.result() == {"hits": 2, "made": [1, 1, 2, 2], "lost": 0}
    del world
    assert World(folder, kept).result() == {"hits": 2, "made": [1, 1, 2, 2], "lost": 0}
