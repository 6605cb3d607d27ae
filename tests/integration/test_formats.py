"""A program's records as the real readers show them: every field of every record, in each format.

The program prints its records. Thread and time are in no output of its own; there the formats are compared
with each other and with the process.
"""

import contextlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

import utracefs
import utracefs.export
from tests.client.cli.kit import Cli
from tests.client.export.test_ctf import read as read_ctf
from tests.integration.conftest import DaemonProcess, own_directory
from tests.judges import run_judge
from utracefs_protocol.text import bytes_of

PROGRAM = r"""
import json, os, sys, threading
import utracefs
numbers = utracefs.event("numbers s8 a; u8 b; s16 c; u16 d; s32 e; u32 f; s64 g; u64 h")
words = utracefs.event("words u32 n; char[12] fixed; __rel_loc char[] text; __data_loc char[] more")
TEXTS = ['plain', 'quote " and comma, semi; <b>', "größer 漢字", "", "a=1 b=2", "x" * 900]
if "ascii" in sys.argv:
    TEXTS = [text for text in TEXTS if text.isascii()]
RANGES = [(8, 1), (8, 0), (16, 1), (16, 0), (32, 1), (32, 0), (64, 1), (64, 0)]
def emit():
    for n in range(150):
        values = [[-(1 << bits - 1) if signed else 0, (1 << bits - signed) - 1, n % 100][n % 3]
                  for bits, signed in RANGES]
        numbers.emit(*values)
        print(json.dumps(["numbers", threading.get_native_id(), dict(zip("abcdefgh", values))]))
        text = TEXTS[n % len(TEXTS)]
        words.emit(n, text[:4], text, text[::-1])
        row = {"n": n, "fixed": text[:4], "text": text, "more": text[::-1]}
        print(json.dumps(["words", threading.get_native_id(), row]))
bool(numbers), bool(words)
emit()
def in_thread():
    emit()
    utracefs.flush(60)  # while the thread is there: the daemon asks the kernel whose it is
thread = threading.Thread(target=in_thread)
thread.start()
thread.join()
utracefs.flush(60)
print(json.dumps(os.getpid()))
"""


@attrs.frozen
class Recorded:
    """A recording, and the emitted records, in the order of time: event, thread, fields."""

    path: Path
    emitted: list[tuple[str, int, dict[str, Any]]]
    pid: int

    def fields(self) -> list[tuple[str, dict[str, Any]]]:
        return [(name, fields) for name, _, fields in self.emitted]

    def lines(self) -> list[str]:
        """As `print fmt` shows them, blanks squeezed."""
        return [
            " ".join([f"{name}:", *" ".join(f"{key}={value}" for key, value in fields.items()).split()])
            for name, _, fields in self.emitted
        ]

    def times(self) -> list[int]:
        """As utracefs' own reader finds them."""
        with utracefs.open(self.path) as recording:
            return [record.time_ns for record in recording]


def record(folder: Path, *words: str, directory: str | None = None, texts: str = "all") -> Recorded:
    cli = Cli(folder, directory)
    *lines, pid = cli.out(*words, "--", sys.executable, "-c", PROGRAM, texts).splitlines()
    (path,) = folder.glob("*.d*")
    emitted = [json.loads(line) for line in lines]
    return Recorded(path, [(name, tid, fields) for name, tid, fields in emitted], int(pid))


@pytest.fixture(scope="module")
def trace_dat(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("t"), "record", "-k", "mono")


@pytest.fixture(scope="module")
def perf_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with perf_record(tmp_path_factory.mktemp("p"), "all") as recorded:
        yield recorded


@contextlib.contextmanager
def perf_record(folder: Path, texts: str) -> Iterator[Recorded]:
    words = ["perf", "record", "-m", "1024", "-e", "numbers", "-e", "words"]
    with own_directory() as directory:
        daemon = DaemonProcess(directory)
        daemon.start()
        cli = Cli(Path(directory), directory)
        for declaration in re.findall(r'utracefs\.event\("(.*?)"\)', PROGRAM):
            cli.run("reg", declaration)  # perf record samples nothing emitted before it finds an event
        try:
            yield record(folder, *words, directory=directory, texts=texts)
        finally:
            daemon.stop()


def squeezed(text: bytes) -> list[str]:
    return [" ".join(line.split()) for line in text.decode().splitlines()]


class TestTraceCmd:
    def test_report(self, trace_dat: Recorded) -> None:
        pattern = re.compile(r" *(.+)-(\d+) +\[\d{3}\] +(\d+)\.(\d{9}): (\w+: .*)")
        lines = run_judge("trace-cmd", "report", "-t", "-i", trace_dat.path).decode().splitlines()[1:]
        found = [match.groups() for line in lines if (match := pattern.fullmatch(line))]
        assert len(found) == len(lines) == len(trace_dat.emitted)
        assert [" ".join(one[4].split()) for one in found] == trace_dat.lines()
        assert [int(one[1]) for one in found] == [tid for _, tid, _ in trace_dat.emitted]
        assert [int(one[2] + one[3]) for one in found] == trace_dat.times() == sorted(trace_dat.times())


class TestPerf:
    def test_script(self, perf_data: Recorded) -> None:
        words = ["script", "--ns", "-f", "-F", "trace:pid,tid,time,event,trace", "-i", perf_data.path]
        pattern = re.compile(r"(\d+)/(\d+) (\d+)\.(\d{9}): user_events:(.*)")
        found = [pattern.fullmatch(line) for line in squeezed(run_judge("perf", *words))]
        assert [one and one[5] for one in found] == perf_data.lines()
        assert [one and (int(one[1]), int(one[2])) for one in found] == [
            (perf_data.pid, tid) for _, tid, _ in perf_data.emitted
        ]
        assert [one and int(one[3] + one[4]) for one in found] == perf_data.times()

    def test_report(self, perf_data: Recorded) -> None:
        words = ["report", "--stdio", "-f", "-F", "sample,pid", "-s", "pid", "-i", perf_data.path]
        text = run_judge("perf", *words).decode()
        found = {
            event: {
                int(tid): int(count) for count, tid in re.findall(r"^ +(\d+) +(\d+):", part, re.MULTILINE)
            }
            for event, part in re.findall(
                r"of event 'user_events:(\w+)'\n(.*?)(?=^# Samples|\Z)", text, re.DOTALL | re.MULTILINE
            )
        }
        tids = {tid for _, tid, _ in perf_data.emitted}
        assert found == {name: dict.fromkeys(tids, 150) for name in ("numbers", "words")}
        assert "# Total Lost Samples: 0\n" in text

    def test_convert_to_json(self, perf_data: Recorded, tmp_path: Path) -> None:
        """Debian's perf writes the samples' heads there, not their fields."""
        out = tmp_path / "out.json"
        words = ["data", "convert", "--to-json", out, "-f", "-i", perf_data.path]
        run_judge("perf", *words, may_warn=True)
        samples = json.loads(out.read_text())["samples"]
        assert [(one["timestamp"], one["pid"], one["tid"]) for one in samples] == [
            (time, perf_data.pid, tid)
            for time, (_, tid, _) in zip(perf_data.times(), perf_data.emitted, strict=True)
        ]

    def test_convert_to_ctf(self, tmp_path: Path) -> None:
        """perf 6.1 refuses to convert text that is not ASCII."""
        out = tmp_path / "ctf"
        folder = tmp_path / "ascii"
        folder.mkdir()
        with perf_record(folder, "ascii") as recorded:
            self.convert_to_ctf(recorded, out)

    def convert_to_ctf(self, perf_data: Recorded, out: Path) -> None:
        words = ["data", "convert", "--to-ctf", out, "-f", "-i", perf_data.path]
        run_judge("perf", *words, may_warn=True)
        found = sorted(read_ctf(out, thread=("perf_pid", "perf_tid")))
        assert [one[0] for one in found] == perf_data.times()
        assert [(one[2], one[3]) for one in found] == [
            (perf_data.pid, tid) for _, tid, _ in perf_data.emitted
        ]
        check_fields(found, perf_data, without=("perf_", "common_"))


def check_fields(found: list[list[Any]], recorded: Recorded, without: tuple[str, ...] = ()) -> None:
    """The output of READ. An empty text is not compared: babeltrace2 2.0.4 shows one of an earlier record in
    its place."""
    for (*_, name, fields), (emitted_name, emitted) in zip(found, recorded.fields(), strict=True):
        assert name == f"user_events:{emitted_name}"
        there = {key: value for key, value in fields.items() if not key.startswith(without or "\0")}
        assert there.keys() == emitted.keys()
        for key, value in emitted.items():
            expected = bytes_of(value).hex() if isinstance(value, str) else value
            assert there[key] == expected or value == "", (name, emitted)
