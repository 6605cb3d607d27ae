"""Connections that come and go under a session, against a daemon that the test controls."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.client.daemons.real_daemon import run_python
from tests.client.producer.test_session import ONE, TWO, NewSession, numbers
from utracefs import Session
from utracefs.producer import _session
from utracefs_protocol.connection import encode_response

# ---- the first connection


def test_without_a_daemon_events_are_off_at_once(new_session: NewSession) -> None:
    session = new_session()
    event = session.event(ONE)
    assert not event
    event.emit("whatever")
    assert not session.event(TWO)
    assert session.flush(1000)
    session.close()
    assert not session.stats().connected


def test_nobody_waits_for_a_daemon_that_does_not_answer(daemon: FakeDaemon, session: Session) -> None:
    """Events are on until it says that they are off, and records that are emitted meanwhile arrive."""
    daemon.answering.clear()
    daemon.enabled_from_start = {ONE}
    begin = time.monotonic()
    events = session.events([ONE, *(f"e{i} u32 a" for i in range(60))])
    assert all(events) and session.event("late u32 a").enabled
    events[0].emit(1)
    assert time.monotonic() - begin < 12
    wait_for(lambda: len(daemon.last.requests) == 63)
    daemon.answering.set()
    daemon.kick()
    wait_for(lambda: not any(events[1:]) and numbers(daemon.last.payloads(ONE)) == [1])
    assert events[0]


def test_4000_events_with_never_too_many_requests_at_once(daemon: FakeDaemon, session: Session) -> None:
    daemon.answering.clear()
    events = session.events([f"e{i} u64 a; u32 b" for i in range(4000)])
    # the fake daemon fails above 2,048
    for _ in range(3):
        # (All of them: it answers what arrives while it answers before what has waited.)
        wait_for(lambda: daemon.clients and daemon.last.most_at_once == 2048)
        daemon.kick()
    daemon.answering.set()
    daemon.kick()
    wait_for(lambda: all(event.registered for event in events), 60)
    assert [event.index for event in events] == list(range(4000))


# ---- connections come and go


def test_a_refused_event_stays_off_and_says_why_once(
    daemon: FakeDaemon, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.refuse[ONE] = (errno.EADDRINUSE, "one exists with other fields")
    daemon.enabled_from_start = {TWO}
    one, two = session.events([ONE, TWO])
    wait_for(lambda: one.error is not None)
    assert two and not one
    assert one.error is not None
    assert (one.error.errno, one.error.text) == (errno.EADDRINUSE, "one exists with other fields")
    assert session.stats().events[ONE.decode()].error is one.error
    assert "refused" in repr(one)
    daemon.drop(daemon.last)
    wait_for(lambda: len(daemon.clients) == 2 and bool(two) and bool(caplog.records))
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("utracefs", logging.WARNING, "event one is off: one exists with other fields (EADDRINUSE)")
    ]
    del daemon.refuse[ONE]
    daemon.enabled_from_start.add(ONE)
    daemon.drop(daemon.last)
    wait_for(lambda: one.registered and one)
    assert one.error is None


def test_the_daemons_last_words_are_logged(
    daemon: FakeDaemon, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    event = session.event(ONE)
    wait_for(lambda: not event)
    daemon.notify(daemon.last, "error", [errno.EPROTO, "I do not like this"])
    wait_for(lambda: len(daemon.clients) == 2)
    wait_for(lambda: "I do not like this" in caplog.text)


def warned_of(session: Session, daemon: FakeDaemon) -> None:
    """Something to warn of; the session continues."""
    daemon.refuse[ONE] = (errno.EADDRINUSE, "one exists with other fields")
    daemon.enabled_from_start = {TWO}
    one = session.event(ONE)
    wait_for(lambda: one.error)
    assert session.event(TWO)
    daemon.drop(daemon.last)
    wait_for(lambda: len(daemon.clients) == 2 and bool(session.event(TWO)))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts for standard error, which is another file in each test."""
    said: list[str] = []
    monkeypatch.setattr(_session, "say", said.append)
    return said


@pytest.mark.parametrize("raised", [ValueError("broken"), SystemExit(3), KeyboardInterrupt()])
def test_a_logging_handler_that_fails_costs_the_message(
    daemon: FakeDaemon, session: Session, raised: BaseException, said: list[str]
) -> None:
    class Failing(logging.Handler):
        def handle(self, record: logging.LogRecord) -> bool:
            raise raised

    logger, failing = logging.getLogger("utracefs"), Failing()
    logger.addHandler(failing)
    try:
        warned_of(session, daemon)
        wait_for(lambda: said)
    finally:
        logger.removeHandler(failing)
    assert said == [
        f"event one is off: one exists with other fields (EADDRINUSE) (and logging failed: {raised!r})"
    ]


@pytest.mark.parametrize("logging_there", [None, object()], ids=["not imported", "half imported"])
def test_a_program_without_logging_is_warned_on_its_standard_error(
    daemon: FakeDaemon,
    session: Session,
    logging_there: object,
    said: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "logging", logging_there)
    warned_of(session, daemon)
    assert sys.modules["logging"] is logging_there
    wait_for(lambda: said)
    (text,) = said
    assert text.startswith("event one is off: one exists with other fields (EADDRINUSE)")


def test_back_off(directory: Path, new_session: NewSession) -> None:
    """A listener that hangs up at once: 50 ms, 100 ms, 200 ms..."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "user_events_data"))
        listener.listen()
        listener.settimeout(60)
        session = new_session()
        session.event(ONE)
        times = []
        for _ in range(4):
            accepted, _ = listener.accept()
            times.append(time.monotonic())  # it backs off from the end of the connection
            accepted.close()
        pauses = [b - a for a, b in itertools.pairwise(times)]
        assert pauses[0] > 0.04
        assert pauses[1] > 0.09
        assert pauses[2] > 0.19
        session.close()


# ---- a daemon that is none


def garbage(sock: socket.socket) -> None:
    sock.sendall(b"\xc1")


def a_map(sock: socket.socket) -> None:
    fd = os.memfd_create("map")
    os.ftruncate(fd, 4096)
    socket.send_fds(sock, [encode_response(0, {"size": 4096, "protocol": 2})], [fd])
    os.close(fd)


def map_too_short(sock: socket.socket) -> None:
    fd = os.memfd_create("short")
    os.ftruncate(fd, 4096)
    socket.send_fds(sock, [encode_response(0, {"size": 8192})], [fd])
    os.close(fd)


def map_of_a_pipe(sock: socket.socket) -> None:
    ends = os.pipe()
    socket.send_fds(sock, [encode_response(0, {"size": 4096})], [ends[0]])
    for fd in ends:
        os.close(fd)


def index_behind_the_map(sock: socket.socket) -> None:
    a_map(sock)
    sock.sendall(encode_response(1, {"status_index": 4096, "write_index": 0, "id": 20}))


def too_many_descriptors(sock: socket.socket) -> None:
    fds = [os.memfd_create(str(i)) for i in range(6)]
    socket.send_fds(sock, [b"\xc1"], fds)
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize(
    "nonsense",
    [garbage, map_too_short, map_of_a_pipe, index_behind_the_map, too_many_descriptors],
)
def test_a_daemon_that_talks_nonsense_is_left_alone_and_tried_again(
    directory: Path,
    new_session: NewSession,
    nonsense: Callable[[socket.socket], None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UTRACEFS_DATA_RING", "0")
    others = [os.memfd_create("other") for _ in range(64)]
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(directory / "user_events_data"))
        listener.listen()
        listener.settimeout(60)
        session = new_session()
        event = session.event(ONE)
        sock, _ = listener.accept()
        with sock:
            assert sock.recv(1 << 16)
            nonsense(sock)
            while sock.recv(1 << 16):
                pass
        wait_for(lambda: not event)
        again, _ = listener.accept()
        again.close()
        wait_for(lambda: "cannot be understood" in caplog.text or "no free descriptor" in caplog.text)
        session.close()
    finally:
        listener.close()
        for fd in others:  # of the program: all of them are open
            os.close(fd)


# ---- flush and close


def test_flush_waits_for_the_daemon_at_most_its_timeout(daemon: FakeDaemon, session: Session) -> None:
    daemon.enabled_from_start = {ONE}
    event = session.event(ONE)
    assert session.flush(0)  # nothing emitted
    event.emit(1)
    daemon.answering.clear()
    begin = time.monotonic()
    assert not session.flush(0.05)
    assert time.monotonic() - begin > 0.04
    daemon.answering.set()
    daemon.kick()
    assert session.flush(60)
    assert session.flush(0)
    event.emit(2)
    daemon.answering.clear()
    threading.Timer(0.05, lambda: daemon.drop(daemon.last)).start()
    assert not session.flush(5)
    daemon.answering.set()


# ---- a program that the thread must not change


WAITS_FOR_A_SIGNAL = """
import os, signal, sys, threading, time, utracefs
utracefs.event("ticks u32 n")
deadline = time.monotonic() + 60
while len(os.listdir("/proc/self/task")) < 2 and time.monotonic() < deadline:
    time.sleep(0.01)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
for _ in range(100):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert signal.sigtimedwait([signal.SIGUSR1], 5).si_signo == signal.SIGUSR1
print(len(os.listdir("/proc/self/task")), threading.active_count())
"""


def test_a_signal_that_the_program_waits_for_does_not_find_the_thread(directory: Path) -> None:
    """The kernel gives it to any thread that has not blocked it, and its default action ends the process."""
    done = run_python("-c", WAITS_FOR_A_SIGNAL, UTRACEFS_DIR=str(directory))
    assert (done.returncode, done.stdout) == (0, "2 1\n"), done.stderr


OF_AN_OLDER_DAEMON = """
import os, sys, time, utracefs
event = utracefs.event("one u64 n")
while not (event.registered and event):
    time.sleep(0.001)
print("on", flush=True)
sys.stdin.readline()
parent = os.getpid()
if os.fork() == 0:
    event.emit(0)
    print("forked", flush=True)
    while os.getppid() == parent:
        event.emit(1)
        time.sleep(0.01)
    os._exit(0)
sys.stdin.readline()
os._exit(0)
"""


def test_a_child_of_a_program_of_an_older_daemon_beside_the_next_one(daemon: FakeDaemon) -> None:
    """It connects as to the older one, and hears from the status of the other."""
    command = b"one u64 n"
    daemon.enabled_from_start = {command}
    daemon.protocol = 1
    with subprocess.Popen(
        [sys.executable, "-c", OF_AN_OLDER_DAEMON], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        assert program.stdout.readline() == "on\n"
        daemon.stop()
        program.stdin.write("fork\n")
        program.stdin.flush()
        assert program.stdout.readline() == "forked\n"
        daemon.protocol = 2
        daemon.start()
        wait_for(lambda: any(client.payloads(command) for client in daemon.clients))
