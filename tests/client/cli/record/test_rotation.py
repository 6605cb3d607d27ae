"""`record --switch-output` and `--compress`: each record is in one file, and each file is complete."""

import os
import re
import resource
import signal
import subprocess
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.cli.record.test_flight import dumps, program, start_killing, values
from tests.client.recordings.events import trace_cmd
from tests.integration.conftest import running

MORE_THAN_FITS = 8_000_000
"""Records in the largest ring of pages and the ring buffer."""


def test_by_size(traced: Cli, eventually: Eventually) -> None:
    process = traced.start("record", "--switch-output", "100K", "-e", "web", "-b", "8000")
    eventually(lambda: traced.out("ls", "instances") != "", "it records")
    for number in range(1, 4):
        subprocess.run(program(10_000)[1:], env=traced.env, check=True)
        eventually(lambda: len(dumps(traced)) >= number, "a file is written")  # noqa: B023
    _, error = interrupt(process, signal.SIGTERM)
    files = dumps(traced)
    assert [n for file in files for n in values(traced, file)] == [*range(10_000)] * 3
    text = error.decode()
    assert re.search(rf"trace.dat.\*: 30000 records in {len(files)} files, \d.* MB, nothing lost\n$", text), (
        text
    )
    for file in files:
        kept = re.search(rf"{file.name}: (\d+) record", text)
        assert kept and trace_cmd("report", "-i", str(file)).count(" web: ") == int(kept[1])
        assert f"records of events: {kept[1]}\n" in traced.out("report", "--stat", str(file))
    assert not list(traced.home.glob("*.part*"))


def test_a_size_below_that_of_an_empty_file(traced: Cli) -> None:
    done = traced.run("record", "--switch-output", "1K", "--duration", "0.5")
    assert b" 0 records in 1 file, " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("how", ["1h", "signal"])
def test_at_a_signal(traced: Cli, eventually: Eventually, how: str) -> None:
    process = traced.recording("--switch-output", how, "-e", "web")
    for n in range(2):
        traced.run("emit", "web", str(n), "1")
        process.send_signal(signal.SIGUSR2)
        eventually(lambda: len(dumps(traced)) == n + 1, "it is written")  # noqa: B023
    traced.run("emit", "web", "2", "1")
    _, error = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0, error
    assert [values(traced, file) for file in dumps(traced)] == [[0], [1], [2]]
    assert not (traced.home / "trace.dat").exists()


def test_by_time(traced: Cli, eventually: Eventually) -> None:
    """A file is written also of a time without records, as perf does."""
    process = traced.start("record", "--switch-output", "1s")
    eventually(lambda: len(dumps(traced)) == 2, "two seconds are over")
    interrupt(process, signal.SIGTERM)
    assert all(values(traced, file) == [] for file in dumps(traced))


def test_many_signals(traced: Cli, eventually: Eventually) -> None:
    process = traced.start("record", "--switch-output", "signal", "-e", "web", "-b", "8000")
    eventually(lambda: traced.out("ls", "instances") != "", "it records")
    emitting = subprocess.Popen(program(20_000)[1:], env=traced.env)
    while emitting.poll() is None:
        process.send_signal(signal.SIGUSR2)
    _, error = interrupt(process, signal.SIGTERM)
    files = dumps(traced)
    assert [n for file in files for n in values(traced, file)] == list(range(20_000)) and len(files) > 1
    assert not list(traced.home.glob("*.part*"))
    assert f"20000 records in {len(files)} files".encode() in error and b"nothing lost" in error


def rss_kb(process: "subprocess.Popen[bytes]") -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1])


def test_sixty_files_later_the_memory_is_the_same(traced: Cli, eventually: Eventually) -> None:
    """And so is the disk: weeks, in a short time."""
    traced.run("reg", "web u32 n; u32 usec")
    log = traced.home / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            traced.command("record", "--switch-output", "signal", "--max-files", "3", "-e", "web"),
            env=traced.env,
            cwd=traced.home,
            stderr=errors,
        )
    try:
        eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
        sizes = []
        for number in range(1, 81):
            process.send_signal(signal.SIGUSR2)
            eventually(lambda: log.read_text().count("\n") >= number, "a file is written")  # noqa: B023
            assert len(dumps(traced)) <= 3
            if number in (20, 80):
                sizes.append(rss_kb(process))
        assert sizes[1] - sizes[0] < 1024, sizes
        assert len(os.listdir(f"/proc/{process.pid}/fd")) < 20
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0
    assert " records in 81 files (78 removed, --max-files)" in log.read_text()


def test_a_full_disk(traced: Cli, eventually: Eventually) -> None:
    """The present file continues, and no record is lost before it is full, too."""
    process = traced.recording("--switch-output", "signal", "-e", "web")
    traced.run("emit", "web", "1", "1")
    eventually(lambda: any(p.stat().st_size > 4096 for p in traced.home.glob("*.part")), "it is in the part")
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    process.send_signal(signal.SIGUSR2)
    traced.run("emit", "web", "2", "1")
    assert process.stderr is not None
    assert b"the present file continues" in process.stderr.readline()
    assert dumps(traced) == []
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    eventually(lambda: len(dumps(traced)) == 1, "it is written with space again")
    _, error = interrupt(process, signal.SIGTERM)
    assert [n for file in dumps(traced) for n in values(traced, file)] == [1, 2]
    assert process.returncode == 0 and b"2 records in 2 files" in error and b"nothing lost" in error


def test_the_next_daemon_has_a_new_ring_buffer(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually
) -> None:
    """Its numbers begin with 0: those of the old one do not hide losses."""
    process = traced.recording("--switch-output", "1h", "-e", "web")
    subprocess.run(program(100)[1:], env=traced.env, check=True)
    process.send_signal(signal.SIGUSR2)
    eventually(lambda: len(dumps(traced)) == 1, "it is written")
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    files = {line.split()[-1] for line in maps.splitlines() if "/buffer.1." in line}
    assert files
    daemon.kill()
    daemon.wait()
    for file in files:
        os.truncate(file, 100)
    with running(traced.home / "d"):
        assert process.stderr is not None
        said = iter(process.stderr.readline, b"")
        assert any(
            b"ring buffer did not come back; lost with it, as far as known: 0 records\n" in line
            for line in said
        )
        eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
        process.send_signal(signal.SIGSTOP)
        env = {**traced.env, "UTRACEFS_RING_KB": "65536"}
        subprocess.run(program(MORE_THAN_FITS)[1:], env=env, check=True)
        process.send_signal(signal.SIGCONT)
        _, error = interrupt(process, signal.SIGTERM)
    found = re.search(
        rb": (\d+) records in 2 files, .*, (\d+) lost: .*\d overwritten", error.splitlines()[-1]
    )
    assert found and sum(map(int, found.groups())) == 100 + MORE_THAN_FITS


def test_the_daemon_is_killed_when_it_has_moved_a_page(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually
) -> None:
    """The page is in the recorder's ring, not in the buffer of the next daemon."""
    traced.run("reg", "web u32 n; u32 usec")
    process = start_killing(traced, "moved", daemon.pid, "--switch-output", "1h", "-e", "web")
    eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
    traced.run("emit", "web", "1", "1")
    daemon.wait()
    with running(traced.home / "d"):
        eventually(
            lambda: "to the tree: 2 of" in traced.out("cat", "daemon_stats"), "it is connected, as we are"
        )
        traced.run("emit", "web", "2", "1")
        _, error = interrupt(process, signal.SIGTERM)
    assert [values(traced, file) for file in dumps(traced)] == [[1, 2]]
    assert b", nothing lost as far as" in error.splitlines()[-1]


@pytest.mark.parametrize("option", ["--compress", "--compress=zlib"])
def test_compressed(cli: Cli, option: str) -> None:
    cli.run("record", option, "-b", "8000", *program(30_000))
    path = cli.home / "trace.dat"
    assert values(cli, path) == list(range(30_000))
    assert path.stat().st_size < 300_000
    name = path.read_bytes()[18:].split(b"\0")[0].decode()
    assert name in option or option == "--compress"
    if f"\t{name}, " in trace_cmd("list", "-c"):
        assert trace_cmd("report", "-i", str(path)) == cli.out("report")
    assert os.listdir(cli.home) == ["trace.dat"]


def test_a_flight_recorder_compresses_too(cli: Cli) -> None:
    cli.run("record", "--flight", "8M", "--compress=zlib", *program(5000, -1, -1), status=1)
    (file,) = dumps(cli)
    assert values(cli, file) == list(range(5000)) and file.read_bytes()[18:22] == b"zlib"
