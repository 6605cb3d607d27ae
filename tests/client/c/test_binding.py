"""What binding.h promises to bindings, against a real daemon."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.c.programs import Program, started
from tests.client.c.test_connection import values
from tests.client.c.test_emit import WAYS, of_way
from tests.client.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess

COUNT = "c_count u32 i"


@pytest.fixture(params=["ring", "socket"])
def program(request: pytest.FixtureRequest, events_on: None, built: Path) -> Iterator[Program]:
    with started(built / "tests" / "binding", **of_way(request.param)) as program:
        yield program


def test_an_event_on_the_process_session(daemon: DaemonProcess, program: Program) -> None:
    assert program.number("threads") == 1
    assert program.number(f"attach 0 {COUNT}") == 0
    assert program.number("look 0") == 1
    assert program.number("emit 0 0 100") == 100
    assert program.number("flush 0 5000") == 0
    assert program.ask("stats 0") == "1 0 0"
    assert program.ask("event 0").split()[:3] == ["0", "0", "0"]
    assert values(daemon) == list(range(100))


def test_a_detached_event_is_not_written(daemon: DaemonProcess, program: Program) -> None:
    """The test program fills its memory; another event of the registration follows the daemon still."""
    assert program.number(f"attach 0 {COUNT}") == 0
    assert program.number(f"attach 0 {COUNT}") == 1
    assert program.number("look 1") == 1
    assert program.number("detach 0") == 0
    daemon.stop(kill=True)
    wait_for(lambda: program.number("look 1") == 0, timeout_s=30)
    daemon.start()
    wait_for(lambda: program.number("look 1") == 1, timeout_s=30)


def test_sessions_of_several_directories(
    daemon: DaemonProcess, program: Program, directory: Path, tmp_path: Path
) -> None:
    other = DaemonProcess(str(tmp_path / "other"))
    other.start()
    try:
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
    finally:
        other.stop()


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


def test_a_child_of_a_paused_program(daemon: DaemonProcess, program: Program) -> None:
    program.number(f"attach 0 {COUNT}")
    assert program.number("emit 0 1") == 1
    assert program.number("pause") == 0
    assert program.number("fork") != program.pid
    assert program.number("threads") == 1
    assert program.number("flush 0 5000") == 0  # nothing was emitted here
    assert program.number("emit 0 2") == 1
    assert program.number("flush 0 5000") == 0
    assert program.number("threads") == 2
    assert sorted(values(daemon)) == [1, 2]


def test_the_end_of_the_interpreter(daemon: DaemonProcess, program: Program, directory: Path) -> None:
    other = program.number(f"session {directory} 0")
    events = [program.number(f"attach {session} {COUNT}") for session in (0, other)]
    assert [program.number(f"emit {event} {event}") for event in events] == [1, 1]
    assert program.number("end") == 0
    assert [program.number(f"look {event}") for event in events] == [0, 0]
    assert program.number(f"attach 0 {COUNT}") == -errno.ECANCELED
    assert program.number("flush 0 5000") == 0
    assert sorted(values(daemon)) == [0, 1]


def test_flush_without_a_daemon(built: Path, directory: Path) -> None:
    with started(built / "tests" / "binding") as program:
        assert program.number("flush 0 100") == 0  # there is nothing
        program.number(f"attach 0 {COUNT}")
        assert program.number("flush 0 100") == 0
        assert program.number("look 0") == 0
        assert program.ask("stats 0") == "0 0 0"
        assert program.ask("event 0").split()[2] == str(errno.ENOTCONN)
        assert program.number("close 0") == program.number("close 0") == 0


def test_a_wait_is_interrupted(daemon: DaemonProcess, program: Program) -> None:
    program.number(f"attach 0 {COUNT}")
    assert program.number("emit 0 1") == 1
    assert daemon.process
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert program.number("alarm 50") == 0
        assert program.number("flush 0 20000") == -errno.EINTR
        assert time.monotonic() - began < 10
        assert program.number("flush 0 50") == -errno.ETIMEDOUT
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert program.number("flush 0 20000") == 0


@WAYS
def test_what_a_signal_handler_emits_meanwhile_is_kept(
    events_on: None, daemon: DaemonProcess, built: Path, way: str
) -> None:
    with started(built / "tests" / "binding", **of_way(way) | {"UTRACEFS_PATIENCE_S": "0.2"}) as program:
        assert daemon.process
        daemon.process.send_signal(signal.SIGSTOP)
        try:
            program.number(f"attach 0 {COUNT}")
            program.number("emit-while-waiting 0 7")
            assert program.number("look 0") == 0
        finally:
            daemon.process.send_signal(signal.SIGCONT)
        wait_for(lambda: program.number("look 0") == 1)
        assert program.number("flush 0 20000") == 0
        assert values(daemon) == [7]


def test_warnings(daemon: DaemonProcess, program: Program) -> None:
    program.number("attach 0 c_warned u32 a")
    assert program.number("look 0") == 1
    program.number("attach 0 c_warned u32 b")
    assert program.number("look 1") == 0
    assert program.ask("warning").startswith("event c_warned is off: ")
    assert program.ask("warning") == ""
    assert program.ask("event 1").split()[2] == str(errno.EADDRINUSE)
