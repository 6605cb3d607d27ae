"""Samples over a restart of the daemon: in the file, on the screen."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.integration.conftest import DaemonProcess
from utracefs import Session
from utracefs.cli.common import connect
from utracefs.cli.event_options import Wanted
from utracefs.cli.perf.attached import Attached
from utracefs.cli.perf.sampling import Comms, Line, PerfRecorder
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.tree.tracefs import PerfAttr, Tracefs
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text, parse_format
from utracefs_protocol.pages.perf_ring import Sample

PROGRAM = """
import sys, time, utracefs
e = utracefs.event("many u32 n")
for line in sys.stdin:
    first, last = map(int, line.split())
    deadline = time.monotonic() + 60
    while not (e.registered and e):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    for n in range(first, last):
        e.emit(n)
    utracefs.flush(60)
    print("done", flush=True)
"""


@pytest.mark.parametrize("command", ["record", "trace"])
def test_a_restart_of_the_daemon(mortal: DaemonProcess, eventually: Eventually, command: str) -> None:
    cli = Cli(Path(mortal.directory).parent, mortal.directory)
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=cli.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    process = cli.start("perf", command, "-e", "many")
    try:
        for begin in (0, 100):
            program.stdin.write(f"{begin} {begin + 50}\n")
            program.stdin.flush()
            assert program.stdout.readline() == "done\n"
            if begin == 0:
                mortal.stop()
                mortal.start()
                eventually(
                    lambda: "Used by perf" in cli.out("cat", "user_events_status"), "it is attached again"
                )
        out, error = interrupt(process)
    finally:
        process.kill()
        process.communicate()
        program.stdin.close()
        program.wait(timeout=60)
        program.stdout.close()
    assert process.returncode == 0, error
    assert b"the daemon has ended; waiting" in error
    assert re.search(rb"the daemon is back; [0-9.]+ s are missing", error)
    text = cli.out("perf", "script") if command == "record" else out.decode()
    numbers = [int(line.rpartition("=")[2]) for line in text.splitlines() if "n=" in line]
    assert numbers == [*range(50), *range(100, 150)]
    assert re.search(rb"utracefs: 100 samples, nothing (else )?lost", error)  # else: it was declared later


def test_losses_are_reported_when_the_daemon_was_killed(
    home: Path, mortal: DaemonProcess, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the reader of samples is called as soon as the first sample arrives."""
    monkeypatch.setattr("utracefs.cli.perf.attached.LOST_S", 0.0)
    monkeypatch.setattr("utracefs.cli.perf.sampling.DESCRIBE_S", 1000.0)
    attr = PerfAttr(sample_period=1, data_pages=1)
    with (
        Session(mortal.directory) as session,
        Attached(connect(mortal.directory), [Wanted("work")], attr) as attached,
        PerfRecorder(attached, str(home / "perf.data"), attr) as recorder,
    ):
        event = session.event("work u32 n")
        eventually(lambda: event.registered, "it is there")
        recorder.step()
        eventually(lambda: event, "it is on")
        for n in range(1000):
            event.emit(n)
        session.flush(60)
        attached.look()
        described = home / "perf.data.part.events"
        eventually(lambda: recorder.step() >= 0 and b"name: work" in described.read_bytes(), "described")
        mortal.stop(kill=True)
        attached.look()
        assert attached.is_away
        recorder.drain()
        written = recorder.finish(["perf"])
        assert written.lost > 0 and written.samples + written.lost == 1000
    with PerfDataReader(written.name) as reader:
        samples = reader.samples()
        assert len(list(samples)) == written.samples and samples.lost == written.lost


def test_a_line() -> None:
    event = parse_format(format_text(b"ev", 1030, parse(b"ev u32 a").fields))
    line = Line("user_events:ev", event, ns=True)
    sample = Sample(1, 0, 7, 8, 5_000_000_012, 3, 1, bytes(8) + b"\5\0\0\0")
    assert line.text(sample, "it") == f"{'it':>16} {7:>7}/{8:<7} [003]     5.000000012: user_events:ev: a=5"


def test_an_unknown_thread() -> None:
    def none() -> Tracefs:
        raise FileNotFoundError

    comms = Comms(none)
    assert comms.name(1 << 30) == f":{1 << 30}"
