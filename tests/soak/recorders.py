"""The part record: a recorder, its programs and the daemon are killed, and its files are judged.

A round is a daemon, honest producers and one recorder of KINDS with a small ring, which is full now and then.
It may end in order, be killed at any moment from its start on, or while it finishes its file.

    always      the files can be read; nothing is in them twice, nothing that was not emitted; no more is
                missing in between than is reported lost there
    in order    kept + reported lost = emitted, by the last line and by `stats`, if the daemon lived
    afterwards  the programs continue, and the daemon has no instance left

A killed recorder loses its last pages, of a cpu with few records those of a second, and all that --flight had
not written. So records are judged between the times that every cpu has in the file.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import attrs

import utracefs
from tests.soak.attacks.attack import Setting
from tests.soak.crew import Crew, Member
from tests.soak.honest import FIELDS, PROGRESS, c_producer, compile_numbered, python_producer
from tests.soak.house import House
from tests.soak.judging import stats_of
from tests.soak.report import Found, Report
from utracefs_protocol.errors import TraceError

KINDS = {
    "plain": (),
    "lossless": ("--lossless",),
    "flight": ("--flight", "256K"),
    "rotation": ("--switch-output", "2M"),
}
_THREADS = 2
_MOST_PRODUCERS = 6
_BLOCKS_OF_TEXTS = 16
"""Blocks of a file that has no page yet."""
_END_S = 60.0
_SETTLE_S = 30.0

_RECORD = """
import utracefs.cli.run.page_stream as pages
pages.PART_OF_MEMORY = 1 << 20
pages.WayToDisk.RATE = 0
from utracefs.cli import main
main()
"""


def record(setting: Setting, report: Report, folder: Path) -> None:
    """Rounds until the time is over, at least one."""
    deadline = time.monotonic() + setting.seconds if setting.round is None else -math.inf
    number = setting.round or 0
    while True:
        with contextlib.suppress(Found):
            _Round(setting, report, folder / f"round{number}", number).run()
        number += 1
        if time.monotonic() >= deadline - 4:
            return


@attrs.frozen
class Kept:
    """A record of a file."""

    event: str
    who: int
    n: int
    cpu: int
    time_ns: int


class _Round:
    def __init__(self, setting: Setting, report: Report, folder: Path, number: int) -> None:
        self.seed = f"{setting.seed}/record/{number}"
        self.rng = random.Random(self.seed)
        self.kind = list(KINDS)[number % len(KINDS)]
        self.part = f"{self.kind}: {setting.options('record')} --round {number}"
        self.report = report
        self.house = House(folder, report, self.part, open_to_all=True, options=("--keep-state",))
        self.library = compile_numbered(folder)
        self.crew = Crew()
        self.producers: dict[str, Member] = {}
        self.files = folder / "files"
        self.files.mkdir()
        self.done: list[str] = []
        self.is_daemon_whole, self.is_attached = True, False

    def run(self) -> None:
        recorder = None
        try:
            self.house.start()
            with self.house.tree() as tree:  # so that the counts of a killed producer stay
                for number in range(_MOST_PRODUCERS):
                    tree.write_file("dynamic_events", f"u:p{number} {FIELDS}\n".encode(), truncate=False)
            for _ in range(self.rng.randrange(1, 4)):
                self._new_producer()
            recorder = subprocess.Popen(
                [sys.executable, "-c", _RECORD, "record", *KINDS[self.kind], "-e", "user_events:p*"],
                cwd=self.files,
                env={**os.environ, "UTRACEFS_DIR": self.house.directory, "PYTHONFAULTHANDLER": "1"},
                stderr=subprocess.PIPE,
            )
            self._do_things(recorder)
            error = self._end(recorder)
            self._judge(error)
            self.house.end(self._context())
            self.report.counts[f"recorders, {self.kind}"] += 1
        finally:
            if recorder is not None:
                recorder.kill()
                recorder.communicate()
            self.crew.close()
            self.house.clear()

    def _do_things(self, recorder: subprocess.Popen[bytes]) -> None:
        """Sometimes before it is attached."""
        if self.rng.random() < 0.7:
            self._wait_for_instance(recorder)
        for _ in range(self.rng.randrange(10)):
            self._pause(0.8)
            (thing,) = self.rng.choices(
                ["new", "kill producer", "stop recorder", "stop daemon", "dump", "kill daemon"],
                [3, 2, 2, 1, 3, 1],
            )
            self.done.append(thing)
            self.report.counts["actions beside a recorder"] += 1
            if thing == "new" and len(self.producers) < _MOST_PRODUCERS:
                self._new_producer()
            elif thing == "kill producer" and self.producers:
                event = self.rng.choice(list(self.producers))
                self.producers[event].kill()
                self.done[-1] += f" {event}"
            elif thing == "stop recorder":
                recorder.send_signal(signal.SIGSTOP)
                self._pause(1)
                recorder.send_signal(signal.SIGCONT)
            elif thing == "stop daemon":
                self.house.signal(signal.SIGSTOP)
                self._pause(0.5)
                self.house.signal(signal.SIGCONT)
            elif thing == "dump" and self.kind in ("flight", "rotation") and self.is_attached:
                recorder.send_signal(signal.SIGUSR2)
            elif thing == "kill daemon":
                self.house.kill()
                self.is_daemon_whole = False
                self._pause(0.5)
                self.house.start()
            self.crew.must_be_well()

    def _pause(self, most_s: float) -> None:
        time.sleep(self.rng.random() ** 2 * most_s)

    def _new_producer(self) -> None:
        event, kind = f"p{len(self.producers)}", self.rng.randrange(3)
        what = "C"
        if kind:
            ring_kb = 1024 if kind == 1 else 16
            what = f"Python, {ring_kb} KB ring"
            job = python_producer(
                self.house.directory, event, self.seed, 20_000, ring_kb=ring_kb, threads=_THREADS
            )
        else:
            job = c_producer(self.house.directory, event, self.seed, 200_000, self.library, threads=_THREADS)
        self.producers[event] = self.crew.add(event, job, self.crew.next_uid())
        self.done.append(f"{event}: pid {self.producers[event].pid}, {what}")

    def _end(self, recorder: subprocess.Popen[bytes]) -> str:
        """Its last words; empty if it was killed."""
        ending = self.rng.choice(["kill", "finish", "kill finishing"])
        self.done.append(ending)
        if ending != "kill":
            if ending == "finish":  # before that an interrupt ends it at once
                self._wait_for_instance(recorder)
            recorder.send_signal(signal.SIGINT)
        if ending == "kill finishing":
            self._pause(0.4)
        if ending != "finish":
            recorder.kill()
            self.report.counts["kills of recorders"] += 1
        try:
            error = recorder.communicate(timeout=_END_S)[1].decode()
        except subprocess.TimeoutExpired:
            recorder.send_signal(signal.SIGABRT)  # faulthandler prints where its threads are
            stacks = recorder.communicate()[1].decode()
            self.report.stop("end", self.part, f"the recorder did not end\n{stacks}\n{self._context()}")
        return error if recorder.returncode != -signal.SIGKILL else ""

    def _wait_for_instance(self, recorder: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _SETTLE_S
        with self.house.tree() as tree:
            while time.monotonic() < deadline and recorder.poll() is None:
                self.is_attached = any(kind == "d" for _, kind in tree.list_dir("instances"))
                if self.is_attached:
                    return
                time.sleep(0.02)

    def _context(self) -> str:
        return f"it did: {', '.join(self.done)}\n{self.house.log_tail(1500)}"

    # Judging

    def _judge(self, error: str) -> None:
        self._judge_afterwards()
        with self.house.tree() as tree:
            emitted = 0
            for event in self.producers:
                every, consumers = stats_of(tree.read_file(f"events/user_events/{event}/stats"))
                emitted += every - sum(filtered for _, filtered, _ in consumers.values())
        _, bad = self.crew.stop()
        if bad:
            raise RuntimeError(f"members of the crew failed: {bad}")
        context = f"{self._context()}\n{error}"
        parts = [self._read(path, context) for path in sorted(self.files.iterdir())]
        came: dict[tuple[str, int, int], int] = defaultdict(int)
        for records, _ in parts:
            for one in records:
                came[one.event, one.who, one.n] += 1
        self.report.counts["records judged"] += len(came)
        twice = [key for key, times in came.items() if times > 1]
        self._check(not twice, f"{len(twice)} twice: {twice[:5]}", context)
        wild = [key for key in came if key[2] > self.producers[key[0]].notes.numbers[PROGRESS + key[1]]]
        self._check(not wild, f"{len(wild)} never emitted: {wild[:5]}", context)
        if self.kind != "flight":  # several files are one recording
            parts = [([one for records, _ in parts for one in records], sum(lost for _, lost in parts))]
        for records, lost in parts:
            gone = missing(records)
            text = f"{sum(gone.values())} missing in between, {lost} reported there: {gone}"
            self._check(sum(gone.values()) <= lost, text, context)
        if error and self.is_daemon_whole:
            self._judge_sum(error, len(came), emitted, context)

    def _judge_afterwards(self) -> None:
        """Programs live on, and no instance is left."""
        self.crew.must_be_well()
        deadline = time.monotonic() + _SETTLE_S
        with self.house.tree() as tree:
            while (left := tree.list_dir("instances")) and time.monotonic() < deadline:
                time.sleep(0.05)
        self.report.check("leftovers", self.part, not left, f"instances {left}\n{self._context()}")

    def _read(self, path: Path, context: str) -> tuple[list[Kept], int]:
        """Its records, and those reported lost at their places."""
        try:
            with utracefs.open(path, recover=True) as recording:
                found = [*recording]
        except TraceError as error:
            self._check(path.stat().st_blocks <= _BLOCKS_OF_TEXTS, f"{path.name}: {error}", context)
            return [], 0
        records = [Kept(one.name, one.fields["who"], one.fields["n"], one.cpu, one.time_ns) for one in found]
        return records, sum(one.lost for one in found)

    def _judge_sum(self, error: str, kept: int, emitted: int, context: str) -> None:
        last = error.splitlines()[-1]
        counts = re.findall(r"(?:: |; |; the last )(\d+) (?:older )?records?\b|, (\d+) lost", last)
        told = [int(number or lost) for number, lost in counts] or [0]
        self._check(told[0] == kept, f"{kept} in the files", context)
        self._check(sum(told) == emitted, f"emitted {emitted}, kept and lost {told}", context)

    def _check(self, holds: bool, text: str, context: str) -> None:
        self.report.check("conservation", self.part, holds, f"{text}\n{context}")


def missing(records: list[Kept]) -> dict[str, int]:
    """By event and thread: missing numbers between those at the times that all cpus have in the file. A late
    record, of a ring that came back late, has a time outside of them, perhaps, and is not missing."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for one in records:
        first[one.cpu] = min(first.get(one.cpu, one.time_ns), one.time_ns)
        last[one.cpu] = max(last.get(one.cpu, one.time_ns), one.time_ns)
    if len(first) < len(os.sched_getaffinity(0)):
        return {}
    begin, end = max(first.values()), min(last.values())
    there: dict[str, set[int]] = defaultdict(set)
    between: dict[str, list[int]] = defaultdict(list)
    for one in records:
        who = f"{one.event}/{one.who}"
        there[who].add(one.n)
        if begin <= one.time_ns <= end:
            between[who].append(one.n)
    return {who: len(set(range(min(numbers), max(numbers))) - there[who]) for who, numbers in between.items()}
