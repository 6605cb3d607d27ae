"""`utracefs record -o` by the ending of the file: formats, refusals before the command runs, and the
recording that remains if the conversion fails."""

import os
import re
import signal
import stat
import sys

import pytest

import utracefs
from tests.client.cli.kit import Cli, interrupt
from tests.client.cli.record.test_record import emitter
from tests.client.export.test_ctf import read as read_ctf

THREADS = """
import os, threading, utracefs
event = utracefs.event("ticks u32 n")
bool(event)
taken = threading.Event()
def emit(n):
    event.emit(n)
    taken.wait()  # the number of an ended thread looks like an invented one
threads = [threading.Thread(target=emit, args=(n,)) for n in range(3)]
for thread in threads:
    thread.start()
utracefs.flush(60)
taken.set()
print(os.getpid())
"""


@pytest.mark.parametrize("name", ["perf.data", "o.csv", "o.ctf", "o"])
def test_the_ending_says_the_format(cli: Cli, name: str) -> None:
    """All of them: test_export.py."""
    done = cli.run("record", "-o", name, *emitter(300))
    assert re.fullmatch(
        rb"utracefs: %s: 300 records, [\d.]+ [kM]B, nothing lost\n" % name.encode(), done.stderr
    )
    assert os.listdir(cli.home) == [name]
    path = cli.home / name
    if name.endswith(".ctf"):
        assert [row[6]["n"] for row in read_ctf(path)] == list(range(300))
    elif path.suffix != ".csv":
        with utracefs.open(path) as recording:
            assert [record.fields["n"] for record in recording] == list(range(300))
    else:
        assert path.read_text().count("text 299") == 1
        assert path.read_text().count("ticks") == 300


def test_processes_are_known(cli: Cli) -> None:
    """A trace.dat knows threads only; what is made of it at the end knows more."""
    done = cli.run("record", "-o", "o.data", "--", sys.executable, "-c", THREADS)
    with utracefs.open(cli.home / "o.data") as recording:
        records = list(recording)
    assert {record.pid for record in records} == {int(done.stdout)}
    assert len({record.tid for record in records}) == 3


@pytest.mark.parametrize(
    ("output", "status", "says"),
    [
        ("o.xyz", 2, "o.xyz: which format?"),
        ("o.html", 2, "made by 'utracefs report --html'"),
        ("nowhere/o.json", 1, "nowhere/o.json: No such file or directory"),
        ("there", 1, "there: is a directory"),
        ("there.csv", 1, "there.csv: Is a directory"),
        ("there/", 1, "there/: exists; ctf makes a new directory"),
        ("old.csv", 1, "old.csv.recorded.dat: is in the way"),
    ],
)
def test_an_unwritable_output_is_reported_before_the_command_runs(
    cli: Cli, output: str, status: int, says: str
) -> None:
    (cli.home / "there").mkdir()
    (cli.home / "there.csv").mkdir()
    (cli.home / "old.csv.recorded.dat").write_text("an older one")
    before = sorted(os.listdir(cli.home))
    done = cli.run("record", "-o", output, "--", "sh", "-c", "touch ran", status=status)
    assert says in done.stderr.decode() and done.stderr.count(b"\n") == 1
    assert sorted(os.listdir(cli.home)) == before


def test_the_recording_stays_where_it_cannot_be_converted(cli: Cli) -> None:
    """Somebody makes the folder meanwhile."""
    _, *words = emitter(20)
    done = cli.run(
        "record", "-o", "o.ctf", "--", "sh", "-c", 'mkdir o.ctf; exec "$@"', "sh", *words, status=1
    )
    assert b"o.ctf.recorded.dat: 20 records, " in done.stderr  # and what was lost
    assert b"; the recording is in " in done.stderr
    path = cli.home / "o.ctf.recorded.dat"
    assert sorted(os.listdir(cli.home)) == ["o.ctf", path.name] and stat.S_ISREG(path.stat().st_mode)
    with utracefs.open(path) as recording:
        assert len(list(recording)) == 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_conversion(cli: Cli, number: signal.Signals) -> None:
    """The pipe takes 64 KiB, so the conversion waits; the recording stays."""
    os.mkfifo(cli.home / "x.csv")
    process = cli.start("record", "-o", "x.csv", *emitter(3000))
    with (cli.home / "x.csv").open("rb"):
        error = interrupt(process, number)[1].decode()
    assert process.returncode == 128 + number
    hint = "`utracefs export` converts it"
    assert f"x.csv: was interrupted; the recording is in {cli.home}/x.csv.recorded.dat, {hint}\n" in error
    assert cli.out("report", "x.csv.recorded.dat").count("ticks:") == 3000
