"""The interface of binding.h, against a real daemon."""

from __future__ import annotations

import errno
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.c.programs import Program, started
from tests.client.c.test_connection import values
from tests.client.c.test_emit import WAYS, of_way
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess, running
from tests.integration.test_conservation import stats

COUNT = "c_count u32 i"


@pytest.fixture(params=["ring", "socket"])
def program(request: pytest.FixtureRequest, events_on: None, built: Path) -> Iterator[Program]:
    with started(built / "tests" / "binding", **of_way(request.param)) as program:
        yield program


def test_a_detached_event_is_not_written(daemon: DaemonProcess, program: Program) -> None:
    """The test program fills its memory; another event of the registration follows the daemon still."""
    assert program.number(f"attach 0 {COUNT}") == 0
    assert program.number(f"attach 0 {COUNT}") == 1
    assert program.number("look 1") == 1
    assert program.number("detach 0") == 0
    daemon.stop(kill=True)
    wait_for(lambda: program.number("look 1") == 0, timeout_s=60)
    daemon.start()
    wait_for(lambda: program.number("look 1") == 1, timeout_s=60)


def test_sessions_of_several_directories(
    daemon: DaemonProcess, program: Program, directory: Path, tmp_path: Path
) -> None:
    with running(tmp_path / "other") as other:
        with other.tree() as tree:
            tree.write_file("standing_events", b"user_events:c_*\n")
        one, two = program.number(f"session {directory} 0"), program.number(f"session {tmp_path / 'other'} 0")
        first, second = program.number(f"attach {one} {COUNT}"), program.number(f"attach {two} {COUNT}")
        assert program.number(f"emit {first} 1") == program.number(f"emit {second} 2") == 1
        assert program.number(f"flush {one} 5000") == program.number(f"flush {two} 5000") == 0
        assert (values(daemon), values(other)) == ([1], [2])
        assert program.number(f"close {two}") == 0
        assert program.number(f"look {second}") == 0
        assert program.number(f"attach {two} {COUNT}") == -errno.ECANCELED
        assert program.number(f"emit {first} 3") == 1
        assert program.number(f"free {two}") == 0
        assert program.number(f"emit {second} 4") == 0
        assert program.number(f"detach {second}") == 0
        assert program.number(f"flush {one} 5000") == 0
        assert values(daemon) == [1, 3]


def test_the_thread_ends_for_a_fork(daemon: DaemonProcess, program: Program) -> None:
    assert program.number("pause") == 0
    assert program.number("resume") == 0
    assert program.number("threads") == 1  # none was started
    assert program.number(f"attach 0 {COUNT}") == 0
    assert program.number("look 0") == 1
    assert program.number("threads") == 2
    assert program.number("pause") == program.number("pause") == 0
    assert program.number("threads") == 1
    assert program.number("emit 0 1") == 1
    assert program.number("flush 0 5000") == 0
    assert program.number(f"attach 0 {COUNT}") == 1
    assert program.number("resume") == 0
    assert program.number("threads") == 1
    assert program.number("resume") == 0
    assert program.number("threads") == 2
    assert program.number("emit 0 2") == 1
    assert program.number("flush 0 5000") == 0
    assert values(daemon) == [1, 2]


def test_the_thread_starts_again_without_a_descriptor(daemon: DaemonProcess, program: Program) -> None:
    """It connects when there is one again."""
    program.number(f"attach 0 {COUNT}")
    assert program.number("look 0") == 1
    limits = resource.prlimit(program.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    assert program.number("closefrom") == 0
    wait_for(lambda: program.number("look 0") == 0)
    assert program.number("pause") == program.number("resume") == 0
    resource.prlimit(program.pid, resource.RLIMIT_NOFILE, limits)
    wait_for(lambda: program.number("look 0") == 1, timeout_s=60)
    assert program.number("emit 0 1") == 1


def test_a_child_of_a_paused_program(daemon: DaemonProcess, program: Program) -> None:
    program.number(f"attach 0 {COUNT}")
    assert program.number("emit 0 1") == 1
    assert program.number("flush 0 5000") == 0
    assert program.number("pause") == 0
    assert program.number("fork") != program.pid
    assert program.number("threads") == 1
    assert program.number("flush 0 5000") == 0  # nothing was emitted here
    assert program.number("emit 0 2") == 1
    assert program.number("flush 0 5000") == 0
    assert program.number("threads") == 2
    assert sorted(values(daemon)) == [1, 2]


def test_a_wait_is_interrupted(daemon: DaemonProcess, program: Program) -> None:
    program.number(f"attach 0 {COUNT}")
    assert program.number("emit 0 1") == 1
    with daemon.paused():
        began = time.monotonic()
        assert program.number("alarm 50") == 0
        assert program.number("flush 0 20000") == -errno.EINTR
        assert time.monotonic() - began < 10
        assert program.number("flush 0 50") == -errno.ETIMEDOUT
    assert program.number("flush 0 20000") == 0


def nr_switches(program: Program) -> int:
    """How often its threads went to sleep."""
    texts = [path.read_text() for path in Path(f"/proc/{program.pid}/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in texts)


def test_a_wait_sleeps(daemon: DaemonProcess, program: Program) -> None:
    """And does not wake the native thread, whose step would wake it: with 40,000 switches in this time."""
    program.number(f"attach 0 {COUNT}")
    assert program.number("emit 0 1") == 1
    with daemon.paused():
        before = nr_switches(program)
        assert program.number("flush 0 500") == -errno.ETIMEDOUT
        assert nr_switches(program) - before < 200


def test_what_a_child_loses_that_is_cut_off_is_counted(
    daemon: DaemonProcess, program: Program, directory: Path
) -> None:
    """A refusal, too. Over the socket its parent tells it, at the latest when it ends."""
    program.number(f"attach 0 {COUNT}")
    assert program.number("look 0") == 1
    (directory / "user_events_data").rename(directory / "away")
    assert program.number("fork") != program.pid
    assert program.number("emit 0 1") == 0
    program.number("refuse 0")
    assert program.number("emit 0 2") == 0
    assert program.ask("event 0").split()[0] == "3"
    (directory / "away").rename(directory / "user_events_data")
    assert program.process.stdin
    program.process.stdin.close()
    with daemon.tree() as tree:
        file = "events/user_events/c_count/stats"
        wait_for(lambda: stats(tree.read_file(file))[1]["ftrace"]["lost"] == 3)


@WAYS
def test_all_that_was_emitted_before_an_answer_that_says_off_is_in_one_number(
    daemon: DaemonProcess, built: Path, way: str
) -> None:
    """Records that the daemon refuses before the program reads its answer, later ones, which it reports a
    second after that, and records that found the ring full."""
    sizes = {"UTRACEFS_RING_KB": "64", "UTRACEFS_BUFFER_KB": "64"}
    with started(built / "tests" / "binding", **sizes, **of_way(way)) as program:
        with daemon.paused():
            program.number(f"attach 0 {COUNT}")
            assert program.number("emit 0 0 10000") < 10_000
            assert program.number("pause") == 0
        with daemon.tree() as tree:
            assert tree.read_file("events/user_events/c_count/enable") == b"0\n"
        program.number("emit 0 0 3")
        assert program.number("resume") == program.number("flush 0 20000") == 0
        wait_for(lambda: program.ask("event 0").split() == ["0", "0", "0", "10003"])


def test_neither_close_nor_end_waits_for_a_daemon_that_is_stopped(
    events_on: None, daemon: DaemonProcess, built: Path, directory: Path
) -> None:
    """Half a second, for all sessions together at the end."""
    environment = {"UTRACEFS_DATA_RING": "0", "UTRACEFS_BUFFER_KB": "8192"}
    with started(built / "tests" / "binding", **environment) as program:
        sessions = [0, *(program.number(f"session {directory} 0") for _ in range(19))]
        events = [program.number(f"attach {session} {COUNT}") for session in sessions]
        assert [program.number(f"look {event}") for event in events] == [1] * len(events)
        with daemon.paused():
            for event in events:  # more than the socket takes
                assert program.number(f"emit {event} 0 40000") == 40_000
            began = time.monotonic()
            assert program.number("close 1") == 0
            assert time.monotonic() - began > 0.4
            began = time.monotonic()
            assert program.number("end") == 0
            assert time.monotonic() - began < 9  # and not 19 times as long
            lost, pending = program.ask("event 1").split()[:2]
            assert int(lost) > 1000 and pending == "0"


def test_a_ring_stays_for_a_record_that_is_being_written_when_the_program_closes_it(
    events_on: None, built: Path
) -> None:
    """Until it closes the fourth after it, be it of another session: the daemon takes in what is committed
    meanwhile."""
    with started(built / "tests" / "binding") as program:
        assert program.number(f"attach 0 {COUNT}") == 0
        assert program.number("look 0") == 1
        assert program.number("reserve 0 0") == 1
        seen = []
        while 0 not in seen:  # (a connection may be closed before it has a ring)
            assert program.number("closefrom") == 0
            assert program.number("look 0") == 1
            wait_for(lambda: program.number("emit 0 1") == 1 and program.number("flush 0 20000") == 0)
            seen.append(program.number("is-read"))
        assert 5 <= len(seen) <= 8
