"""The interface of session.h for the library and the preload library, against a real daemon."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.c.programs import Program, started
from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.integration.conftest import DaemonProcess, running

WITHOUT = {"UTRACEFS_DATA_RING": "0"}


@pytest.fixture(params=["ring", "socket"])
def program(request: pytest.FixtureRequest, daemon: DaemonProcess, built: Path) -> Iterator[Program]:
    environment = WITHOUT if request.param == "socket" else {}
    with started(built / "tests" / "sessions", **environment) as program:
        assert program.number("open") == 0
        yield program


def enable(daemon: DaemonProcess, event: str, on: int = 1) -> None:
    with daemon.tree() as tree:
        tree.write_file(f"events/user_events/{event}/enable", b"%d" % on)


def test_the_largest_records(daemon: DaemonProcess, program: Program) -> None:
    program.number("register 0 0 foo u32 a")
    enable(daemon, "foo")
    assert program.number(f"write 0 0 {'00' * 65529}") == 65533
    assert program.number(f"write 0 0 {'00' * 65530}") == 65534  # no space for it anywhere: taken and dropped


def test_a_closed_session_gives_its_references_back(daemon: DaemonProcess, program: Program) -> None:
    program.number("register 0 0 foo u32 a")
    enable(daemon, "foo")
    assert program.number("write 0 0 05000000") == 8
    assert program.number("close 0") == 0
    with daemon.tree() as tree:
        assert b"foo: a=0x5 (5)" in tree.read_file("trace")
        tree.write_file("events/user_events/foo/enable", b"0")
        wait_for(lambda: b"user_events:foo" not in tree.read_file("available_events"))
    for _ in range(100):
        session = program.number("open")
        program.number(f"close {session}")


def test_a_number_of_losses_that_passes_zero(daemon: DaemonProcess, program: Program) -> None:
    """As beside a daemon that is stopped for minutes: which event's they are, is unknown."""
    program.number("register 0 0 foo u32 a")
    enable(daemon, "foo")
    assert program.number(f"lose 0 {(3 << 32) + 5:x}") == 0
    assert program.number("write 0 0 05000000") == 8
    assert program.number("close 0") == 0
    with daemon.tree() as tree:
        assert tree.read_file("events/user_events/foo/stats").startswith(b"emitted: 6\n")
        assert b"\nrecords lost of unknown events: %d\n" % (3 << 32) in tree.read_file("daemon_stats")


def test_losses_of_which_a_killed_daemon_did_not_get_the_report(daemon: DaemonProcess, built: Path) -> None:
    with started(built / "tests" / "sessions", **WITHOUT) as sender:

        def is_sent() -> bool:
            return sender.number("sent 0") == 1

        sender.number("open")
        sender.number("register 0 0 foo u32 a")
        enable(daemon, "foo")
        with daemon.paused():
            until = math.inf
            while time.monotonic() < until:  # the socket is full
                if is_sent():
                    sender.number("lose 0 1")
                    sender.number("write 0 0 05000000")
                    until = time.monotonic() + 1
            daemon.stop(kill=True)
            daemon.start()
        wait_for(is_sent)
        assert sender.number("close 0") == 0
        with daemon.tree() as tree:
            assert tree.read_file("events/user_events/foo/stats").startswith(b"emitted: 2\n")


def virtual_kb(pid: int) -> int:
    [line] = [x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmSize:")]
    return int(line.split()[1])


def test_memory_is_used_again(program: Program) -> None:
    """The memory of a ring stays mapped for a while after its end, some 2 MiB."""
    assert program.number("again 200") == 0
    before = virtual_kb(program.pid)
    assert program.number("again 300") == 0
    assert virtual_kb(program.pid) - before < 100_000


def test_the_daemon_is_stopped(daemon: DaemonProcess, program: Program) -> None:
    """A program waits for it, but not once for each of its events."""
    assert program.number("register 0 0 foo u32 a") == 0
    with daemon.paused():
        began = time.monotonic()
        for n in range(20):
            assert program.number(f"register 0 0 foo{n} u32 a") == -errno.ETIMEDOUT
            assert program.number(f"enable 0 4 {n} 0 foo u32 a") == -errno.ETIMEDOUT
        assert time.monotonic() - began < 20  # and not 80
    wait_for(lambda: program.number("enable 0 4 30 0 foo u32 a") == 0)
    assert program.number("register 0 0 bar u32 a") in (1, 21)  # 21: the daemon has the others, too


@pytest.mark.parametrize("is_repeated", [True, False])
def test_an_event_whose_answer_came_late_has_no_number_of_another(
    directory: Path, built: Path, is_repeated: bool
) -> None:
    """The first daemon gives the numbers itself, its successor takes the wanted ones, in ascending
    order."""
    first = FakeDaemon(directory).start()
    try:
        with started(built / "tests" / "sessions") as program:
            assert program.number("open") == 0
            first.answering.clear()
            assert program.number("register 0 0 late u32 a") == -errno.ETIMEDOUT
            first.answering.set()
            first.kick()
            assert program.number("register 0 0 soon u32 a") == 0
            if is_repeated:
                assert program.number("register 0 0 late u32 a") == 1
            first.stop()
            with running(directory) as daemon, daemon.tree() as tree:
                wait_for(lambda: len(tree.read_file("available_events").splitlines()) == 2)
                enable(daemon, "soon")
                enable(daemon, "late")
                wait_for(lambda: program.number("write 0 0 05000000") == 8)
                if is_repeated:
                    assert program.number("write 0 1 06000000") == 8
                wait_for(lambda: b"soon: a=0x5 (5)" in tree.read_file("trace"))
                assert (b"late: a=0x6 (6)" in tree.read_file("trace")) == is_repeated
                assert b"late: a=0x5" not in tree.read_file("trace")
    finally:
        first.stop()


def test_no_emit_needs_the_lock_before_the_answers(daemon: DaemonProcess, built: Path) -> None:
    """Nor of events that have no room among the requests under way; and all are recorded."""
    with daemon.tree() as tree, started(built / "tests" / "sessions") as program:
        tree.write_file("standing_events", b"user_events:held*\n")
        with daemon.paused():
            assert program.number("held 3000") == 3000
        wait_for(lambda: b"entries-written: 3000/3000 " in tree.read_file("trace"))


def test_no_daemon(built: Path, directory: Path) -> None:
    with started(built / "tests" / "sessions") as program:
        assert program.number("open") == -errno.ENOENT
        assert program.number("enable 0 4 0 0 foo u32 a") == -errno.ENOTCONN
        assert program.number("disable 0 0") == -errno.ENOENT


# ---- enable bits


def test_a_program_closes_all_and_begins_again_at_once(program: Program) -> None:
    """A session that lost its connection makes another one: no error reports the loss."""
    for turn in range(3):
        assert program.number(f"register {turn} 0 again_{turn} u32 a") == 0
        assert program.number(f"enable {turn} 4 0 0 again_{turn} u32 a") == 0
        assert program.number("closefrom") == 0
        assert program.number(f"register {turn} 0 more_{turn} u32 a") == 1
        assert program.number("open") == turn + 1


def test_bits_follow_their_events(daemon: DaemonProcess, program: Program) -> None:
    program.ask("set 0 f0000000f1")
    assert program.number("enable 0 8 33 0 foo u32 a") == 0
    assert program.ask("word 0") == "f0000000f1"
    enable(daemon, "foo")  # returns when the bit is there, or after 1 s on a busy machine
    wait_for(lambda: program.ask("word 0") == "f2000000f1")
    assert program.number("enable 0 8 0 0 foo u32 a") == 0  # enabled already; the bit was set before
    assert program.number("enable 0 8 63 0 bar") == 0
    assert program.ask("word 0") == "f2000000f1"
    enable(daemon, "foo", 0)
    wait_for(lambda: program.ask("word 0") == "f0000000f0")
    enable(daemon, "bar")
    wait_for(lambda: program.ask("word 0") == "800000f0000000f0")
    assert program.number("disable 0 63") == 0
    assert program.ask("word 0") == "f0000000f0"
    assert program.number("disable 0 63") == -errno.ENOENT


def test_a_child_that_finds_no_daemon_has_no_bits(
    daemon: DaemonProcess, program: Program, directory: Path
) -> None:
    assert program.number("enable 0 4 3 0 foo u32 a") == 0
    enable(daemon, "foo")
    wait_for(lambda: program.ask("word 0") == "8")
    socket = directory / "user_events_data"
    socket.rename(directory / "away")
    program.ask("fork")
    wait_for(lambda: program.ask("word 0") == "0")
    (directory / "away").rename(socket)
    wait_for(lambda: program.ask("word 0") == "8")


def test_bits_of_a_child(daemon: DaemonProcess, program: Program) -> None:
    program.number("register 0 0 foo u32 a")
    assert program.number("enable 0 4 3 0 foo u32 a") == 0
    enable(daemon, "foo")
    wait_for(lambda: program.ask("word 0") == "8")
    assert program.number("fork") != program.pid
    assert program.ask("word 0") == "8"
    assert program.number("write 0 0 07000000") == 8
    # By now it has a thread and connections of its own, the parent's are there, too.
    assert program.number("enable 0 4 4 0 foo u32 a") == 0
    enable(daemon, "foo", 0)
    wait_for(lambda: program.ask("word 0") == "0")


def test_a_child_of_a_program_with_bits_ends(built: Path, daemon: DaemonProcess) -> None:
    """Its thread starts within the fork, and finds the lock held."""
    for _ in range(20):
        with started(built / "tests" / "sessions") as program:
            assert program.number("enable 0 4 3 0 foo u32 a") == 0
            assert program.number("fork") != program.pid


@pytest.mark.parametrize("command", ["foo u32 a", "foo ;; u32 a"])
def test_bits_outlive_the_daemon(daemon: DaemonProcess, program: Program, command: str) -> None:
    """Also of an event that its own command string does not find."""
    assert program.number(f"register 0 0 {command}") == 0
    assert program.number(f"enable 0 4 3 0 {command}") == 0
    enable(daemon, "foo")
    wait_for(lambda: program.ask("word 0") == "8")
    daemon.stop(kill=True)
    # Nobody wants the event where there is no daemon.
    wait_for(lambda: program.ask("word 0") == "0", timeout_s=60)
    daemon.start()
    wait_for(lambda: program.ask("word 0") == "8", timeout_s=60)
    wait_for(lambda: program.number("write 0 0 07000000") == 8, timeout_s=60)
    enable(daemon, "foo", 0)
    wait_for(lambda: program.ask("word 0") == "0")
