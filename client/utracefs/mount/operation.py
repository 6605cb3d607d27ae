"""A request of the kernel as a generator that yields the waits of its steps.

    def _read(self, ...):                        steps: runs until it has to wait
        data = yield Ask(channel, Read(...))     waits for the daemon's answer; its OSError is raised here
        return data                              the reply; an OSError is the reply's errno

An Operation runs such steps, answers once, and passes an interrupt (FUSE_INTERRUPT) on to the present wait.
Nothing here blocks: `Ask` sends, and the answer resumes the steps.
"""

import errno
import logging
import os
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias

import attrs

from utracefs.mount.channel import ANSWER_S, Channel, Resume
from utracefs_protocol.messages.rows import Params

logger = logging.getLogger("utracefs.mount")


class Wait:
    """A wait that steps may yield. start: calls `resume` once, now or later."""

    def __init__(self, start: Callable[[Resume], object]) -> None:
        self.start = start

    def interrupt(self) -> None:
        """Request an early end of the wait; most have no effect: they are short."""


Steps: TypeAlias = Generator[Wait, Any, bytes]


@attrs.define(eq=False)
class Ask(Wait):
    """A request to the daemon; returns its result. answer_s: see Channel.send."""

    _channel: Channel
    _request: Params
    _answer_s: float | None = attrs.field(default=ANSWER_S, kw_only=True)
    _msgid: int = attrs.field(init=False, default=0)

    def start(self, resume: Resume) -> None:
        self._msgid = self._channel.send(self._request, resume, answer_s=self._answer_s)

    def interrupt(self) -> None:
        """Only unbounded waits are cancelled: other answers come soon, and the request had an effect."""
        if self._answer_s is None:
            self._channel.cancel(self._msgid)


@attrs.define(eq=False)
class AskEach(Wait):
    """Requests to the daemon, sent and so executed together; returns a result or OSError for each."""

    _channel: Channel
    _requests: Sequence[Params]

    def start(self, resume: Resume) -> None:
        answers: list[Any] = []

        def answered(result: Any, error: OSError | None) -> None:
            answers.append(result if error is None else error)
            if len(answers) == len(self._requests):
                resume(answers, None)

        if not self._requests:
            resume(answers, None)
        for request in self._requests:
            self._channel.send(request, answered)


class Gate(Wait):
    """A gate, open while it has no holder; `wait` until it is open."""

    def __init__(self) -> None:
        self._inside: set[object] = set()
        self._waiting: list[Resume] = []

    @property
    def is_open(self) -> bool:
        return not self._inside

    def enter(self, one: object) -> None:
        self._inside.add(one)

    def leave(self, one: object) -> None:
        self._inside.discard(one)
        if not self._inside:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                resume(None, None)

    def start(self, resume: Resume) -> None:
        if self.is_open:
            resume(None, None)
        else:
            self._waiting.append(resume)


@attrs.define(eq=False)
class Operation:
    """`done` gets the reply or the errno; `start` begins."""

    _steps: Steps
    _done: Callable[[bytes, int], None]
    _waits_for: Wait | None = None

    def start(self) -> None:
        self._go(None, None)

    def interrupt(self) -> None:
        """Request an early answer."""
        if self._waits_for is not None:
            self._waits_for.interrupt()

    def _go(self, result: Any, error: OSError | None) -> None:
        self._waits_for = None
        try:
            wait = self._steps.send(result) if error is None else self._steps.throw(error)
        except StopIteration as stop:
            self._done(stop.value, 0)
        except OSError as failure:
            self._done(b"", failure.errno or errno.EIO)
        except Exception:
            logger.exception("unexpected exception; the caller gets EIO")
            self._done(b"", errno.EIO)
        else:
            self._waits_for = wait
            wait.start(self._go)


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
