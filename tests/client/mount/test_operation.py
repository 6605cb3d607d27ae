"""Steps that wait, are answered, fail and are interrupted."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from tests.client.mount.kernel.fake_kernel import FakeChannel
from utracefs.mount.channel import ANSWER_S
from utracefs.mount.operation import Ask, AskEach, Gate, Operation, Steps
from utracefs_protocol.messages.tracefs import Open, Read


class Run:
    """One operation and its end."""

    def __init__(self, steps: Steps) -> None:
        self.ended: list[tuple[bytes, int]] = []
        self.operation = Operation(steps, lambda reply, error: self.ended.append((reply, error)))
        self.operation.start()


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel(lambda params: None)


def asking(channel: Any, request: Any, answer_s: float | None = ANSWER_S) -> Steps:
    data: bytes = yield Ask(channel, request, answer_s=answer_s)
    return data + b"!"


def test_only_what_may_take_for_ever_is_interrupted(channel: FakeChannel) -> None:
    read = Run(asking(channel, Read(1, 10), answer_s=None))
    opened = Run(asking(channel, Open(b"trace", 0)))
    read.operation.interrupt()
    opened.operation.interrupt()
    assert (read.ended, opened.ended) == ([(b"", errno.EINTR)], [])
    channel.answer(b"1")
    opened.operation.interrupt()
    assert opened.ended == [(b"1!", 0)]


def test_an_unexpected_exception_is_eio_and_logged(
    channel: FakeChannel, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        run = Run(asking(channel, Read(1, 10)))
        channel.answer(5)
    assert run.ended == [(b"", errno.EIO)]
    assert "TypeError" in caplog.text


def test_a_gate_lets_in_when_all_have_left() -> None:
    gate = Gate()

    def steps() -> Steps:
        yield gate
        return b"in"

    assert Run(steps()).ended == [(b"in", 0)]
    gate.enter("one")
    gate.enter("two")
    waiting = [Run(steps()), Run(steps())]
    gate.leave("one")
    waiting[0].operation.interrupt()
    assert [one.ended for one in waiting] == [[], []]
    assert not gate.is_open
    gate.leave("two")
    assert [one.ended for one in waiting] == [[(b"in", 0)], [(b"in", 0)]]
    assert gate.is_open


def test_each_has_an_answer_of_its_own(channel: FakeChannel) -> None:
    def steps() -> Steps:
        answers = yield AskEach(channel, [Read(1, 10), Read(2, 10)])  # type: ignore[arg-type]
        nothing = yield AskEach(channel, [])  # type: ignore[arg-type]
        return b"%s %d %d" % (answers[0], answers[1].errno, len(nothing))

    run = Run(steps())
    channel.answer(b"data")
    assert run.ended == []
    run.operation.interrupt()
    channel.answer(error=errno.EBADF)
    assert run.ended == [(b"data 9 0", 0)]
