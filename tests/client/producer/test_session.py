"""The functions that applications call, against a daemon that the test controls."""

from __future__ import annotations

import errno
import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable
from importlib import metadata
from types import FrameType

import pytest

import utracefs
from tests.client.conftest import native_threads
from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from utracefs import Session, Stats
from utracefs.producer import fork

NewSession = Callable[..., Session]

ONE = b"one u32 number"
TWO = b"two u32 number; __rel_loc char[] text"


def numbers(payloads: list[bytes]) -> list[int]:
    return [int.from_bytes(payload[:4], "little") for payload in payloads]


# ---- declaring


def test_the_same_declaration_is_the_same_event(session: Session) -> None:
    event = session.event("one u32 number")
    assert session.event(b"one u32 number") is event
    assert session.event("one u32 number;") is event
    assert session.event("one   u32 number") is event
    assert session.event("one u32 number", multi_format=True) is not event
    assert session.events(["one u32 number", "one u32 number"]) == [event, event]
    assert (event.name, event.declaration, event.fields) == ("one", "one u32 number", ("number",))


@pytest.mark.parametrize(
    "declaration",
    ["test long a", "test u32", "a/b u32 a", "", b"\xff u32"],
    ids=["type", "field", "name", "empty", "bytes"],
)
def test_a_wrong_declaration_is_an_error_at_once_and_none_is_made(
    session: Session, declaration: str | bytes
) -> None:
    with pytest.raises(ValueError) as alone:
        session.event(declaration)
    with pytest.raises(ValueError) as among_others:
        session.events(["fine u32 a", declaration])
    assert str(among_others.value) == str(alone.value)
    assert session.stats().events == {}
    assert "utracefs" not in native_threads()


def test_what_goes_over_the_wire_is_the_spelling_that_always_matches(
    daemon: FakeDaemon, session: Session
) -> None:
    session.event("odd u32 a;;u32 b; ")
    assert wait_for(lambda: daemon.last.names) == [b"odd u32 a; u32 b"]
    glued = b"long " + b";".join(b"u8 a%02d" % i for i in range(72))
    assert len(glued) <= 511 < len(glued.replace(b";", b"; "))
    session.event(glued)
    wait_for(lambda: daemon.last.names[1:] == [glued])


def test_bytes_that_are_not_utf8(daemon: FakeDaemon, session: Session) -> None:
    name = b"caf\xe9 u32 a\xe9"
    daemon.enabled_from_start.add(name)
    event = session.event(name)
    event.emit(**{event.fields[0]: 5})
    assert session.flush(60)
    assert daemon.last.records == [(name, b"\x05\0\0\0")]


def test_flags_are_sent(daemon: FakeDaemon, session: Session) -> None:
    session.event(ONE, persist=True, multi_format=True)
    session.event(TWO)
    regs = wait_for(
        lambda: [r for r in daemon.last.requests if r.method == "DIAG_IOCSREG"][1:] and daemon.last.requests
    )
    assert [r.params for r in regs if r.method == "DIAG_IOCSREG"] == [
        [{"name_args": ONE.decode(), "flags": 3}],
        [{"name_args": TWO.decode()}],
    ]


# ---- records


def test_a_short_script_does_not_lose_its_first_record(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    one, two = session.events([ONE, TWO])
    one.emit(1)
    assert two
    two.emit(2, "zwei")
    assert session.flush(60)
    assert daemon.last.records == [
        (ONE, b"\x01\0\0\0"),
        (TWO, b"\x02\0\0\0" + (4 + 1 << 16).to_bytes(4, "little") + b"zwei\0"),
    ]
    stats = session.stats()
    assert (stats.connected, stats.emitted, stats.sent, stats.pending, stats.lost) == (True, 2, 2, 0, 0)
    assert stats.events[ONE.decode()].emitted == 1


def test_records_that_the_daemon_refuses_are_counted(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    one, two = session.events([ONE, TWO])
    one.emit(1)
    wait_for(lambda: one.registered and two.registered)
    daemon.notify(daemon.last, "write_error", [errno.EBADF, two.index, 3])
    daemon.notify(daemon.last, "write_error", [errno.EBADF, two.index, 4])
    daemon.notify(daemon.last, "write_error", [errno.ENOENT, 77, 4])
    daemon.notify(daemon.last, "something_new", ["in", 2030])
    wait_for(lambda: two.refused == {"EBADF": 7})
    stats = session.stats()
    assert stats.refused == 7
    assert stats.events[TWO.decode()].refused == {"EBADF": 7}
    assert one.refused == {}


def test_close_sends_what_is_pending_and_is_final(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    event = session.event(ONE)
    for i in range(1000):
        event.emit(i)
    session.close()
    wait_for(lambda: len(daemon.last.payloads(ONE)) >= 1000)  # they are in the socket
    assert numbers(daemon.last.payloads(ONE)) == list(range(1000))
    assert not event
    event.emit("nothing matters")
    assert session.event(ONE) is event
    assert not session.event(TWO)
    session.event(TWO).emit(1, "")
    assert not session.flush(0) or session.stats().pending == 0
    session.close()
    wait_for(lambda: not daemon.last.open)
    with Session() as unused:
        pass
    assert not unused.event(ONE)


def test_threads_that_declare_an_event_at_once_lose_nothing(daemon: FakeDaemon, session: Session) -> None:
    """Each gets the Event registered, also the thread that did not make it."""
    rounds = 200
    daemon.enabled_from_start = {b"race%d u32 t" % k for k in range(rounds)}
    begin = threading.Barrier(4)

    def work(mine: int) -> None:
        for k in range(rounds):
            begin.wait()
            session.event(f"race{k} u32 t").emit(mine)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert session.flush(60)
    assert session.stats().emitted == len(daemon.last.records) == 4 * rounds


def test_an_event_of_a_closed_session_does_not_keep_it(session: Session) -> None:
    """Not even a second spelling of its declaration, which finds the event in the table."""
    event = session.event("one u32 number")
    session.close()
    assert session.event("one u32 number;") is event
    assert session not in fork._watched.values()


# ---- settings


@pytest.mark.parametrize(
    ("given", "records"),
    [("64", 1 << 16), ("100", 1 << 17), ("", 1 << 20), ("-5", 1 << 20), ("much", 1 << 20), ("1", 1 << 16)],
)
def test_buffer_size_from_the_environment(
    daemon: FakeDaemon, new_session: NewSession, monkeypatch: pytest.MonkeyPatch, given: str, records: int
) -> None:
    """Without a data ring; each of these records takes 1,024 bytes there."""
    monkeypatch.setenv("UTRACEFS_BUFFER_KB", given)
    session = new_session()
    text = b"t char[1000] a"
    daemon.enabled_from_start.add(text)
    event = session.event(text)
    assert event
    daemon.reading.clear()
    try:
        for _ in range(4000):
            event.emit("")
        stats = session.stats()
        assert stats.lost > 0
        kept = 1024 * (stats.sent + stats.pending)
        assert records - 2048 <= kept <= records + (1 << 20)
    finally:
        daemon.reading.set()


def test_invalid_sizes_and_directories() -> None:
    for size in (0, 3, 1 << 21):
        with pytest.raises(ValueError, match="buffer_kb"):
            Session(buffer_kb=size)
    for directory in ("", "a\0b"):
        with pytest.raises(ValueError, match="cannot be a directory"):
            Session(directory)


def test_one_declaration_is_not_several() -> None:
    session = Session()
    for one in ("abc", b"abc"):
        with pytest.raises(TypeError, match="for one there is event"):
            session.events(one)  # type: ignore[arg-type]
    session.close()


def test_a_time_is_a_number() -> None:
    session = Session()
    with pytest.raises(TypeError, match="timeout_s is a number of seconds, not str"):
        session.flush("x")  # type: ignore[arg-type]
    session.close()


def test_the_version() -> None:
    assert utracefs.__version__ == metadata.version("utracefs")


# ---- signals


@pytest.mark.parametrize("on", [True, False])
def test_a_handler_that_emits_while_its_thread_waits_does_not_wait_itself(
    daemon: FakeDaemon, new_session: NewSession, on: bool
) -> None:
    """Its records are in the ring until the answer says whether a consumer is attached."""
    session = new_session()
    daemon.answering.clear()
    daemon.enabled_from_start = {ONE, TWO} if on else {ONE}
    two, one = session.events([TWO, ONE])
    counter = itertools.count()
    one.emit(1)

    def handler(signum: int, frame: FrameType | None) -> None:
        two.emit(count := next(counter), "from the handler")
        if count == 20:
            daemon.answering.set()
            daemon.kick()
        signal.setitimer(signal.ITIMER_REAL, 0 if daemon.answering.is_set() else 0.002)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    begin = time.monotonic()
    try:
        assert session.flush(60)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)  # no handler that sets the timer again
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 10
    wait_for(lambda: two.registered)
    assert session.flush(60)
    assert numbers(daemon.last.payloads(TWO)) == (list(range(21)) if on else [])
    assert (two.emitted, two.lost) == (21 if on else 0, 0)


def test_they_cannot_be_changed() -> None:
    stats = Stats(connected=False, emitted=3, sent=1, pending=1, lost=1, refused=0, events={})
    with pytest.raises(AttributeError):
        stats.lost = 0  # type: ignore[misc]
