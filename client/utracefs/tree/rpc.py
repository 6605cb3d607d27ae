"""Blocking calls over one of the daemon's two sockets, for tools.

    caller ── call(ReadFile(b"trace"), "trace") ──▶ request ──▶ socket ──▶ response ──▶ result or OSError

Applications do not use this module: they emit through `utracefs.producer`, which never blocks. Tools need
blocking calls, errors as exceptions, and for whole directories or many pages many requests at once
(`call_many`), which saves a round trip each.

Errors are OSError with the daemon's errno and text, and the requested object as `filename`; OSError itself
chooses the subclass (FileNotFoundError, PermissionError). A lost connection is ConnectionResetError with the
socket's path.
"""

import array
import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeAlias, TypeVar

from utracefs.tree import runtime_dir
from utracefs.tree.closing import Closing
from utracefs_protocol.connection import Connection, Notification, Response, encode_request
from utracefs_protocol.errors import ProtocolError, TraceError
from utracefs_protocol.messages.rows import Params

WINDOW: Final = 64
"""Requests in flight in `call_many`. It is below the daemon's 256, with so few bytes that sending never
blocks on unread answers."""

_PIECE_BYTES: Final = 1 << 18
_MAX_FDS: Final = 4
_ANCILLARY_BYTES: Final = socket.CMSG_SPACE(_MAX_FDS * struct.calcsize("i"))


Outcome: TypeAlias = Any | OSError

T = TypeVar("T")


class Rpc(Closing):
    """A connection; a context manager that closes it. Do not share it between threads.

    name: the socket, `tracefs` or `user_events_data`. directory: its directory; None: UTRACEFS_DIR, then the
    user's, then the system's. timeout_s: longest wait for an answer, None: no limit; TimeoutError ends the
    connection.
    """

    def __init__(self, name: str, directory: str | None = None, *, timeout_s: float | None = None) -> None:
        self._socket = runtime_dir.connect(name, directory, timeout_s)
        self._socket.settimeout(timeout_s)
        self.address: Final = os.fsdecode(self._socket.getpeername())
        """Path of the connected socket."""
        self._connection = Connection(max_object=None)
        self._messages: Iterator[Any] = iter(())
        self._msgid = 0
        self._fds: list[int] = []

    @property
    def directory(self) -> str:
        """Directory of the daemon's sockets."""
        return os.path.dirname(self.address)

    @property
    def timeout_s(self) -> float | None:
        """The longest wait for an answer."""
        return self._socket.gettimeout()

    def set_timeout(self, timeout_s: float | None) -> None:
        """Set the longest wait for an answer; None: no limit."""
        self._socket.settimeout(timeout_s)

    def close(self) -> None:
        """End the connection, and all handles opened on it. May be called twice."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()
        self._socket.close()

    def call(self, params: Params, about: str) -> Any:
        """Call one request; returns its result. OSError(errno, text, about)."""
        return self.answer(self.ask(params), about)

    def fileno(self) -> int:
        """Descriptor, readable when a message arrived; -1 once it is closed."""
        return self._socket.fileno()

    def answer(self, msgid: int, about: str) -> Any:
        """The result of a sent request; waits for it."""
        while (response := self._next_response()).msgid != msgid:
            pass
        return _result(response, about)

    def end_ask(self, msgid: int, params: Params, about: str) -> Any:
        """Call a request that ends the sent one; returns the result of that, None if it has none."""
        ending, result = self.ask(params), None
        while (response := self._next_response()).msgid != ending:
            if response.msgid == msgid and response.error is None:
                result = response.result
        _result(response, about)
        return result

    def pass_over(self) -> None:
        """Drop the received answers, without waiting for others. OSError as for a call."""
        timeout_s = self._socket.gettimeout()
        self._socket.setblocking(False)
        try:
            while True:
                self._next_response()
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(timeout_s)

    def call_many(self, calls: Iterable[tuple[Params, str]], *, keeps: bool = False) -> list[Outcome]:
        """The outcomes in the order of the calls: a result, or the OSError of that call, not raised. calls:
        each with the filename of its errors. keeps: if the connection ends, its error is the outcome of all
        calls without an answer, instead of being raised."""
        outcomes: list[Outcome] = []
        places: dict[int, tuple[int, str]] = {}
        waiting = iter(calls)
        exhausted = False
        while True:
            while not exhausted and len(places) < WINDOW:
                following = next(waiting, None)
                if following is None:
                    exhausted = True
                    break
                params, about = following
                outcomes.append(None)
                try:
                    places[self.ask(params)] = (len(outcomes) - 1, about)
                except (ConnectionError, TimeoutError) as error:
                    if not keeps:
                        raise
                    outcomes[-1] = error
            if not places:
                return outcomes
            try:
                response = self._next_response()
            except (ConnectionError, TimeoutError) as error:
                if not keeps:
                    raise
                for place, _ in places.values():
                    outcomes[place] = error
                places.clear()
                continue
            place, about = places.pop(response.msgid, (-1, ""))
            if place < 0:
                continue  # answer of an interrupted call
            try:
                outcomes[place] = _result(response, about)
            except OSError as error:
                outcomes[place] = error

    def take_fds(self) -> list[int]:
        """Take the descriptors of the last response; the caller owns them."""
        fds, self._fds = self._fds, []
        return fds

    def ask(self, params: Params) -> int:
        """Send a request without waiting; returns the argument of `answer`."""
        if self._socket.fileno() < 0:
            raise ConnectionResetError(errno.ECONNRESET, "the connection is closed", self.address)
        self._msgid = self._msgid + 1 & 0xFFFF_FFFF
        try:
            self._socket.sendall(encode_request(self._msgid, params.METHOD, params.to_params()))
        except TimeoutError:
            raise self._timed_out() from None
        except (BrokenPipeError, ConnectionResetError):
            # The daemon may have sent the reason before it hung up, and answers.
            answers: list[Response] = []
            with contextlib.suppress(ConnectionResetError):
                while True:
                    answers.append(self._next_response())
            self._messages = iter(answers)
            raise self._lost() from None
        return self._msgid

    def _next_response(self) -> Response:
        while True:
            try:
                for message in self._messages:
                    if isinstance(message, Response):
                        return message
                    if isinstance(message, Notification) and message.method == "error":
                        raise self._refused(message.params)
            except ProtocolError as error:
                raise OSError(error.errno, f"invalid answer: {error.text}", self.address) from None
            self._messages = self._connection.receive(self._receive())

    def _receive(self) -> bytes:
        try:
            data, ancillary, flags, _address = self._socket.recvmsg(
                _PIECE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            raise self._timed_out() from None
        except ConnectionResetError:
            raise self._lost() from None
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds += fds
        if flags & socket.MSG_CTRUNC:
            self._socket.close()
            text = "no descriptor is left for the answer: raise ulimit -n"
            raise ConnectionAbortedError(errno.EMFILE, text, self.address)
        if not data:
            raise self._lost()
        return data

    def _lost(self) -> OSError:
        return ConnectionResetError(errno.ECONNRESET, "the daemon closed the connection", self.address)

    def _timed_out(self) -> OSError:
        self._socket.close()
        return TimeoutError(errno.ETIMEDOUT, "the daemon does not answer", self.address)

    def _refused(self, params: list[Any]) -> OSError:
        """The notification `["error", [errno, text]]`: the daemon's reason for hanging up."""
        match params:
            case [int() as number, str() as text]:
                return OSError(number, text, self.address)
        return OSError(errno.EPROTO, "the daemon refused without saying why", self.address)


def _result(response: Response, about: str) -> Any:
    if response.error is not None:
        number, text = response.error
        raise OSError(number, text, about)
    return response.result


def checked(from_wire: Callable[[Any], T], result: Any, about: str) -> T:
    """The result, parsed by its message class. OSError(EPROTO) for an invalid one."""
    try:
        return from_wire(result)
    except TraceError as error:
        raise OSError(errno.EPROTO, f"invalid answer: {error.text}", about) from None
