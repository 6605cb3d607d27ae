"""A non-blocking connection to the daemon: requests are sent, answers arrive in any order.

    send ──> msgid ──> the socket, or the send queue
    answer ──────────> `resume` of that msgid: result, or OSError with the daemon's errno
    no answer in time, the end of the connection ──> `resume` of all requests concerned: ETIMEDOUT, ENOTCONN
                       (or the daemon's errno for ending it)
    notifications of the daemon ──> `on_notification`, in order with the answers

The owner of the loop calls `on_ready` when the socket is ready, and what was given to `later` in time.
"""

import contextlib
import errno
import math
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs

from utracefs_protocol.connection import (
    Connection,
    Notification,
    Response,
    encode_notification,
    encode_request,
)
from utracefs_protocol.errors import ProtocolError
from utracefs_protocol.limits import MAX_MSGID
from utracefs_protocol.messages.rows import Params
from utracefs_protocol.messages.tracefs import Cancel

ANSWER_S: Final = 30.0
"""A daemon that does not answer within this time is stopped or hangs: the call is ETIMEDOUT, and the caller
continues. It has one thread, and may be busy printing 64 MiB of trace."""

_PIECE_BYTES: Final = 1 << 18

Resume: TypeAlias = Callable[[Any, OSError | None], None]
"""Called with the result or the error."""


@attrs.frozen
class _Pending:
    resume: Resume
    deadline: float | None
    """On time.monotonic; None: no limit."""


class Channel:
    """Owns `sock`, which is connected. Callbacks: `on_writing` when the socket must be watched for writing,
    and when no longer; `on_close` before it is closed; `on_end` when the daemon ended it; `on_notification`
    for notifications. later: calls a function after a time in seconds. `silent` contains it from a passed
    deadline to the next answer, or its end."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_writing: Callable[["Channel", bool], None],
        on_close: Callable[["Channel"], None],
        on_end: Callable[["Channel"], None],
        later: Callable[[float, Callable[[], object]], object],
        on_notification: Callable[[Notification], None] | None = None,
        silent: set["Channel"] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._on_writing = on_writing
        self._on_close = on_close
        self._on_end = on_end
        self.on_notification = on_notification
        self._later = later
        self._silent = set() if silent is None else silent
        self._clock = clock
        self._connection = Connection(max_object=None)
        self._pending: dict[int, _Pending] = {}
        self._unsent = bytearray()
        self._waits_for_room = False
        self._msgid = 0
        self._on_finished: Callable[[], object] | None = None
        self._finish_by: float | None = None
        self._looks_at = math.inf
        """When `_expire` is called next."""
        self._why_ended: OSError | None = None
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, params: Params, resume: Resume, *, answer_s: float | None = ANSWER_S) -> int:
        """Send a request; returns the msgid. `resume` is called once, possibly before this returns. answer_s:
        time limit of the answer; None: no limit."""
        if self.closed:
            resume(None, self._why_ended or _not_connected())
            return 0
        self._msgid = self._msgid + 1 & MAX_MSGID
        msgid = self._msgid
        deadline = None if answer_s is None else self._clock() + answer_s
        self._pending[msgid] = _Pending(resume, deadline)
        self._expire_at(deadline)
        self._put(encode_request(msgid, params.METHOD, params.to_params()))
        return msgid

    def notify(self, params: Params) -> None:
        """Send a notification, which has no answer."""
        if not self.closed:
            self._put(encode_notification(params.METHOD, params.to_params()))

    def finish(self, done: Callable[[], object]) -> None:
        """Stop sending; calls `done` once, when the daemon has processed all and closed its end, too, or has
        not within ANSWER_S."""
        if self.closed:
            done()
            return
        self._on_finished = done
        self._finish_by = self._clock() + ANSWER_S
        self._expire_at(self._finish_by)
        if not self._unsent:
            self._shut_down()

    def cancel(self, msgid: int) -> None:
        """Request that a waiting request be answered now: with the available data, or EINTR."""
        if msgid in self._pending:
            self.send(Cancel(msgid), lambda result, error: None)

    def on_ready(self) -> None:
        """The socket is ready for reading or writing."""
        if self._unsent:
            self._flush()
        while not self.closed:
            try:
                data = self._socket.recv(_PIECE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._end()
                return
            try:
                for message in self._connection.receive(data):
                    if isinstance(message, Response):
                        self._answered(message)
                    elif isinstance(message, Notification):
                        self._notified(message)
            except ProtocolError:
                self._end()
                return

    def close(self) -> None:
        """Close; may be called twice. Pending requests are ENOTCONN."""
        if self.closed:
            return
        self.closed = True
        self._on_close(self)
        self._socket.close()
        pending, self._pending = self._pending, {}
        self._silent.discard(self)
        for one in pending.values():
            one.resume(None, self._why_ended or _not_connected())
        if self._on_finished is not None:
            self._on_finished()

    def _expire_at(self, deadline: float | None) -> None:
        """Call `_expire` then, unless it is called before."""
        if deadline is not None and deadline < self._looks_at:
            self._looks_at = deadline
            # A timer stays until its time. A channel that is closed before shall not: a program may open and
            # close thousands of files by then.
            expire = weakref.WeakMethod(self._expire)
            self._later(deadline - self._clock(), lambda: (call := expire()) is not None and call())

    def _expire(self) -> None:
        """End requests whose time has passed."""
        now = self._clock()
        self._looks_at = math.inf
        for msgid, pending in list(self._pending.items()):
            if pending.deadline is None or pending.deadline > now:
                self._expire_at(pending.deadline)
            elif self._pending.pop(msgid, None) is not None:
                self._silent.add(self)
                pending.resume(None, OSError(errno.ETIMEDOUT, "the daemon does not answer"))
        if self._finish_by is not None and self._finish_by <= now:
            self.close()
        else:
            self._expire_at(self._finish_by)

    def _answered(self, response: Response) -> None:
        self._silent.discard(self)
        pending = self._pending.pop(response.msgid, None)
        if pending is None:
            return  # too late
        error = None
        if response.error is not None:
            error = OSError(*response.error)
        pending.resume(response.result, error)

    def _notified(self, notification: Notification) -> None:
        match notification:
            case Notification("error", [int() as number, str() as text]):
                self._why_ended = OSError(number, text)
        if self.on_notification is not None:
            self.on_notification(notification)

    def _put(self, data: bytes) -> None:
        had_unsent = bool(self._unsent)
        self._unsent += data
        if not had_unsent:
            self._flush()

    def _flush(self) -> None:
        try:
            sent = self._socket.send(self._unsent, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            # Reading reports its end, too, after the messages sent before it.
            sent = len(self._unsent)
        del self._unsent[:sent]
        if self._waits_for_room != bool(self._unsent):
            self._waits_for_room = not self._waits_for_room
            self._on_writing(self, self._waits_for_room)
        if self._on_finished is not None and not self._unsent:
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):  # ended already, which reading reports
            self._socket.shutdown(socket.SHUT_WR)

    def _end(self) -> None:
        self.close()
        self._on_end(self)


def _not_connected() -> OSError:
    return OSError(errno.ENOTCONN, "the daemon is gone")
