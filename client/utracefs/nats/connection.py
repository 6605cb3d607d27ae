"""A connection to one of several servers: requests, and a subscription.

All calls block, up to a time. One thread uses a connection. Nothing is read while no call waits; the server
closes connections that do not answer its pings for some minutes, and then the next call connects again:
`generation` then has another value.

Answers to all requests come over one subscription, INBOX.ID.*.
"""

import contextlib
import math
import secrets
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Self

import attrs

from utracefs.nats.errors import NoResponders
from utracefs.nats.login import Login
from utracefs.nats.sockets import Limited, connect, secured
from utracefs.nats.wire import (
    Error,
    Info,
    Message,
    Parser,
    Ping,
    Pong,
    checked_subject,
    connect_line,
    publish_lines,
)

PORT: Final = 4222
_READ_BYTES: Final = 256 << 10


@attrs.frozen
class Server:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def servers(text: str) -> list[Server]:
    """`HOST[:PORT],...`; addresses of IPv6 in brackets. ValueError."""
    found = []
    for one in text.split(","):
        host, colon, port = one.rpartition(":")
        if not colon or one.endswith("]"):
            host, port = one, str(PORT)
        if host.startswith("["):
            host = host[1:-1] if host.endswith("]") else ""
        elif ":" in host:
            host = ""
        if not host or "@" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            shown = repr(one) if "@" not in one else "an address"  # errors are logged: not with a password
            raise ValueError(f"{shown} is no HOST:PORT; names and passwords do not belong there")
        found.append(Server(host, int(port)))
    return found


class Connection:
    """tls: makes the context, at each connection; None: TLS only if the server requires it, with the system's
    authorities. login: read at each connection. timeout_s: of connecting and of each call without a time of
    its own. inbox: subjects of answers begin so, as accounts permit it."""

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        login: Callable[[], Login] = Login,
        tls: Callable[[], ssl.SSLContext] | None = None,
        timeout_s: float = 10.0,
        name: str = "utracefs",
        inbox: str = "_INBOX",
    ) -> None:
        self.info = Info({})
        self.generation = 0
        """Number of connections so far."""
        self.timeout_s: Final = timeout_s
        self._servers: Final = deque(servers)
        self._login: Final = login
        self._tls: Final = tls
        self._name: Final = name
        self._inbox: Final = f"{checked_subject(inbox)}.{secrets.token_hex(8)}"
        self._socket: Limited | None = None
        self._limit = math.inf
        """See `within`."""
        self._parser = Parser()
        self._answers: dict[str, Message | None] = {}
        """Answers of pending requests, by the last word of the subject."""
        self._request = 0
        self._subject: str | None = None
        """See `subscribe`."""
        self._has_message = False
        self._is_ready = False
        """The server has answered CONNECT."""
        self._error = ""
        """The last error that the server reported and that no call has raised yet."""

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def server(self) -> Server:
        """The server of this connection, or the next one to try."""
        return self._servers[0]

    @contextlib.contextmanager
    def within(self, timeout_s: float) -> Iterator[None]:
        """All calls inside, together, have that time."""
        self._limit = time.monotonic() + timeout_s
        try:
            yield
        finally:
            self._limit = math.inf

    def _deadline(self) -> float:
        return min(self._limit, time.monotonic() + self.timeout_s)

    def close(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
        self._answers.clear()

    def give_up(self) -> None:
        """Disconnect from a server that does not answer; the next `open` tries another one first."""
        self.close()
        self._servers.rotate(-1)

    def open(self) -> None:
        """Connect to the first server that answers, unless there is a connection. OSError: that of the last
        server that was tried. ValueError, ImportError: see `Login.members`."""
        if self._socket is not None:
            deadline = self._deadline()
            try:
                while self._read(0):
                    if time.monotonic() >= deadline:
                        self.give_up()  # it sends without end
                return
            except ConnectionError:  # it ended in the meantime
                pass
        failed: OSError | None = None
        end = self._deadline()
        for left in range(len(self._servers), 0, -1):
            now = time.monotonic()
            try:
                self._open(now + (end - now) / left)
            except OSError as error:
                self.close()
                kinds = (kind for kind in (PermissionError, TimeoutError) if isinstance(error, kind))
                reason = error.strerror or str(error)
                if error.filename is not None:  # of a secret
                    reason = f"{error.filename}: {reason}"
                failed = next(kinds, ConnectionError)(f"{self.server}: {reason}")
                self._servers.rotate(-1)
            except BaseException:
                self.close()
                raise
            else:
                return
        assert failed is not None
        raise failed

    def _open(self, deadline: float) -> None:
        self._parser = Parser()
        self._error = ""
        self._socket = connect(self.server.host, self.server.port, deadline)
        self.generation += 1
        self.info = Info({})
        while not self.info.values:
            self._need(deadline, "a greeting")
        if self._tls is not None and not (
            self.info.values.get("tls_required") or self.info.values.get("tls_available")
        ):
            raise PermissionError("the server offers no TLS, and it is required here")
        if self._tls is not None or self.info.values.get("tls_required"):
            context = ssl.create_default_context() if self._tls is None else self._tls()
            self._parser = Parser()  # bytes before TLS were not protected
            self._socket = secured(self._socket, context, self.server.host)
        login = self._login()
        nonce = self.info.values.get("nonce")
        options = {
            "verbose": False,
            "pedantic": False,
            "tls_required": isinstance(self._socket, ssl.SSLSocket),
            "name": self._name,
            "lang": "python-utracefs",
            "version": "1",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            **login.members(nonce if isinstance(nonce, str) else ""),
        }
        subject = "" if self._subject is None else f"SUB {self._subject} 2\r\n"
        lines = f"SUB {self._inbox}.* 1\r\n{subject}PING\r\n".encode()
        self._has_message, self._is_ready = True, False
        self._send(connect_line(options) + lines, deadline)
        while not self._is_ready:
            self._need(deadline, "an answer to CONNECT")
            try:
                self._raise_error()
            except PermissionError as error:
                if attrs.evolve(login, user="") != Login():
                    raise
                raise PermissionError(f"{error}; no `--secret password=FILE` was given") from None

    # Bytes

    def _send(self, data: bytes, deadline: float, *more: bytes | memoryview) -> None:
        """A failure in the middle ends the connection, since a part may have been sent."""
        sock = self._socket
        if sock is None:
            raise ConnectionResetError("not connected")
        try:
            for one in (data, *more):
                sock.deadline = deadline
                sock.sendall(one)
        except OSError as error:
            with contextlib.suppress(OSError):  # the reason is there
                self._read(0, answers=False)
            self.close()
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{self.server} takes no more data") from None
            raise ConnectionResetError(self._error or f"{self.server} closed the connection") from None

    def _wait(self, deadline: float) -> bool:
        return self._read(max(0.001, deadline - time.monotonic()))

    def _read(self, timeout_s: float, *, answers: bool = True) -> bool:
        """Read once. False: nothing came in that time. ConnectionError: the connection has ended. answers:
        pings, once for all that came, so that many of them do not fill the socket."""
        if self._socket is None:
            raise ConnectionResetError("not connected")
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(_READ_BYTES)
        except (TimeoutError, BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError as error:
            self.close()
            raise ConnectionResetError(f"{self.server}: {error.strerror or error}") from None
        try:
            if not data:
                raise ConnectionResetError(self._error or f"{self.server} closed the connection")
            self._parser.feed(data)
            is_asked = False
            for one in self._parser:
                is_asked = is_asked or isinstance(one, Ping)
                self._take(one)
            if is_asked and answers and self.info.values:
                self._send(b"PONG\r\n", self._deadline())
        except ConnectionError:
            self.close()
            raise
        return True

    def _need(self, deadline: float, what: str) -> None:
        if time.monotonic() >= deadline or not self._wait(deadline):
            raise TimeoutError(f"{self.server} did not send {what} in time")

    def _take(self, one: Info | Message | Error | Ping | Pong) -> None:
        match one:
            case Message(sid=1):
                word = one.subject.rpartition(".")[2]
                if word in self._answers:
                    self._answers[word] = one
            case Message():
                self._has_message = True
            case Pong():
                self._is_ready = True
            case Error():
                self._error = one.text
            case Info():
                self.info = one

    def _raise_error(self) -> None:
        if self._error:
            text, self._error = self._error, ""
            if "violation" in text.lower() or "authentication" in text.lower():
                raise PermissionError(text)
            raise ConnectionError(text)

    # Calls

    def subscribe(self, subject: str) -> None:
        """From the next connection on, see `has_message`."""
        self._subject = checked_subject(subject)

    def has_message(self, timeout_s: float) -> bool:
        """Whether a message of that subject came since the last call, or comes in that time; True also for a
        new connection, before which messages may be missed. ConnectionError: the connection has ended."""
        deadline = time.monotonic() + timeout_s
        while not self._has_message and self._wait(deadline):
            if time.monotonic() >= deadline:  # a server may send other messages without end
                break
        found, self._has_message = self._has_message, False
        return found

    def begin(self, subject: str, payload: bytes | memoryview = b"", headers: Mapping[str, str] = {}) -> str:
        """Send a request. Returns its number for `end`. ValueError: the payload is larger than the server's
        limit."""
        self.open()
        deadline = self._deadline()
        self._request += 1
        word = str(self._request)
        reply = f"{self._inbox}.{word}"
        line, head = publish_lines(checked_subject(subject), reply, headers, len(payload))
        if len(head) + len(payload) > self.info.max_payload:
            raise ValueError(
                f"a message of {len(payload)} bytes; {self.server} takes {self.info.max_payload}"
            )
        if len(payload) < 1 << 14:
            self._send(b"".join((line, head, payload, b"\r\n")), deadline)
        else:
            self._send(line + head, deadline, payload, b"\r\n")
        self._answers[word] = None
        return word

    def end(self, word: str) -> Message:
        """The answer. TimeoutError. PermissionError: the server refused the subject. NoResponders."""
        deadline = self._deadline()
        if word not in self._answers:
            raise ConnectionResetError("the connection ended before the answer came")
        try:
            while (answer := self._answers[word]) is None:
                self._need(deadline, "an answer")
                if self._answers[word] is None:
                    self._raise_error()
        finally:
            self._answers.pop(word, None)
        if answer.status == 503 and not answer.payload:
            raise NoResponders("no service answers on that subject")
        return answer

    def request(
        self, subject: str, payload: bytes | memoryview = b"", headers: Mapping[str, str] = {}
    ) -> Message:
        """`begin` and `end`."""
        return self.end(self.begin(subject, payload, headers))
