"""Connections to the data socket, each opened on behalf of a process; what happens while no daemon is there.

A mount that waits for the next daemon has files and address spaces that outlive the one before. They ask here
(`present`), and go on when it is back: a restart takes a fraction of a second, and a program that asks
meanwhile shall not be told that there are no user events.
"""

import errno
import logging
import os
from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from typing import Any, Final, TypeAlias, TypeVar

import attrs

from utracefs.mount.abi import Header
from utracefs.mount.channel import Channel
from utracefs.mount.operation import Ask, Operation, Steps, Wait
from utracefs.mount.timers import Pause, Timers
from utracefs_protocol.connection import Notification
from utracefs_protocol.messages.data import OpenFor

__all__ = ["AWAY_S", "Asking", "Connect", "DataConnections", "Process", "error", "nothing"]

logger = logging.getLogger("utracefs.mount")

T = TypeVar("T")
Asking: TypeAlias = Generator[Wait, Any, T]
"""Steps that end with something else than a reply."""

OnNotification: TypeAlias = Callable[[Notification], None]
Connect: TypeAlias = Callable[[OnNotification, Callable[[Channel], None]], Channel]
"""Given who hears notifications, and who the connection's end by the daemon. BlockingIOError: the socket's
queue is full. ENOTCONN: there is no daemon."""

AWAY_S: Final = 2.0
"""How long who opens the file, or registers, waits for a daemon that is being restarted, or that accepts
nobody; then ENOTCONN."""

_STEP_S: Final = 0.02
"""Between two looks."""

_ATTEMPTS: Final = 3
"""Daemons that may end while a connection is made."""

_MOST_SAID: Final = 100
"""Different lines in the log."""


@attrs.frozen
class Process:
    """For whom a connection is opened."""

    pid: int
    start_time: int
    """Clock ticks since boot: field 22 of /proc/PID/stat."""
    uid: int
    gid: int


class DataConnections:
    """`process_of`: the process of the thread that asks, with the user of the request; OSError(ESRCH).

    reconnects: there will be another daemon after this one. silent: of these connections those on which an
    answer is overdue; others keep it.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        process_of: Callable[[Header], Process],
        timers: Timers,
        silent: AbstractSet[Channel] = frozenset(),
        reconnects: bool = False,
    ) -> None:
        self._connect = connect
        self.process_of = process_of
        self.timers = timers
        self.silent = silent
        self.reconnects = reconnects
        self.is_away = False
        self.speaks_for_others = True
        """False: the daemon is another user's, so every connection is ours, and so are the records."""
        self._said: set[str] = set()

    def present(self) -> Asking[None]:
        """Wait for a daemon that is being restarted. ENOTCONN."""
        for _ in range(int(AWAY_S / _STEP_S)):
            if not self.is_away:
                return
            yield self.pause()
        raise error(errno.ENOTCONN)

    def pause(self) -> Pause:
        """Until it is worth while to look again."""
        return Pause(self.timers, _STEP_S)

    def connected(
        self,
        owner: Process,
        on_notification: OnNotification,
        on_end: Callable[[Channel], None] = lambda _: None,
    ) -> Asking[Channel]:
        """On behalf of a process. ESRCH: it is gone. What else the daemon says; ENOTCONN."""
        for _ in range(_ATTEMPTS):
            yield from self.present()
            channel = yield from self._accepted(on_notification, on_end)
            try:
                yield from self._open_for(channel, owner)
            except OSError as failure:
                last = failure
                if self.is_retried(channel):
                    yield self.pause()
                    continue
                channel.close()
                raise
            return channel
        raise last

    def _open_for(self, channel: Channel, owner: Process) -> Asking[None]:
        if not self.speaks_for_others:
            return
        try:
            yield Ask(channel, OpenFor(owner.pid, owner.start_time, owner.uid, owner.gid))
        except OSError as failure:
            if failure.errno != errno.EPERM:
                raise
            self.speaks_for_others = False
            self.say(
                "the daemon is another user's: records carry our pid, %d, and count as ours", os.getpid()
            )

    def _accepted(
        self, on_notification: OnNotification, on_end: Callable[[Channel], None]
    ) -> Asking[Channel]:
        for _ in range(int(AWAY_S / _STEP_S)):
            try:
                return self._connect(on_notification, on_end)
            except OSError as failure:
                is_full = isinstance(failure, BlockingIOError)
                is_missing = failure.errno == errno.ENOTCONN
                if not is_full and not (is_missing and self.reconnects):
                    raise
            yield self.pause()
        raise error(errno.ENOTCONN)

    def is_retried(self, channel: Channel) -> bool:
        """Whether what failed on that connection is to be asked of the next daemon."""
        return self.reconnects and channel.closed

    def begin(self, steps: Asking[Any]) -> None:
        """Steps that nobody in the kernel waits for."""

        def run() -> Steps:
            yield from steps
            return b""

        def done(_reply: bytes, number: int) -> None:
            if number:
                self.say("a connection to the daemon failed: %s", os.strerror(number))

        Operation(run(), done).start()

    def say(self, text: str, *args: object) -> None:
        """Once for each text."""
        line = text % args
        if line not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(line)
            logger.warning("%s", line)


def nothing(_notification: Notification) -> None:
    """Who does not listen."""


def error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
