"""Connections to the data socket, each on behalf of a process; and waiting while no daemon runs.

A mount that waits for the next daemon has files and address spaces that outlive the previous one. They wait
here (`present`) and continue with the next: a restart takes a fraction of a second, and a program that calls
meanwhile should not get the error that there are no user events.
"""

import errno
import logging
import os
import sched
from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from utracefs.mount.abi import Header
from utracefs.mount.channel import Channel
from utracefs.mount.operation import Ask, Operation, Steps, Wait, error
from utracefs_protocol.connection import Notification
from utracefs_protocol.messages.data import OpenFor

logger = logging.getLogger("utracefs.mount")

T = TypeVar("T")
Asking: TypeAlias = Generator[Wait, Any, T]
"""Steps whose result is not a reply."""

OnNotification: TypeAlias = Callable[[Notification], None]
Connect: TypeAlias = Callable[[OnNotification, Callable[[Channel], None]], Channel]
"""Called with the listeners for notifications and for the end by the daemon. BlockingIOError: the socket's
queue is full. ENOTCONN: no daemon."""

AWAY_S: Final = 2.0
"""How long an open or a registration waits for a daemon that is restarted, or does not accept; then
ENOTCONN."""

_STEP_S: Final = 0.02
"""Interval of retries."""

_MOST_SAID: Final = 100
"""Maximum of different lines in the log."""


@attrs.define(eq=False)
class DataConnections:
    """process_of: returns the process of the calling thread, with the user of the request; OSError(ESRCH).

    reconnects: another daemon will follow this one. silent: those of these connections with an overdue
    answer.
    """

    connect: Connect
    process_of: Callable[[Header], OpenFor]
    timers: sched.scheduler
    silent: AbstractSet[Channel] = frozenset()
    reconnects: bool = False
    is_away: bool = attrs.field(init=False, default=False)
    speaks_for_others: bool = attrs.field(init=False, default=True)
    """False: the daemon is another user's, so connections and records are the mount's own."""
    _said: set[str] = attrs.field(init=False, factory=set)

    def present(self) -> Asking[None]:
        """Wait for a restarting daemon. ENOTCONN."""
        for _ in range(int(AWAY_S / _STEP_S)):
            if not self.is_away:
                return
            yield self.pause()
        raise error(errno.ENOTCONN)

    def pause(self) -> Wait:
        """Wait until the next retry."""
        return Wait(lambda resume: self.timers.enter(_STEP_S, 0, lambda: resume(None, None)))

    def connected(
        self,
        owner: OpenFor,
        on_notification: OnNotification = lambda _: None,
        on_end: Callable[[Channel], None] = lambda _: None,
    ) -> Asking[Channel]:
        """Connect on behalf of a process. ESRCH: it has ended. Other errors of the daemon; ENOTCONN."""
        for _ in range(int(AWAY_S / _STEP_S)):
            channel = None
            try:
                if not self.is_away:
                    channel = self.connect(on_notification, on_end)
                    yield from self._open_for(channel, owner)
                    return channel
            except OSError as failure:
                if channel is None:  # it does not accept, or not yet
                    is_missing = failure.errno == errno.ENOTCONN
                    is_retried = isinstance(failure, BlockingIOError) or (is_missing and self.reconnects)
                else:
                    is_retried = self.is_retried(channel)
                    channel.close()
                if not is_retried:
                    raise
            yield self.pause()
        raise error(errno.ENOTCONN)

    def _open_for(self, channel: Channel, owner: OpenFor) -> Asking[None]:
        if not self.speaks_for_others:
            return
        try:
            yield Ask(channel, owner)
        except OSError as failure:
            if failure.errno != errno.EPERM:
                raise
            self.speaks_for_others = False
            self.say(
                "the daemon is another user's: records carry our pid, %d, and count as ours", os.getpid()
            )

    def is_retried(self, channel: Channel) -> bool:
        """Whether to repeat the failed request with the next daemon."""
        return self.reconnects and channel.closed

    def begin(self, steps: Asking[Any]) -> None:
        """Run steps that no kernel request waits for."""

        def run() -> Steps:
            yield from steps
            return b""

        def done(_reply: bytes, number: int) -> None:
            if number:
                self.say("a connection to the daemon failed: %s", os.strerror(number))

        Operation(run(), done).start()

    def say(self, text: str, *args: object) -> None:
        """Log each text once."""
        line = text % args
        if line not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(line)
            logger.warning("%s", line)
