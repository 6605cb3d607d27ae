"""`utracefs dump`."""

import re
import signal
import subprocess

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.cli.record.test_flight import dumps, program, values


def test_dump_and_signals_while_a_program_emits(traced: Cli, eventually: Eventually) -> None:
    """Many at once: each record is in one file."""
    process = traced.start("record", "--flight", "16M", "-e", "web", "--max-files", "500")
    eventually(lambda: "-dump" in traced.out("ls", "instances"), "it records")
    emitting = subprocess.Popen(program(20_000)[1:], env=traced.env)
    asking = [traced.start("dump") for _ in range(4)]
    while emitting.poll() is None:
        process.send_signal(signal.SIGUSR2)
    for one in asking:
        out, error = one.communicate(timeout=60)
        assert one.returncode == 0, error
        assert re.match(rb"flight-\d+: trace.dat(\.\d+: \d+ records?,|: no record since)", out), out
    _, error = interrupt(process, signal.SIGTERM)
    assert process.returncode == 0
    found = [n for file in dumps(traced) for n in values(traced, file)]
    assert found == list(range(20_000))
    assert b": 20000 records in " in error and b"nothing lost" in error
    assert not list(traced.home.glob("*.part*"))
    assert "no flight recorder is running" in traced.fails("dump")


def test_a_recorder_that_does_not_answer_or_is_killed(traced: Cli, eventually: Eventually) -> None:
    process = traced.start("record", "--flight", "1M", "-B", "mine")
    eventually(lambda: "mine-dump" in traced.out("ls", "instances"), "it starts")
    traced.run("dump", "-B", "mine")  # from its answer on, both instances end with it
    process.send_signal(signal.SIGSTOP)
    error = traced.fails("dump", "-B", "mine", "--timeout", "0.1")
    assert error == "utracefs: mine: the flight recorder does not answer; is it stopped?\n"
    waiting = traced.start("dump", "-B", "mine")
    process.kill()
    process.communicate()
    _, text = waiting.communicate(timeout=60)
    assert waiting.returncode == 1
    assert text.startswith((b"utracefs: mine: ", b"utracefs: instances/mine")), text
    eventually(lambda: traced.out("ls", "instances") == "", "its instances are gone")
