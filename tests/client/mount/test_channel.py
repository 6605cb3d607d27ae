"""A connection that never waits: answers in any order, deadlines, ends."""

from __future__ import annotations

import errno
import gc
import sched
import select
import socket
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from utracefs.mount.channel import ANSWER_S, Channel
from utracefs_protocol.connection import (
    Connection,
    Notification,
    Request,
    encode_error,
    encode_notification,
    encode_response,
)
from utracefs_protocol.messages.data import EnablersWritten
from utracefs_protocol.messages.tracefs import Open, Read, StatPath, Write


class Line:
    """A channel, and the daemon's end of it."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.now = 0.0
        self.timers = sched.scheduler(lambda: self.now)
        self.silent: set[Channel] = set()
        self.events: list[Any] = []
        self.answers: list[Any] = []
        self.channel = Channel(
            ours,
            on_writing=lambda channel, wanted: self.events.append(wanted),
            on_close=lambda channel: self.events.append("close"),
            on_end=lambda channel: self.events.append("end"),
            later=self.later,
            silent=self.silent,
            clock=lambda: self.now,
        )
        self._connection = Connection(max_object=None)

    def ask(self, params: Any, *, answer_s: float | None = ANSWER_S) -> int:
        return self.channel.send(params, self.note, answer_s=answer_s)

    def note(self, result: Any, error: OSError | None) -> None:
        self.answers.append(result if error is None else errno.errorcode[error.errno or 0])

    def later(self, seconds: float, call: Callable[[], object]) -> None:
        self.timers.enter(seconds, 0, call)

    def pass_time(self, now: float) -> None:
        self.now = now
        self.timers.run(blocking=False)

    def asked(self) -> list[Request]:
        """The requests that the daemon has received."""
        found = self.messages()
        assert all(isinstance(message, Request) for message in found)
        return found

    def messages(self) -> list[Any]:
        """The same, notifications as well."""
        found: list[Any] = []
        while True:
            try:
                data = self.theirs.recv(1 << 16)
            except BlockingIOError:
                return found
            if not data:
                return found
            found += self._connection.receive(data)

    def say(self, data: bytes) -> None:
        self.theirs.sendall(data)
        self.channel.on_ready()


@pytest.fixture
def line() -> Iterator[Line]:
    one = Line()
    yield one
    one.channel.close()
    one.theirs.close()


def test_answers_in_any_order(line: Line) -> None:
    first, second = line.ask(StatPath(b"trace")), line.ask(Open(b"trace", 0))
    assert [(one.msgid, one.method) for one in line.asked()] == [(first, "stat"), (second, "open")]
    line.say(encode_response(second, 7) + encode_error(first, errno.ENOENT, "gone")[:5])
    assert line.answers == [7]
    line.say(encode_error(first, errno.ENOENT, "gone")[5:])
    assert line.answers == [7, "ENOENT"]
    line.say(encode_response(first, 1) + encode_notification("news", []))
    assert line.answers == [7, "ENOENT"]


def test_no_answer_in_time(line: Line) -> None:
    line.ask(Read(1, 10), answer_s=None)
    assert not line.timers.queue
    late = line.ask(StatPath(b"trace"))
    line.now = 1.0
    line.ask(StatPath(b"trace"))
    assert line.timers.queue[0].time == ANSWER_S
    line.pass_time(ANSWER_S)
    assert line.answers == ["ETIMEDOUT"]
    assert line.timers.queue[0].time == ANSWER_S + 1
    line.say(encode_response(late, {}))
    assert line.answers == ["ETIMEDOUT"]


def test_one_that_may_take_less_time_is_not_kept_waiting_by_others(line: Line) -> None:
    first = line.ask(StatPath(b"trace"))
    second = line.ask(Read(1, 10), answer_s=2.0)
    assert line.timers.queue[0].time == 2.0
    line.pass_time(2.0)
    assert line.answers == ["ETIMEDOUT"]
    assert line.timers.queue[0].time == ANSWER_S
    assert line.silent == {line.channel}
    line.say(encode_response(second, b"late") + encode_response(first, 1))
    assert line.answers == ["ETIMEDOUT", 1] and not line.silent


def test_a_closed_channel_does_not_stay_until_its_deadline(line: Line) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(
        ours,
        on_writing=lambda channel, wanted: None,
        on_close=lambda channel: None,
        on_end=lambda channel: None,
        later=line.later,
        clock=lambda: line.now,
    )
    channel.send(StatPath(b"trace"), line.note)
    channel.finish(lambda: line.events.append("finished"))
    theirs.close()
    channel.on_ready()
    kept = weakref.ref(channel)
    del channel
    gc.collect()
    assert kept() is None
    line.pass_time(2 * ANSWER_S)
    assert line.answers == ["ENOTCONN"] and line.events == ["finished"]


def test_what_ended_is_not_silent(line: Line) -> None:
    line.ask(StatPath(b"trace"))
    line.pass_time(ANSWER_S)
    assert line.silent
    line.theirs.close()
    line.channel.on_ready()
    assert not line.silent


def test_a_daemon_that_does_not_close_its_end(line: Line) -> None:
    """The next open of the file waits for it."""
    msgid = line.ask(StatPath(b"trace"))
    line.channel.finish(lambda: line.answers.append("finished"))
    line.say(encode_response(msgid, 1))
    assert line.timers.queue[0].time == ANSWER_S
    line.pass_time(ANSWER_S)
    assert line.answers == [1, "finished"]
    assert line.channel.closed


def test_cancel_asks_the_daemon_which_decides(line: Line) -> None:
    msgid = line.ask(Read(1, 10), answer_s=None)
    line.channel.cancel(msgid)
    line.channel.cancel(4711)
    assert [(one.method, one.params) for one in line.asked()] == [("read", [1, 10]), ("cancel", [msgid])]
    assert line.answers == []
    line.say(encode_response(msgid, b"there was something"))
    assert line.answers == [b"there was something"]


def test_what_the_socket_does_not_take_waits(line: Line) -> None:
    large = b"x" * 400_000
    for _ in range(5):
        line.ask(Write(1, large))
    assert line.events == [True]
    received: list[Request] = []
    while len(received) < 5:
        received += line.asked()
        if select.select([], [line.channel], [], 0)[1]:
            line.channel.on_ready()
    assert [one.params[1] for one in received] == [large] * 5
    assert line.events == [True, False]


def test_the_end_of_the_daemon(line: Line) -> None:
    line.ask(Read(1, 10), answer_s=None)
    line.ask(StatPath(b"trace"))
    line.theirs.close()
    line.channel.on_ready()
    assert line.answers == ["ENOTCONN", "ENOTCONN"]
    assert line.events == ["close", "end"]
    assert line.channel.closed
    line.ask(StatPath(b"trace"))
    assert line.answers == ["ENOTCONN"] * 3
    line.channel.close()
    assert line.events == ["close", "end"]


def test_nonsense_is_the_end(line: Line) -> None:
    line.ask(StatPath(b"trace"))
    line.say(b"\xc1\xc1")
    assert line.answers == ["ENOTCONN"]
    assert line.events == ["close", "end"]


def test_sending_into_a_closed_socket_is_no_exception(line: Line) -> None:
    line.theirs.close()
    line.ask(StatPath(b"trace"))
    assert line.answers == []
    line.channel.on_ready()
    assert line.answers == ["ENOTCONN"]


def test_notifications_in_order_with_answers(line: Line) -> None:
    line.channel.on_notification = lambda one: line.answers.append(one.params)
    msgid = line.ask(StatPath(b"trace"))
    line.say(
        encode_notification("news", [1]) + encode_response(msgid, "answer") + encode_notification("news", [2])
    )
    assert line.answers == [[1], "answer", [2]]


def test_the_daemon_says_why_it_ends(line: Line) -> None:
    line.ask(StatPath(b"trace"))
    line.say(encode_notification("error", [errno.EMFILE, "too many"]))
    line.theirs.close()
    line.channel.on_ready()
    line.ask(StatPath(b"trace"))
    assert line.answers == ["EMFILE", "EMFILE"]


def test_notifications_to_the_daemon(line: Line) -> None:
    line.channel.notify(EnablersWritten(3))
    [message] = line.messages()
    assert message == Notification("enablers_written", [3])
    line.channel.close()
    line.channel.notify(EnablersWritten(4))


class TestFinishing:
    def test_what_was_sent_is_carried_out_first(self, line: Line) -> None:
        line.ask(StatPath(b"trace"))
        line.channel.finish(lambda: line.answers.append("finished"))
        [request] = line.asked()
        assert line.theirs.recv(10) == b""
        line.say(encode_response(request.msgid, 1))
        assert line.answers == [1]
        line.theirs.close()
        line.channel.on_ready()
        assert line.answers == [1, "finished"]

    def test_what_could_not_be_sent_yet_comes_before_it(self, line: Line) -> None:
        for _ in range(40):
            line.ask(Write(1, bytes(100_000), None))
        line.channel.finish(lambda: line.answers.append("finished"))
        requests: list[Request] = []
        while line.events[-1] is True or len(requests) < 40:
            requests += line.asked()
            line.channel.on_ready()
        assert len(requests) == 40
        assert line.theirs.recv(10) == b""

    def test_one_that_has_ended(self, line: Line) -> None:
        line.channel.close()
        line.channel.finish(lambda: line.answers.append("finished"))
        assert line.answers == ["finished"]
