"""The parts data, tracefs and memory: attackers against one daemon that honest programs use meanwhile.

    attackers   a process and a user each; round after round a script that follows from
                SEED/PART/ATTACKER/ROUND
    honest      two programs whose every record must arrive, in the parts where no administrator is attacking
    judge       this process: reads the tree again and again, and the records of the honest programs

A finding lists the rounds in progress. `--attacker A --round R` runs only that one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import struct
import time
from collections import Counter, defaultdict
from pathlib import Path

import attrs

from tests.protocol.pages.perf_records import Lost, perf_records
from tests.soak.attacks import memory, sockets, wire
from tests.soak.attacks.fuse import FuseFiles
from tests.soak.crew import Crew, Job, Member, Notes
from tests.soak.honest import (
    EMITTED,
    FIELDS,
    LOST,
    PROGRESS,
    REFUSED,
    c_producer,
    compile_numbered,
    python_producer,
)
from tests.soak.house import House
from tests.soak.judging import Told, judge_records, stats_of
from tests.soak.report import Report
from utracefs.tree.tracefs import PerfAttr
from utracefs_protocol.pages.perf_ring import PerfRingReader, Sample

PARTS = {"data": "data", "tracefs": "tracefs", "memory": "memory"}
ATTACKERS = 4
_PERF_PAGES = 1024
_LOOK_EVERY_S = 0.1
_SHOWN_STEPS = 6


@attrs.frozen
class Setting:
    """The arguments of a run."""

    seed: str
    seconds: float
    without: frozenset[str] = frozenset()
    attacker: int | None = None
    """Only this one, ..."""
    round: int | None = None
    """... and only this round of it."""

    def options(self, part: str) -> str:
        """The arguments that repeat the part."""
        left_out = f" --without {','.join(sorted(self.without))}" if self.without else ""
        return f"--seed {self.seed} --only {part}{left_out}"


def attack(part: str, setting: Setting, report: Report, folder: Path) -> None:
    """Run the part for its time; findings are in the report."""
    label = setting.options(part)
    house = House(folder / part, report, label, open_to_all=True, options=("--buffer-size-kb", "256"))
    crew = Crew()
    files: FuseFiles | None = None
    try:
        house.start()
        files = _fuse_files(house)
        honest = None
        if part == "tracefs":
            _make_events(house)
        else:
            honest = _Honest(house, crew, setting.seed)
        attackers = [setting.attacker] if setting.attacker is not None else range(ATTACKERS)
        for number in attackers:
            administrator = number == 0 if part == "memory" else part == "tracefs" and number
            uid = None if administrator else crew.next_uid()
            job = attacking(part, number, setting, house.directory, files.path if files else None)
            crew.add(f"{part} attacker {number}", job, uid)
        deadline = time.monotonic() + setting.seconds
        while time.monotonic() < deadline and not _all_done(crew, setting):
            house.probe(crew.context())
            crew.must_be_well()
            if honest is not None:
                honest.look()
            time.sleep(_LOOK_EVERY_S)
        context = crew.context()
        counts, bad = crew.stop()
        report.counts.update(counts)
        if honest is not None:
            for fault in honest.judge():
                report.tell("conservation", label, f"{fault}\n{context}")
        if bad:
            raise RuntimeError(f"members of the crew failed: {bad}")
        if files is not None:
            files.close()
            files = None
        house.probe(context)
        house.judge_rest(context)
        house.end(context)
    finally:
        crew.close()
        if files is not None:
            files.close()
        house.clear()


def _make_events(house: House) -> None:
    """The events of the pool, all enabled, to stay."""
    rng = random.Random(house.report.seed)
    with house.tree() as tree:
        for number in range(wire.EVENTS):
            line = f"u:{wire.declaration(rng, number)}\n".encode()
            with contextlib.suppress(OSError):  # a random name of its own may exist already
                tree.write_file("dynamic_events", line, truncate=False)
        tree.write_file("standing_events", b"user_events:*\n")


def _fuse_files(house: House) -> FuseFiles | None:
    """None where mounting is not permitted."""
    try:
        files = FuseFiles(os.fspath(house.folder / "fuse"))
    except OSError:
        house.report.counts["parts without FUSE files"] += 1
        return None
    files.watch(house.pid)
    return files


def _all_done(crew: Crew, setting: Setting) -> bool:
    return setting.round is not None and all(m.poll() for m in crew.members if "attacker" in m.name)


def attacking(part: str, number: int, setting: Setting, directory: str, fuse: str | None) -> Job:
    """The job of attacker `number` of a part."""

    def job(notes: Notes) -> Counter[str]:
        # in the part tracefs one is a producer, so that there are records
        port = "tracefs" if part == "tracefs" and number else "data"
        ports = sockets.Attacker(directory, port, fuse)
        rings = memory.RingAttacker(directory)
        perf = memory.PerfAttacker(directory)
        rounds = [setting.round] if setting.round is not None else range(1 << 62)
        done = 0
        for number_of_round in rounds:
            if notes.stopped:
                break
            seed = f"{setting.seed}/{part}/{number}/{number_of_round}"
            rng = random.Random(seed)
            where = f"{setting.options(part)} --attacker {number} --round {number_of_round}"
            if part != "memory":
                steps = sockets.script(rng, port, setting.without)
                notes.write(f"{where}\n  {_shown(steps)}")
                ports.round(steps)
            elif number == 0:
                notes.write(where)
                perf.round(rng)
            else:
                steps = memory.script(rng, setting.without)
                notes.write(f"{where}\n  {_shown(steps)}")
                rings.round(steps)
            done += 1
        return ports.counts + rings.counts + perf.counts + Counter({"rounds of attackers": done})

    return job


def _shown(steps: list[tuple[object, ...]]) -> str:
    """The last rounds, in short: the seed repeats them all."""
    lines = [f"{len(steps)} steps, at last", *map(repr, steps[-_SHOWN_STEPS:])]
    return "\n  ".join(line if len(line) < 160 else line[:157] + "..." for line in lines)


class _Honest:
    """Honest programs, and a perf ring for each that gets every record."""

    def __init__(self, house: House, crew: Crew, seed: str) -> None:
        self._tree = house.tree()
        self._rings: dict[str, tuple[mmap.mmap, PerfRingReader]] = {}
        self._came: dict[str, dict[int, list[int]]] = {}
        self._lost: Counter[str] = Counter()
        self._consumers: dict[str, str] = {}
        self._members: dict[str, Member] = {}
        names = ["honest_ring", "honest_socket", "honest_c"]
        self._tree.write_file("standing_events", b"user_events:*\n")
        for name in names:
            self._tree.write_file("dynamic_events", f"u:{name} {FIELDS}\n".encode(), truncate=False)
            attr = PerfAttr(name=f"user_events:{name}".encode(), sample_period=1, data_pages=_PERF_PAGES)
            handle, fd = self._tree.perf_event_open(attr)
            assert fd is not None
            self._consumers[name] = f"perf:{handle}"
            mapping = mmap.mmap(fd, 4096 * (_PERF_PAGES + 1))
            os.close(fd)
            self._rings[name] = mapping, PerfRingReader(mapping)
            self._came[name] = defaultdict(list)
        library = compile_numbered(house.folder)
        jobs = [
            python_producer(house.directory, names[0], seed, 2000, threads=2),
            python_producer(house.directory, names[1], seed, 500, ring_kb=0),
            c_producer(house.directory, names[2], seed, 4000, library, threads=2),
        ]
        for name, job in zip(names, jobs, strict=True):
            self._members[name] = crew.add(name, job, crew.next_uid())

    def look(self) -> None:
        """Take new records."""
        for name, (_, ring) in self._rings.items():
            for found in perf_records(ring):
                if isinstance(found, Sample):
                    who, n = struct.unpack_from("<IQ", found.raw, 8)
                    self._came[name][who].append(n)
                elif isinstance(found, Lost):
                    self._lost[name] += found.count

    def judge(self) -> list[str]:
        """After they have ended."""
        self._tree.read_file("tracing_on")  # now all their records are taken in
        self.look()
        faults = []
        for name, member in self._members.items():
            numbers = member.notes.numbers
            # The ring has losses only in front of the next record; the statistics have all.
            _, consumers = stats_of(self._tree.read_file(f"events/user_events/{name}/stats"))
            _, _, lost = consumers[self._consumers[name]]
            if self._lost[name] + numbers[LOST] > lost:
                text = f"{self._lost[name]} lost by the ring, {numbers[LOST]} by the program"
                faults.append(f"{name}: {text}, {lost} by its statistics")
            told = Told(
                name,
                dict(enumerate(numbers[PROGRESS : PROGRESS + 2])),
                exact=True,
                emitted=numbers[EMITTED],
                lost=lost,
                refused=numbers[REFUSED],
            )
            faults += judge_records(self._came[name], told)
            for who, came in self._came[name].items():
                if came != sorted(came):
                    faults.append(f"{name}/{who}: out of order")
        for mapping, _ in self._rings.values():
            mapping.close()
        self._tree.close()
        return faults
