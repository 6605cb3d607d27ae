"""The displayed numbers add up to what was emitted: kept + reported lost = emitted, exactly.

One program loses records in every possible way, while every display of losses is active: `record` and its
trace.dat, `report`, `report --stat`, trace-cmd, `status`, `doctor`, `stream`, and the files of the tree.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.client.recordings.events import trace_cmd
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from utracefs.cli.common import event_stats
from utracefs.tree.tracefs import Tracefs

PROGRAM = """
import sys, utracefs
event = utracefs.event("told u64 n; __rel_loc char[] s")
def emit(count, size, start=0):
    for n in range(start, start + count):
        event.emit(n, "x" * size)
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    stats = utracefs.stats()
    print(stats.emitted, stats.lost, sum(sum(e.refused.values()) for e in stats.events.values()), flush=True)
"""


class Program:
    """A program that emits on command; a data ring of 64 KiB, so that it loses easily."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self.daemon = daemon
        self.emitted = 0
        self.process = Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "UTRACEFS_DIR": daemon.directory, "UTRACEFS_RING_KB": "64"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def run(self, code: str) -> tuple[int, int, int]:
        """Emitted in all, and lost and refused by the program's own counts."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        flood = code == FLOOD
        if flood:
            # However fast this machine's daemon is, the ring gets full at some time.
            self.daemon.signal(signal.SIGSTOP)
        try:
            self.process.stdin.write(code + "\n")
            self.process.stdin.flush()
            emitted, lost, refused = map(int, self.process.stdout.readline().split())
        finally:
            if flood:
                self.daemon.signal(signal.SIGCONT)
        self.emitted = emitted
        return emitted, lost, refused

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        else:
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def program(daemon: DaemonProcess, eventually: Callable[..., None]) -> Iterator[Program]:
    made = Program(daemon)
    try:
        with daemon.tree() as tree:
            eventually(lambda: b"told" in tree.read_file("available_events"), "it is registered")
        yield made
    finally:
        made.end(kill=True)


class Recording:
    """`utracefs record`, running."""

    def __init__(
        self, daemon: DaemonProcess, eventually: Callable[..., None], path: Path, *options: str
    ) -> None:
        self.path = path
        self.process = cli(daemon, "record", "-o", str(path), *options)
        with daemon.tree() as tree:
            eventually(lambda: b"ftrace" in tree.read_file("user_events_status"), "it records")

    def end(self) -> tuple[int, int]:
        """Kept and lost, by its last line."""
        _, error = stop(self.process)
        found = re.search(r": (\d+) records?, .*?, (nothing|\d+) lost(.*)", error)
        assert found, error
        lost = 0 if found[2] == "nothing" else int(found[2])
        parts = [int(n) for n in re.findall(r"(?:^: |, )(\d+) [a-z]", found[3])]
        assert sum(parts) == lost, error
        return int(found[1]), lost


PIPES = (subprocess.PIPE, subprocess.PIPE)


CLI = """
import runpy
from utracefs.cli.run import page_stream
page_stream.fitting_ring_bytes = lambda times=1: times << 18
runpy.run_module("utracefs.cli", run_name="__main__")
"""


def cli(daemon: DaemonProcess, *words: str, files: tuple[Any, Any] = PIPES) -> subprocess.Popen[str]:
    return Popen(
        [sys.executable, "-c", CLI, *words],
        env={**os.environ, "UTRACEFS_DIR": daemon.directory},
        stdout=files[0],
        stderr=files[1],
        text=True,
    )


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=60)


def said(daemon: DaemonProcess, *words: str) -> str:
    process = cli(daemon, *words)
    out, error = process.communicate(timeout=60)
    return out + error


def in_file(daemon: DaemonProcess, path: Path) -> tuple[int, int]:
    """Its records, and its lost ones as shown at their places."""
    kept = lost = 0
    for line in said(daemon, "report", "--json", str(path)).splitlines():
        if found := re.fullmatch(r"utracefs: .* of all that was emitted (\d+) lost: .*", line):
            assert int(found[1]) == stat_of_file(daemon, path)[1]
            continue
        one = json.loads(line)
        if "lost" in one:
            assert one["lost"] is not None, "counted"
            lost += one["lost"]
        else:
            kept += 1
    return kept, lost


def stat_of_file(daemon: DaemonProcess, path: Path) -> tuple[int, int]:
    """Records and all losses in `report --stat`."""
    text = said(daemon, "report", "--stat", str(path))
    numbers = {name: int(value) for name, value in re.findall(r"^([a-z, ]+): (\d+)$", text, re.MULTILINE)}
    lost = sum(
        numbers[name] for name in ("lost in data rings", "dropped, buffer full", "too large", "overwritten")
    )
    return numbers["records of events"], lost


def status_of(daemon: DaemonProcess) -> dict[str, int]:
    (row,) = json.loads(said(daemon, "status", "--json", "told"))["events"]
    ours = [counts for name, counts in row["consumers"].items() if name.startswith("ftrace:")]
    return {"emitted": row["emitted"], "in_rings": row["lost_in_rings"], **ours[-1]}


FLOOD = "emit(20000, 40)"
FLUSH = "utracefs.flush(60)"
SLOW = "for i in range(200): emit(1, 40, i); utracefs.flush(60)"

MUCH = "for i in range(50): emit(14, 3900); utracefs.flush(60)"
"""More than the ring of a recorder, which is 512 KiB here."""
WAYS = {
    "nothing": (["-b", "4096"], [SLOW], set()),
    "data ring": (["-b", "16384"], [FLOOD, FLOOD, SLOW, FLOOD, SLOW], {"in data rings"}),
    "overwritten": (["-b", "8"], [MUCH], {"overwritten"}),
    "dropped": (["-b", "8", "--no-overwrite"], [MUCH], {"dropped"}),
    "too large": (["-b", "4096"], [SLOW, "emit(7, 5000)", FLUSH, SLOW], {"too large"}),
    "everything": (
        ["-b", "16"],
        [SLOW, FLOOD, FLUSH, "emit(50, 5000)", FLUSH, FLOOD, SLOW],
        {"in data rings", "too large"},
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_record_and_its_file(
    daemon: DaemonProcess, program: Program, eventually: Callable[..., None], tmp_path: Path, way: str
) -> None:
    options, steps, expected = WAYS[way]
    recording = Recording(daemon, eventually, tmp_path / "out.dat", *options)
    # The status byte is set before the first record: all records from here on count.
    program.run("while not (event.registered and event): pass")
    if way in ("overwritten", "dropped"):
        recording.process.send_signal(signal.SIGSTOP)
    for step in steps:
        _, _, refused = program.run(step)
        assert refused == 0
    program.run(FLUSH)
    recording.process.send_signal(signal.SIGCONT)
    status = status_of(daemon)
    doctor = said(daemon, "doctor", "told")
    kept, lost = recording.end()
    assert kept + lost == program.emitted
    assert status["emitted"] == program.emitted
    assert status["recorded"] + status["filtered"] + status["lost"] == program.emitted
    assert in_file(daemon, recording.path)[0] == kept
    assert stat_of_file(daemon, recording.path) == (kept, lost)
    shown = in_file(daemon, recording.path)[1]
    if status["lost"]:
        assert f"lost {status['lost']} of {program.emitted}" in doctor
    if way == "data ring":
        # (Losses behind the last kept record are not shown.)
        assert 0 < shown <= lost == status["in_rings"]
    if way == "nothing":
        assert lost == 0
    else:
        assert lost > 0
    for reason in expected:
        names = {"in data rings": "lost in data rings", "dropped": "dropped, buffer full"}
        text = said(daemon, "report", "--stat", str(recording.path))
        found = re.search(rf"^{names.get(reason, reason)}: (\d+)$", text, re.MULTILINE)
        assert found and int(found[1]) > 0, (reason, text)


def test_trace_cmd_shows_the_same(
    daemon: DaemonProcess, program: Program, eventually: Callable[..., None], tmp_path: Path
) -> None:
    recording = Recording(daemon, eventually, tmp_path / "out.dat", "-b", "16384")
    program.run("while not (event.registered and event): pass")
    program.run(FLOOD)
    program.run(FLUSH)
    program.run(SLOW)
    kept, lost = recording.end()
    text = trace_cmd("report", "-i", str(recording.path))
    assert text.count("told:") == kept
    assert sum(map(int, re.findall(r"\[(\d+) EVENTS DROPPED\]", text))) == lost > 0


def test_trace_pipe_and_trace(daemon: DaemonProcess, program: Program) -> None:
    with daemon.tree() as tree:
        tree.write_file("buffer_size_kb", b"16384")
        tree.write_file("set_event", b"told")
        program.run("while not (event.registered and event): pass")
        program.run(FLOOD)
        program.run(FLUSH)
        program.run(SLOW)
        for file in ("trace", "trace_pipe"):
            text = tree.read_file(file).decode()
            lost = sum(map(int, re.findall(r"^CPU:\d+ \[LOST (\d+) EVENTS\]$", text, re.MULTILINE)))
            assert text.count(" told: ") + lost == program.emitted, file
            assert lost > 0


def _first(pattern: str, text: str) -> int:
    """The number; 0 where the text does not have it."""
    found = re.search(pattern, text, re.MULTILINE)
    return int(found[1].replace(",", "")) if found else 0


def _of_record(out: str, error: str) -> tuple[int, int]:
    return _first(r": (\d+) records?, ", error), _first(r", (\d+) lost", error)


def _of_stream(out: str, error: str) -> tuple[int, int]:
    left = _first(r"not printed when it ended: (\d+) more", error)
    return out.count(" told: ") + left, _first(r"(\d+) records lost in all", error)


def _of_json_stream(out: str, error: str) -> tuple[int, int]:
    kept = sum("name" in json.loads(line) for line in out.splitlines())
    kept += _first(r"not printed when it ended: (\d+) more", error)
    return kept, _first(r"records, (\d+) lost", error)


def _of_hist(out: str, error: str) -> tuple[int, int]:
    (shown,) = json.loads(out)
    return shown["hits"], _first(r"(\d+) records were lost", error)


def _of_top(out: str, error: str) -> tuple[int, int]:
    return _of_record(f": {out}", f": {error}")


def _of_perf(out: str, error: str) -> tuple[int, int]:
    return _first(r"(\d+) samples?, ", error), _first(r" samples?, (\d+) lost", error)


def _of_perf_stat(out: str, error: str) -> tuple[int, int]:
    return _first(r"([\d,]+)  user_events:told", out), _first(r"(\d+) records lost", error)


def _of_perf_top(out: str, error: str) -> tuple[int, int]:
    kept = sum(map(int, re.findall(r"% +(\d+) +[\d.]+ +user_events:told", out)))
    return kept, _first(r"^(\d+) lost", out)


COMMANDS = {
    "record": (["record", "-e", "told", "-b", "64", "-o", "told.dat"], _of_record),
    "stream": (["stream", "-e", "told"], _of_stream),
    "stream --json": (["stream", "--json", "-e", "told"], _of_json_stream),
    "hist": (["hist", "--json", "told", "common_pid"], _of_hist),
    "top": (["top", "-d", "1000"], _of_top),
    "perf record": (["perf", "record", "-e", "told", "-o", "perf.data"], _of_perf),
    "perf trace": (["perf", "trace", "-e", "told"], _of_perf),
    "perf stat": (["perf", "stat", "-e", "told"], _of_perf_stat),
    "perf top": (["perf", "top", "-d", "1000", "-e", "told"], _of_perf_top),
}


def nr_attached(tree: Tracefs) -> int:
    stats = event_stats(tree.read_file("events/user_events/told/stats"))
    return len(stats.consumers.keys() - stats.detached)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from([SLOW, FLOOD, FLUSH, "emit(7, 5000)"]), min_size=1, max_size=5))
@example(steps=[SLOW, FLOOD, FLUSH, FLOOD])
def test_kept_and_lost_are_all_for_every_command(
    daemon: DaemonProcess,
    program: Program,
    eventually: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = program.emitted
    outs = {name: (open(f"{name}.out", "w+"), open(f"{name}.err", "w+")) for name in COMMANDS}  # noqa: SIM115
    running = {name: cli(daemon, *words, files=outs[name]) for name, (words, _) in COMMANDS.items()}
    try:
        with daemon.tree() as tree:
            eventually(lambda: nr_attached(tree) == len(COMMANDS), "all are attached")
        program.run("while not (event.registered and event): pass")
        for step in [*steps, FLUSH]:
            program.run(step)
        for process in running.values():
            process.send_signal(signal.SIGINT)
            process.wait(60)
        for name, (_, parse) in COMMANDS.items():
            for file in outs[name]:
                file.seek(0)
            out, error = (file.read() for file in outs[name])
            kept, lost = parse(out, error)
            assert kept + lost == program.emitted - before, (name, kept, lost, out[-300:], error)
            assert lost or FLOOD not in steps, name
        text = said(daemon, "perf", "script", "-i", "perf.data")
        kept, lost = _of_perf("", Path("perf record.err").read_text())
        assert text.count(" user_events:told: ") == kept
        assert (f"utracefs: {lost} samples were lost\n" in text) == bool(lost)
    finally:
        for process in running.values():
            process.kill()
            process.wait(60)
        for file in itertools.chain(*outs.values()):
            file.close()
