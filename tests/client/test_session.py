"""A session against a daemon that the test controls."""

from __future__ import annotations

import errno
import functools
import itertools
import logging
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import utracefs
from tests.client.fake_daemon import FakeDaemon, wait_for
from utracefs import Session
from utracefs._event import Event
from utracefs.session_thread import PATIENCE_S
from utracefs_protocol.connection import encode_record, encode_response

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
    assert session.event("one   u32 number".replace("   ", " ")) is event
    assert session.event("one u32 number", multi_format=True) is not event
    assert session.events(["one u32 number", "one u32 number"]) == [event, event]
    assert (event.name, event.declaration, event.fields) == ("one", "one u32 number", ("number",))


@pytest.mark.parametrize(
    "declaration",
    ["test long a", "test u32", "test struct s a", "test:F u32 a", "a/b u32 a", "", "x" * 512, b"\xff u32"],
)
def test_a_wrong_declaration_is_an_error_at_once(session: Session, declaration: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        session.event(declaration)
    with pytest.raises(ValueError, match=r"."):
        session.events(["fine u32 a", declaration])
    assert session.thread.declared == []


def test_the_reason_is_the_daemons() -> None:
    with pytest.raises(ValueError, match="unknown type 'long'; use s64 or u64"):
        Session().event("test long a")
    with pytest.raises(TypeError, match="str or bytes, not int"):
        Session().event(5)  # type: ignore[arg-type]


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
    assert session.flush()
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


# ---- the first record


def test_a_short_script_does_not_lose_its_first_record(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    one, two = session.events([ONE, TWO])
    one.emit(1)
    assert two
    two.emit(2, "zwei")
    assert session.flush()
    assert daemon.last.records == [
        (ONE, b"\x01\0\0\0"),
        (TWO, b"\x02\0\0\0" + (4 + 1 << 16).to_bytes(4, "little") + b"zwei\0"),
    ]
    stats = session.stats()
    assert (stats.connected, stats.emitted, stats.sent, stats.pending, stats.lost) == (True, 2, 2, 0, 0)
    assert stats.events[ONE.decode()].emitted == 1


def test_without_a_daemon_events_are_off_at_once(new_session: NewSession) -> None:
    session = new_session()
    event = session.event(ONE)
    begin = time.monotonic()
    assert not event
    assert time.monotonic() - begin < PATIENCE_S
    event.emit("whatever")
    begin = time.monotonic()
    assert not session.event(TWO)
    assert session.flush(0.2)
    session.close()
    assert time.monotonic() - begin < 0.1
    assert not session.stats().connected


def test_an_event_comes_alive_when_a_daemon_appears(directory: Path, new_session: NewSession) -> None:
    session = new_session()
    one, two = session.events([ONE, TWO])
    assert not one
    daemon = FakeDaemon(directory)
    daemon.enabled_from_start = {ONE}
    daemon.start()
    try:
        wait_for(lambda: bool(one) and two.registered)
        assert not two
        daemon.enable(TWO)
        assert two
        daemon.set_status(ONE, 0)
        assert not one
    finally:
        session.close()
        daemon.stop()


def test_a_daemon_that_does_not_answer_costs_a_quarter_of_a_second_in_all(
    daemon: FakeDaemon, session: Session
) -> None:
    daemon.answering.clear()
    daemon.enabled_from_start = {b"e%d u32 a" % i for i in range(20)}
    events = session.events([f"e{i} u32 a" for i in range(20)])
    begin = time.monotonic()
    assert not any(events)
    took = time.monotonic() - begin
    assert PATIENCE_S * 0.9 < took < PATIENCE_S * 3
    late = session.event("late u32 a")
    begin = time.monotonic()
    assert not late
    assert time.monotonic() - begin < PATIENCE_S / 2
    wait_for(lambda: len(daemon.last.requests) == 22)
    daemon.answering.set()
    daemon.kick()
    wait_for(lambda: all(events))
    assert late.registered


def test_4000_events_with_never_too_many_requests_at_once(daemon: FakeDaemon, session: Session) -> None:
    daemon.answering.clear()
    events = session.events([f"e{i} u64 a; u32 b" for i in range(4000)])
    # the fake daemon fails above MAX_UNANSWERED
    for _ in range(3):
        wait_for(lambda: daemon.clients and daemon.last.most_at_once)
        daemon.kick()
    daemon.answering.set()
    daemon.kick()
    wait_for(lambda: all(event.registered for event in events), 20)
    assert [event.index for event in events] == list(range(4000))


# ---- refused


def test_a_refused_event_stays_off_and_says_why_once(
    daemon: FakeDaemon, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.refuse[ONE] = (errno.EADDRINUSE, "one exists with other fields")
    daemon.enabled_from_start = {TWO}
    one, two = session.events([ONE, TWO])
    assert not one
    assert two
    assert one.error is not None
    assert (one.error.errno, one.error.text) == (errno.EADDRINUSE, "one exists with other fields")
    assert session.stats().events[ONE.decode()].error is one.error
    assert "refused" in repr(one)
    daemon.drop(daemon.last)
    wait_for(lambda: len(daemon.clients) == 2 and bool(two))
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("utracefs", logging.WARNING, "event one is off: one exists with other fields (EADDRINUSE)")
    ]
    del daemon.refuse[ONE]
    daemon.enabled_from_start.add(ONE)
    daemon.drop(daemon.last)
    wait_for(lambda: bool(one))
    assert one.error is None


def test_records_that_the_daemon_refuses_are_counted(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    one, two = session.events([ONE, TWO])
    assert one
    assert two
    daemon.notify(daemon.last, "write_error", [errno.EBADF, two.index, 3])
    daemon.notify(daemon.last, "write_error", [errno.EBADF, two.index, 4])
    daemon.notify(daemon.last, "write_error", [errno.ENOENT, 77, 4])
    daemon.notify(daemon.last, "something_new", ["in", 2030])
    wait_for(lambda: two.refused == {"EBADF": 7})
    stats = session.stats()
    assert stats.refused == 7
    assert stats.events[TWO.decode()].refused == {"EBADF": 7}
    assert one.refused == {}


# ---- connections come and go


def test_events_are_off_while_the_daemon_is_away_and_come_back_with_new_indexes(
    daemon: FakeDaemon, session: Session
) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    one, two = session.events([ONE, TWO])
    assert one
    one.emit(1)
    assert session.flush()
    daemon.stop()
    wait_for(lambda: not one and not two)
    one.emit(2)
    assert not session.stats().connected
    # the next daemon does not want the first event
    daemon.refuse[ONE] = (errno.EMFILE, "too many")
    logging.getLogger("utracefs").disabled = True
    try:
        daemon.start()
        wait_for(lambda: bool(two))
    finally:
        logging.getLogger("utracefs").disabled = False
    assert two.index == 0
    assert not one
    two.emit(3, "")
    assert session.flush()
    assert numbers(daemon.last.payloads(TWO)) == [3]


def test_what_was_not_sent_is_held_for_the_next_daemon(directory: Path, new_session: NewSession) -> None:
    daemon = FakeDaemon(directory)
    daemon.enabled_from_start = {ONE, TWO}
    daemon.read_size = 4096
    daemon.start()
    session = new_session(buffer_kb=8192)
    try:
        filler = session.event("filler char[1000] x")
        one, two = session.events([ONE, TWO])
        assert one
        daemon.enable(b"filler char[1000] x")
        daemon.reading.clear()
        # More than a socket takes. The filler will be refused by the next daemon.
        count = 4000
        for i in range(count):
            filler.emit("")
            one.emit(i)
            two.emit(i, "x")
        assert session.stats().lost == 0
        daemon.stop()
        daemon.refuse[b"filler char[1000] x"] = (errno.EINVAL, "no more of this")
        logging.getLogger("utracefs").disabled = True
        wait_for(lambda: not one)
        held = session.stats().pending
        assert 100 < held < 3 * count
        daemon.start()
        wait_for(lambda: bool(one))
        assert session.flush()
        second = daemon.clients[-1]
        assert len(second.records) + filler.lost == held
        # in order, without a gap of its own making
        for event in (ONE, TWO):
            got = numbers(second.payloads(event))
            assert got == list(range(count - len(got), count))
        assert one.lost == two.lost == 0
        stats = session.stats()
        assert stats.emitted == 3 * count == stats.sent + stats.pending + stats.lost
        assert stats.lost == filler.lost
    finally:
        logging.getLogger("utracefs").disabled = False
        session.close()
        daemon.stop()


def garbage(sock: socket.socket, msgid: int) -> None:
    sock.sendall(b"\xc1")


def a_record(sock: socket.socket, msgid: int) -> None:
    sock.sendall(encode_record(b"\0\0\0\0"))


def a_request(sock: socket.socket, msgid: int) -> None:
    sock.sendall(b"\x94\x00\x01\xa1x\x90")


def unknown_msgid(sock: socket.socket, msgid: int) -> None:
    sock.sendall(encode_response(99, None))


def map_without_descriptor(sock: socket.socket, msgid: int) -> None:
    sock.sendall(encode_response(0, {"size": 4096}))


def map_too_short(sock: socket.socket, msgid: int) -> None:
    fd = os.memfd_create("short")
    os.ftruncate(fd, 4096)
    socket.send_fds(sock, [encode_response(0, {"size": 8192})], [fd])
    os.close(fd)


def map_of_a_pipe(sock: socket.socket, msgid: int) -> None:
    ends = os.pipe()
    socket.send_fds(sock, [encode_response(0, {"size": 4096})], [ends[0]])
    for fd in ends:
        os.close(fd)


def a_map(sock: socket.socket) -> None:
    fd = os.memfd_create("map")
    os.ftruncate(fd, 4096)
    socket.send_fds(sock, [encode_response(0, {"size": 4096})], [fd])
    os.close(fd)


def index_behind_the_map(sock: socket.socket, msgid: int) -> None:
    a_map(sock)
    sock.sendall(encode_response(1, {"status_index": 4096, "write_index": 0, "id": 20}))


def index_zero(sock: socket.socket, msgid: int) -> None:
    a_map(sock)
    sock.sendall(encode_response(1, {"status_index": 0, "write_index": 0, "id": 20}))


def no_index(sock: socket.socket, msgid: int) -> None:
    a_map(sock)
    sock.sendall(encode_response(1, "yes"))


def too_many_descriptors(sock: socket.socket, msgid: int) -> None:
    fds = [os.memfd_create(str(i)) for i in range(6)]
    socket.send_fds(sock, [b"\xc1"], fds)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize(
    "nonsense",
    [
        garbage,
        a_record,
        a_request,
        unknown_msgid,
        map_without_descriptor,
        map_too_short,
        map_of_a_pipe,
        index_behind_the_map,
        index_zero,
        no_index,
        too_many_descriptors,
    ],
)
def test_a_daemon_that_talks_nonsense_is_left_alone_and_tried_again(
    directory: Path,
    new_session: NewSession,
    nonsense: Callable[[socket.socket, int], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(directory / "user_events_data"))
        listener.listen()
        listener.settimeout(5)
        session = new_session()
        event = session.event(ONE)
        sock, _ = listener.accept()
        with sock:
            assert sock.recv(1 << 16)
            nonsense(sock, 1)
            while sock.recv(1 << 16):
                pass
        assert not event
        again, _ = listener.accept()
        again.close()
        assert "cannot be understood" in caplog.text
        session.close()
    finally:
        listener.close()


def test_the_daemons_last_words_are_logged(
    daemon: FakeDaemon, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    event = session.event(ONE)
    assert not event
    daemon.notify(daemon.last, "error", [errno.EPROTO, "I do not like this"])
    daemon.drop(daemon.last)
    wait_for(lambda: len(daemon.clients) == 2)
    assert "I do not like this" in caplog.text


def test_back_off(directory: Path, new_session: NewSession) -> None:
    """A listener that hangs up at once: 50 ms, 100 ms, 200 ms..."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "user_events_data"))
        listener.listen()
        listener.settimeout(5)
        session = new_session()
        session.event(ONE)
        times = []
        for _ in range(4):
            listener.accept()[0].close()
            times.append(time.monotonic())
        pauses = [b - a for a, b in itertools.pairwise(times)]
        assert pauses[0] > 0.04
        assert pauses[1] > 0.09
        assert pauses[2] > 0.19
        session.close()


# ---- flush, close, exit


def test_flush_waits_for_the_daemon_and_not_longer_than_told(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE}
    event = session.event(ONE)
    assert session.flush(0)  # nothing emitted
    event.emit(1)
    daemon.answering.clear()
    begin = time.monotonic()
    assert not session.flush(0.05)
    assert 0.04 < time.monotonic() - begin < 1
    daemon.answering.set()
    daemon.kick()
    assert session.flush()
    assert session.flush(0)
    event.emit(2)
    daemon.answering.clear()
    threading.Timer(0.05, lambda: daemon.drop(daemon.last)).start()
    assert not session.flush(5)
    daemon.answering.set()


def test_close_sends_what_is_pending_and_is_final(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    event = session.event(ONE)
    for i in range(1000):
        event.emit(i)
    session.close()
    assert numbers(daemon.last.payloads(ONE)) == list(range(1000))
    assert not event
    event.emit("nothing", "of", "this", "matters")
    assert session.event(ONE) is event
    assert not session.event(TWO)
    session.event(TWO).emit()
    assert not session.flush(0) or session.stats().pending == 0
    session.close()
    wait_for(lambda: not daemon.last.open)
    with Session() as unused:
        pass
    assert not unused.event(ONE)


def test_close_does_not_wait_for_ever(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE}
    event = session.event(ONE)
    event.emit(1)
    assert session.flush()
    daemon.reading.clear()
    try:
        for i in range(200_000):
            event.emit(i)
        begin = time.monotonic()
        session.close()
        assert time.monotonic() - begin < 1.5
        stats = session.stats()
        assert stats.emitted == 200_001 == stats.sent + stats.lost
        assert stats.pending == 0
        assert event.lost == stats.lost
    finally:
        daemon.reading.set()


# ---- threads and signals


def test_threads_share_a_session(daemon: FakeDaemon, session: Session) -> None:
    declarations = [b"t%d u32 a" % i for i in range(8)]
    daemon.enabled_from_start = {*declarations, ONE}
    begin = threading.Barrier(8)

    def work(mine: int) -> None:
        begin.wait()
        own, shared = session.event(declarations[mine]), session.event(ONE)
        for i in range(500):
            own.emit(i)
            shared.emit(mine << 16 | i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert session.flush(5)
    first = {declaration: numbers(daemon.last.payloads(declaration)) for declaration in declarations}
    # A thread that came while another was starting the session may have missed its first records, in one piece.
    for got in first.values():
        assert got == list(range(500 - len(got), 500))
    shared = numbers(daemon.last.payloads(ONE))
    for mine in range(8):
        got = [number & 0xFFFF for number in shared if number >> 16 == mine]
        assert got == list(range(500 - len(got), 500))
    assert session.stats().emitted == len(daemon.last.records)
    assert len(daemon.clients) == 1


def test_signal_handlers_emit_in_the_middle_of_everything(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE, TWO}
    one, two = session.events([ONE, TWO])
    assert one
    counter = itertools.count()
    depth = 0

    def handler(signum: int, frame: FrameType | None) -> None:
        # Handlers interrupt handlers, but only so deep: a slow machine would do nothing else.
        nonlocal depth
        depth += 1
        if depth < 4:
            signal.setitimer(signal.ITIMER_REAL, 0.0005)
        count = next(counter)
        two.emit(count, "from the handler")
        session.event(f"handler_{count % 5} u32 a").emit(count)
        if count % 50 == 0:
            session.flush(0.5)
        depth -= 1
        signal.setitimer(signal.ITIMER_REAL, 0.0005)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        number = 0
        while two.emitted < 200:
            one.emit(number)
            number += 1
            if number % 64 == 0:
                session.flush(1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert session.flush()
    assert one.lost == two.lost == 0
    assert numbers(daemon.last.payloads(ONE)) == list(range(number))
    # a handler may be interrupted by the next one
    assert sorted(numbers(daemon.last.payloads(TWO))) == list(range(next(counter)))


# ---- the rest


def test_pickled_events_are_declared_again(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utracefs.process_session._sessions", {})
    try:
        event = utracefs.event("one u32 number", multi_format=True)
        assert pickle.loads(pickle.dumps(event)) is event
        assert utracefs.events([ONE]) == [utracefs.event(ONE)]
        assert utracefs.flush()
        assert utracefs.stats().emitted == 0
        with Session() as other, pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(other.event(ONE))
    finally:
        utracefs.close()
    assert isinstance(event, Event)


@pytest.mark.parametrize(
    ("given", "capacity"),
    [("64", 1 << 16), ("100", 1 << 17), ("", 1 << 20), ("-5", 1 << 20), ("much", 1 << 20), ("1", 4096)],
)
def test_buffer_size_from_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, capacity: int) -> None:
    monkeypatch.setenv("UTRACEFS_BUFFER_KB", given)
    assert Session().thread.fifo.capacity == capacity


def test_sizes_and_directories_that_cannot_be() -> None:
    assert Session(buffer_kb=8).thread.fifo.capacity == 8192
    for size in (0, 3, 1 << 21):
        with pytest.raises(ValueError, match="buffer_kb"):
            Session(buffer_kb=size)
    for directory in ("", "a\0b"):
        with pytest.raises(ValueError, match="cannot be a directory"):
            Session(directory)


def test_when_no_thread_can_be_started_events_are_off(
    daemon: FakeDaemon, new_session: NewSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("_thread.start_new_thread", "threading.Thread.start"):
        session = new_session()
        with monkeypatch.context() as patch:
            patch.setattr(f"utracefs.session_thread.{name}", refuse)
            event = session.event(ONE)
            wait_for(functools.partial(lambda ended: ended.thread.state == "closed", session))
        assert not event
        event.emit(1)
        assert not session.stats().connected
    assert daemon.clients == []
