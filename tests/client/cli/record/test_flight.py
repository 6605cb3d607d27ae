"""`record --flight` and `utracefs dump`: the last records, when something happens; each one once."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.recordings.events import trace_cmd
from tests.forked import Popen
from tests.integration.conftest import running

PROGRAM = """
import os, signal, sys, utracefs
event = utracefs.event("web u32 n; u32 usec")
while not (event.registered and event):
    pass
count, slow, end = map(int, sys.argv[1:4])
for n in range(count):
    event.emit(n, 200_000 if n == slow else 100)
    n % 1000 or utracefs.flush(60)
utracefs.flush(60)
if len(sys.argv) > 4:
    print(flush=True)
    sys.stdin.read()
if end > 0:
    os.kill(os.getpid(), end)
sys.exit(-end)
"""


def program(count: int, slow: int = -1, end: int = 0, *more: str) -> list[str]:
    """end: a signal to itself, or a negative status."""
    return ["--", sys.executable, "-c", PROGRAM, str(count), str(slow), str(end), *more]


def dumps(cli: Cli, name: str = "trace.dat") -> list[Path]:
    return sorted(path for path in cli.home.glob(f"{name}.2*") if ".part" not in path.name)


def values(cli: Cli, file: Path, field: str = "n") -> list[int]:
    return [json.loads(line)["fields"][field] for line in cli.out("export", str(file)).splitlines()]


@pytest.mark.parametrize(("end", "status"), [(signal.SIGSEGV, 139), (signal.SIGKILL, 137), (-3, 3)])
def test_a_command_that_fails(cli: Cli, end: int, status: int) -> None:
    done = cli.run("record", "--flight", "16M", *program(3000, -1, end), status=status)
    (file,) = dumps(cli)
    assert values(cli, file) == list(range(3000))
    assert done.stderr.endswith(b"utracefs: trace.dat.*: 3000 records in 1 file, nothing lost\n")
    assert f"{file.name}: 3000 records, ".encode() in done.stderr
    assert trace_cmd("report", "-i", str(file)).count(" web: ") == 3000
    assert os.listdir(cli.home) == [file.name]


def test_a_command_that_ends_well(cli: Cli) -> None:
    done = cli.run("record", "--flight", "16M", *program(100))
    assert os.listdir(cli.home) == []
    assert done.stderr == (
        b"utracefs: trace.dat.*: 0 records in 0 files, nothing lost; the last 100 records not written:"
        b" the command did not fail\n"
    )


def test_a_child_that_crashes_is_not_the_command(cli: Cli) -> None:
    """The status of the command decides, as for a shell."""
    script = f"'{sys.executable}' -c 'import os; os.abort()'; exit 0"
    cli.run("record", "--flight", "16M", "--", "sh", "-c", script)
    assert dumps(cli) == []


def test_the_oldest_records_are_overwritten_and_counted(cli: Cli) -> None:
    done = cli.run("record", "--flight", "64K", *program(50_000, -1, -1), status=1)
    (file,) = dumps(cli)
    kept = values(cli, file)
    assert kept[-1] == 49_999 and 1000 < len(kept) < 6000 and kept == sorted(kept)
    older = 50_000 - len(kept)
    assert done.stderr.decode().count(f"; {older} older records overwritten\n") == 2
    assert b"nothing lost" in done.stderr


def test_a_window_of_time(traced: Cli, eventually: Eventually) -> None:
    """Pages that ended before the window are left out and counted; the others are whole."""
    process = traced.recording("--flight", "1h", "-e", "web", "-k", "mono")
    traced.run("emit", "web", "1", "1")
    process.send_signal(signal.SIGUSR2)
    eventually(lambda: len(dumps(traced)) == 1, "it is written")
    interrupt(process, signal.SIGTERM)
    short = traced.start("record", "--flight", "1s", "-e", "web", "-o", "short", "-b", "4")
    eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
    traced.run("emit", "web", "1", "1")
    began = os.times().elapsed
    eventually(lambda: os.times().elapsed - began > 1.1, "the second is over")
    traced.run("emit", "web", "2", "1")
    _, error = interrupt(short, signal.SIGTERM)
    found = values(traced, dumps(traced, "short")[0])
    # The two may be on one page, which is then whole.
    assert found in ([2], [1, 2])
    assert (b"1 older record overwritten" in error) == (found == [2])


def test_a_clock_that_counts_no_time(traced: Cli) -> None:
    error = traced.fails("record", "--flight", "1s", "-k", "counter", "--", "true")
    assert error == "utracefs: trace_clock: counter does not count time; --flight needs a SIZE with it\n"
    traced.run("record", "--flight", "1M", "-k", "counter", "--", "true")


def test_a_full_disk_ends_nothing(traced: Cli) -> None:
    """Records of a file that failed are in the next one; the exit status tells it."""
    process = traced.recording("--flight", "1M", "-e", "web")
    traced.run("emit", "web", "1", "1")
    _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    failed = traced.run("dump", status=1)
    assert b": File too large" in failed.stdout and b": not written" in failed.stderr
    assert dumps(traced) == [] and not list(traced.home.glob("*.part*"))
    traced.run("emit", "web", "2", "1")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    traced.run("dump")
    assert [values(traced, file) for file in dumps(traced)] == [[1], [2]]
    traced.run("emit", "web", "3", "1")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    traced.run("dump", status=1)
    traced.run("emit", "web", "4", "1")
    _, error = interrupt(process, signal.SIGTERM)
    assert process.returncode == 1 and error.count(b"File too large") >= 1, error
    assert b"trace.dat.*: 2 records in 2 files" in error
    assert b"; the last 2 records not written: " in error


def test_a_disk_that_gets_full_while_a_file_is_written(traced: Cli) -> None:
    """The file has what fitted, the others are lost, and the exit status tells it."""
    process = traced.recording("--flight", "16M", "-e", "web")
    traced.run("record", "-e", "web", "-o", "other.dat", *program(100_000))
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    _, error = interrupt(process, signal.SIGTERM)
    (file,) = dumps(traced)
    kept = values(traced, file)
    # The files of the first cpus fill the disk, and the program may have changed its cpu.
    assert 0 < len(kept) < 100_000 and kept == sorted({*kept} & {*range(100_000)})
    lost = 100_000 - len(kept)
    assert process.returncode == 1
    assert error.endswith(f"utracefs: trace.dat: the disk was full; {lost} records did not fit\n".encode())


def test_the_daemon_is_killed(traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually) -> None:
    process = traced.start("record", "--flight", "1M")
    eventually(lambda: "-dump" in traced.out("ls", "instances"), "it is about to record")
    traced.run("dump")
    daemon.kill()
    assert process.stderr is not None
    assert b"no record since the last file" in process.stderr.readline()
    assert b"waiting for the next\n" in process.stderr.readline()
    _, error = interrupt(process, signal.SIGTERM)
    assert process.returncode == 1
    assert error.endswith(b"; the records since the last file are lost\n"), error
    assert dumps(traced) == []


def test_the_next_daemon(traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually) -> None:
    """It has the records of the one that was killed; they are written at once, and the recording continues,
    with its filters and its triggers."""
    options = ["--filter", "n < 8", "-R", "snapshot if usec > 9"]
    process = traced.recording("--flight", "60s", "-k", "mono", "-e", "web", *options)
    for n in (1, 8, 2):
        traced.run("emit", "web", str(n), "1")
    daemon.kill()
    daemon.wait()
    with running(traced.home / "d"):
        eventually(lambda: len(dumps(traced)) == 1, "the last minute is written")
        traced.run("emit", "web", "8", "1")
        traced.run("emit", "web", "3", "10")
        eventually(lambda: len(dumps(traced)) == 2, "its trigger works")
        traced.run("emit", "web", "4", "1")
        traced.run("dump")
        _, error = interrupt(process, signal.SIGTERM)
        assert traced.out("ls", "instances") == ""
    assert [values(traced, file) for file in dumps(traced)] == [[1, 2], [3], [4]]
    assert process.returncode == 0 and b"the daemon closed the connection; waiting for the next\n" in error
    assert error.endswith(
        b"trace.dat.*: 4 records in 3 files, nothing lost as far as the daemon had reported before it ended\n"
    )


KILLED = """
import os, sys, utracefs.cli
from utracefs.cli.run.ledger import Ledger
from utracefs.tree.tracefs import Tracefs

what, pid = sys.argv.pop(1), int(sys.argv.pop(1))
left = 2 if what == "swap" else 1

def kill():
    global left
    left -= 1
    left or os.kill(pid, 9)

read, write = Tracefs.read_many, Tracefs.write_file

def read_many(self, reads):
    what == "before" and kill()
    outcomes = read(self, reads)
    if what in ("after", "without") and any(isinstance(outcome, bytes) for outcome in outcomes):
        kill()
        if what == "without" and not left:
            return [ConnectionResetError(104, "gone", "tracefs")] * len(outcomes)
    return outcomes

def write_file(self, path, data, *more):
    taken = write(self, path, data, *more)
    if path.endswith("snapshot") and data == b"1\\n" and what == "swap":
        kill()
    return taken

def ready(self, handle, original=Tracefs.ready):
    is_ready = original(self, handle)
    if what == "moved" and left:
        folder = f"instances/record-{os.getpid()}/per_cpu"
        for cpu, _ in self.list_dir(folder):
            if b"read events: 1" in self.read_file(f"{folder}/{cpu}/stats") and left:
                kill()
    return is_ready

def count(self, original=Ledger.read):
    account = original(self)
    if what == "counts" and account.unread and left:
        kill()
    return account

Ledger.read, Tracefs.ready = count, ready
Tracefs.read_many, Tracefs.write_file = read_many, write_file
utracefs.cli.main()
"""
"""The recorder, whose daemon is killed while it writes a file: at the swap, before and after it first reads
the snapshot, after the pages had been taken, but not sent, and when it has counted a record; or
when it has moved a page into the ring of a recorder."""


def start_killing(cli: Cli, what: str, pid: int, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", KILLED, what, str(pid), "record", *options]
    return Popen(command, env=cli.env, cwd=cli.home, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize(
    ("what", "lost", "comes_back", "found"),
    [
        ("swap", 0, True, [[1, 2], [3]]),
        ("before", 0, True, [[1, 2], [3]]),
        ("after", 0, True, [[1, 2], [3]]),
        ("without", 2, True, [[], [3]]),
        ("swap", 0, False, []),
        ("before", 0, False, [[]]),
        ("after", 0, False, [[1, 2]]),
    ],
)
def test_the_daemon_is_killed_while_a_file_is_written(
    traced: Cli,
    daemon: "subprocess.Popen[bytes]",
    eventually: Eventually,
    what: str,
    lost: int,
    comes_back: bool,
    found: list[list[int]],
) -> None:
    """Each record is in one file, in order; those lost are counted."""
    traced.run("reg", "web u32 n; u32 usec")
    process = start_killing(traced, what, daemon.pid, "--flight", "1M", "-e", "web")
    eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
    for n in (1, 2):
        traced.run("emit", "web", str(n), "1")
    process.send_signal(signal.SIGUSR2)
    daemon.wait()
    if not comes_back:
        assert process.stderr is not None and b"waiting for the next" in process.stderr.readline()
        _, error = interrupt(process, signal.SIGTERM)
        assert [values(traced, file) for file in dumps(traced)] == found
        assert process.returncode == 1 and error.endswith(b"; the records since the last file are lost\n")
        return
    with running(traced.home / "d"):
        eventually(lambda: dumps(traced), "the file is complete")
        traced.run("emit", "web", "3", "1")
        _, error = interrupt(process, signal.SIGTERM)
    assert [values(traced, file) for file in dumps(traced)] == found, error
    assert (b"nothing lost" if not lost else b", 2 lost: 2 overwritten") in error.splitlines()[-1]
    assert list(traced.home.glob("*.part")) == []


def test_the_next_daemon_has_no_records(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually
) -> None:
    """A ring buffer with damaged files, or without room in /dev/shm, begins empty: its records are lost."""
    traced.run("reg", "web u32 n; u32 usec")
    process = start_killing(traced, "counts", daemon.pid, "--flight", "1M", "-e", "web")
    eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
    maps = Path(f"/proc/{daemon.pid}/maps").read_text()
    files = {line.split()[-1] for line in maps.splitlines() if "/buffer.1." in line}
    assert files
    traced.run("emit", "web", "1", "1")
    daemon.wait()
    for file in files:
        os.truncate(file, 100)
    with running(traced.home / "d"):
        assert process.stderr is not None and b"waiting for the next" in process.stderr.readline()
        assert b"the ring buffer did not come back; 1 record lost" in process.stderr.readline()
        traced.run("emit", "web", "2", "1")
        _, error = interrupt(process, signal.SIGTERM)
    assert [values(traced, file) for file in dumps(traced)] == [[2]]
    assert b", 1 lost: 1 overwritten" in error.splitlines()[-1]


def test_only_the_last_files_stay(traced: Cli) -> None:
    (traced.home / "trace.dat.2000010100000000").write_text("foreign")
    process = traced.recording("--flight", "1M", "-e", "web", "--max-files", "2")
    for n in range(4):
        traced.run("emit", "web", str(n), "1")
        traced.run("dump")
    _, error = interrupt(process, signal.SIGTERM)
    foreign, *files = dumps(traced)
    assert foreign.read_text() == "foreign"
    assert [values(traced, file) for file in files] == [[2], [3]]
    assert b"4 records in 4 files (2 removed, --max-files), nothing lost\n" in error


@pytest.mark.parametrize("name", ["f.jsonl", "f.data", "f.ctf"])
def test_other_formats(cli: Cli, name: str) -> None:
    cli.run("record", "--flight", "1M", "-o", name, *program(10, -1, -1), status=1)
    (file,) = cli.home.iterdir()
    assert re.fullmatch(re.escape(name) + r"\.\d{16}", file.name)
    if name == "f.jsonl":
        assert file.read_text().count('"n":') == 10
    assert file.is_dir() == (name == "f.ctf")
