"""bpftrace --from: the programs of a recording, whose time is that of the records."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.bpf.workload import plain
from tests.integration.conftest import DaemonProcess
from tests.judges import judge, library

judge("bpftrace")

EMITTER = """
import time, utracefs
request = utracefs.event("request u16 status; u32 usec; __rel_loc char[] path")
for second in range(3):
    for n in range(300):
        request.emit((200, 404, 500)[n % 3], (100, 200, 400)[n % 3], ("/index", "/cart", "/login")[n % 3])
    time.sleep(0.5)
"""
REQUEST = "tracepoint:user_events:request"


def utracefs(*words: object) -> str:
    command = [sys.executable, "-m", "utracefs.cli", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


@pytest.fixture
def recording(daemon: DaemonProcess, tmp_path: Path) -> Path:
    emit = [sys.executable, "-c", EMITTER]
    utracefs("--dir", daemon.directory, "record", "-o", tmp_path / "trace.dat", "--", *emit)
    return tmp_path / "trace.dat"


def test_intervals_are_of_the_records_time(recording: Path) -> None:
    """And the tool sees its maps as they were then, though it runs faster."""
    text = f"{REQUEST} {{ @ = count(); }} interval:ms:500 {{ print(@); clear(@); }}"
    assert plain(utracefs("bpftrace", "--from", recording, "-e", text)).split() == ["@:", "300"] * 3


def test_output_is_not_lost(recording: Path) -> None:
    """However much: the reader of a recording waits for the tool."""
    text = f'{REQUEST} {{ printf("%s%200s\\n", str(args->path), "x"); }}'
    assert (
        len(re.findall(r"^/.* x$", utracefs("bpftrace", "--from", recording, "-e", text), re.MULTILINE))
        == 900
    )


def test_several_recordings(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "b.dat").write_bytes(recording.read_bytes())
    text = f"{REQUEST} {{ @ = count(); }}"
    out = utracefs("bpftrace", "--from", recording, "--from", tmp_path / "b.dat", "-e", text)
    assert plain(out) == "@: 1800"


def test_the_same_numbers_as_hist_and_sql(daemon: DaemonProcess, tmp_path: Path) -> None:
    library("duckdb")
    file = tmp_path / "trace.dat"
    utracefs("--dir", daemon.directory, "reg", "request u16 status; u32 usec; __rel_loc char[] path")
    with daemon.tree() as tree:
        trigger = "events/user_events/request/trigger"
        tree.write_file(trigger, b"hist:keys=path,status:vals=usec\n")
        utracefs("--dir", daemon.directory, "record", "-o", file, "--", sys.executable, "-c", EMITTER)
        hist = tree.read_file("events/user_events/request/hist").decode()
    row = r"path: +(\S+) *, status: +(\d+) +} hitcount: +(\d+) +usec: +(\d+)"
    by_hist = sorted((path, *map(int, numbers)) for path, *numbers in re.findall(row, hist))
    query = "select path, status, count(*), sum(usec) from request group by all"
    by_sql = sorted(
        (path, *map(int, numbers))
        for path, *numbers in (line.split(",") for line in utracefs("sql", "--csv", file, query).split()[1:])
    )
    text = f"{REQUEST} {{ @c[str(args->path), args->status] = count();"
    text += " @s[str(args->path), args->status] = sum(args->usec); }"
    found = re.findall(r"@.\[(\S+), (\d+)\]: (\d+)", plain(utracefs("bpftrace", "--from", file, "-e", text)))
    counts, sums = found[: len(found) // 2], found[len(found) // 2 :]
    by_bpftrace = [(path, int(status), int(n), int(sums[i][2])) for i, (path, status, n) in enumerate(counts)]
    assert len(by_hist) == 3, hist
    assert by_hist == by_sql == sorted(by_bpftrace)


def test_output_of_some_records_is_of_their_time(recording: Path) -> None:
    text = f"{REQUEST} {{ @++; if (@ == 300) {{ print(@); clear(@); }} }}"
    assert plain(utracefs("bpftrace", "--from", recording, "-e", text)).split() == ["@:", "300"] * 3
    text = f"{REQUEST} {{ @++; if (@ == 5) {{ exit(); }} }}"
    assert plain(utracefs("bpftrace", "--from", recording, "-e", text)) == "@: 5"


def test_intervals_without_events(recording: Path) -> None:
    text = 'interval:ms:500 { printf("x\\n"); }'
    assert plain(utracefs("bpftrace", "--from", recording, "-e", text)).split() == ["x", "x"]
