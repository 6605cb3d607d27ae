"""Records through shared memory: the client's end of the data ring, against the real daemon."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess
from utracefs import Event, Session
from utracefs.cli.run.traced_command import ROOM_KB
from utracefs.tree.tracefs import Tracefs

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs shared memory")


STATS = r"emitted: (\d+)\n(?:bytes.*\n)?(?:lost .*\n)?ftrace: recorded (\d+) filtered 0 lost (\d+)"


@pytest.fixture(autouse=True)
def transport(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UTRACEFS_DATA_RING", raising=False)


@pytest.fixture
def tree(utracefsd: DaemonProcess) -> Iterator[Tracefs]:
    with Tracefs(utracefsd.directory) as made:
        made.write_file("buffer_size_kb", b"16384\n")
        yield made


@pytest.fixture
def session(utracefsd: DaemonProcess, new_session: Callable[..., Session]) -> Session:
    return new_session()


def numbers(tree: Tracefs, event: str = "ring") -> list[int]:
    return [
        int(n) for n in re.findall(rb" %s: n=0x[0-9a-f]+ \((\d+)\)" % event.encode(), tree.read_file("trace"))
    ]


def ring_size(session: Session) -> int:
    return session._native.ring_bytes


def enabled(session: Session, tree: Tracefs, fields: str = "u64 n") -> Event:
    """A new event, on after its declaration."""
    event = session.event(f"ring {fields}")
    wait_for(lambda: not event)
    tree.write_file("events/user_events/ring/enable", b"1\n")
    return event


def test_a_record_is_there_without_a_flush(session: Session, tree: Tracefs) -> None:
    event = enabled(session, tree, "u64 n; __rel_loc char[] s")
    assert ring_size(session) == 16 << 20
    for n in range(1000):
        event.emit(n, "x" * (n % 40))
    assert numbers(tree) == list(range(1000))
    assert session.stats().pending == 0


def test_records_that_no_daemon_took_in_are_pending_at_the_end(
    utracefsd: DaemonProcess, session: Session, tree: Tracefs
) -> None:
    """Neither sent nor lost: a service manager may give the ring to the next daemon."""
    event = enabled(session, tree)
    assert event
    utracefsd.signal(signal.SIGSTOP)
    event.emit(1)
    utracefsd.stop(kill=True)
    wait_for(lambda: not session.stats().connected)
    session.close()
    stats = session.stats()
    assert (stats.emitted, stats.sent, stats.pending, stats.lost) == (1, 0, 1, 0)


@pytest.mark.parametrize("asleep_s", [0, 0.3])
def test_the_time_is_that_of_the_emit(session: Session, tree: Tracefs, asleep_s: float) -> None:
    """Whichever clock the record carries. `trace` shows microseconds."""
    event = enabled(session, tree)
    between = []
    for n in range(200):
        if n % 50 == 0:
            time.sleep(asleep_s)
        begin = time.monotonic_ns()
        event.emit(n)
        between.append((begin, time.monotonic_ns()))
    found = re.findall(rb" (\d+)\.(\d{6}): ring: n=", tree.read_file("trace"))
    assert len(found) == 200
    for (begin, end), (seconds, microseconds) in zip(between, found, strict=True):
        told = int(seconds) * 10**6 + int(microseconds)
        # A look at both clocks may be off when the machine interrupts it, but not by this.
        assert begin // 1000 - 50 <= told <= end // 1000 + 50


def test_a_child_forked_between_two_sessions_knows_its_own_id(
    utracefsd: DaemonProcess, new_session: Callable[..., Session], tree: Tracefs
) -> None:
    first = new_session()
    event = enabled(first, tree)
    event.emit(1)
    assert first.flush(60)
    first.close()
    pid = os.fork()
    if not pid:
        status = 1
        with contextlib.suppress(BaseException):
            second = Session(utracefsd.directory)
            event = second.event("ring u64 n")
            wait_for(lambda: event.registered and event)
            event.emit(2)
            second.close()
            status = 0
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert re.search(rf"-{pid} +\[\d+\] .*ring: n=0x2 \(2\)", tree.read_file("trace").decode())


def test_the_room_of_a_recorded_command_outlasts_a_daemon_without_a_cpu(
    utracefsd: DaemonProcess,
    new_session: Callable[..., Session],
    tree: Tracefs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """30 ms of the fastest loop, with nothing taken in meanwhile."""
    monkeypatch.setenv("UTRACEFS_RING_KB", str(ROOM_KB))
    event = enabled(new_session(), tree, "u64 a; u64 b")
    with utracefsd.paused():
        for n in range(800_000):
            event.emit(n, 5)
    assert event.lost == 0
    stats = tree.read_file("events/user_events/ring/stats").decode()
    assert "emitted: 800000\nbytes: 12800000\nftrace: recorded 800000 filtered 0 lost 0" in stats


def test_the_size_can_be_requested(
    utracefsd: DaemonProcess, new_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    for text, size in [("100", 128 << 10), ("1", 64 << 10), ("4096", 4 << 20), ("nonsense", 16 << 20)]:
        monkeypatch.setenv("UTRACEFS_RING_KB", text)
        session = new_session()
        session.event("ring u64 n").emit(1)
        assert session.flush(60)
        assert ring_size(session) == size
        session.close()


def test_a_program_with_little_address_space_has_a_small_ring(
    utracefsd: DaemonProcess, new_session: Callable[..., Session]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 40, before[1]))
    try:
        session = new_session()
        wait_for(lambda: not session.event("ring u64 n"))
        assert ring_size(session) == 1 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def memory_of_ring() -> int:
    """This process has one."""
    found = [
        os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
        and "utracefs-data-ring" in os.readlink(f"/proc/self/fd/{fd}")
    ]
    assert len(found) == 1
    return found[0]


def test_a_ring_takes_memory_only_in_a_flood(
    utracefsd: DaemonProcess, session: Session, tree: Tracefs
) -> None:
    event = enabled(session, tree)
    for n in range(100_000):
        event.emit(n)
        if n % 500 == 0:
            session.flush(60)
    assert memory_of_ring() < 2 << 20
    with utracefsd.paused():
        for n in range(100_000, 500_000):
            event.emit(n)
        assert memory_of_ring() > 12 << 20
    wait_for(lambda: memory_of_ring() < 2 << 20)
    event.emit(500_000)
    assert session.flush(60)
    assert event.lost == 0
    stats = tree.read_file("events/user_events/ring/stats").decode()
    assert re.findall(STATS, stats) == [("500001", "500001", "0")]
