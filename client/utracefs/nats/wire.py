"""The protocol of NATS clients: bytes to messages and back, without I/O.

    server ─▶ INFO {...} | MSG ... | HMSG ... | PING | PONG | +OK | -ERR '...'
    client ─▶ CONNECT {...} | PUB ... | HPUB ... | SUB ... | UNSUB ... | PING | PONG

Each is a line; MSG, HMSG, PUB and HPUB are followed by a payload of the size in the line. Headers begin with
`NATS/1.0`, and a status in messages of the server's own. docs.nats.io, "Client Protocol".
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import attrs

from utracefs.nats.errors import WireError

MAX_LINE: Final = 8192
"""Bytes of a line: the server's own limit is 4096."""

MAX_SERVER_INFO: Final = 256 << 10
"""Bytes of INFO, which lists the servers of a cluster."""

MAX_MESSAGE: Final = 64 << 20
"""Bytes of a message with its headers: the largest that a server can be configured for."""

_SUBJECT: Final = re.compile(r"[^\s\x00.]+(?:\.[^\s\x00.]+)*")
_HEADER: Final = re.compile(r"[!-9;-~]+")


@attrs.frozen
class Info:
    """INFO of a server, sent at the start and when its cluster changes."""

    values: Mapping[str, Any]

    @property
    def max_payload(self) -> int:
        size = self.values.get("max_payload")
        return min(size, MAX_MESSAGE) if isinstance(size, int) and size > 0 else 1 << 20


@attrs.frozen
class Message:
    subject: str
    sid: int
    """The subscription's number."""
    payload: bytes = attrs.field(repr=False)
    headers: Mapping[str, str]
    """The first value of each name."""
    status: int
    """As in HTTP, in messages of the server's own; else 0."""


@attrs.frozen
class Error:
    text: str


class Ping:
    pass


class Pong:
    pass


Received: TypeAlias = Info | Message | Error | Ping | Pong


class Parser:
    """Bytes in, messages out. WireError: the connection cannot be used any more."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._scanned = 0
        """Position up to which no end of a line was found."""
        self._message: tuple[str, int, int, int] | None = None
        """A message whose payload is missing: subject, sid, size of headers (-1: none), total size."""

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def __iter__(self) -> Iterator[Received]:
        while (found := self._next()) is not None:
            yield found

    def _next(self) -> Received | None:
        while self._message is None:
            line = self._line()
            if line is None:
                return None
            if (found := self._take(line)) is not None:
                return found
        subject, sid, head, size = self._message
        if len(self._bytes) < size + 2:
            return None
        if self._bytes[size : size + 2] != b"\r\n":
            raise WireError("the server sent a payload of another size than it said")
        headers: dict[str, str] = {}
        status = 0
        if head >= 0:
            status, headers = _headers(bytes(self._bytes[:head]))
        payload = bytes(memoryview(self._bytes)[max(head, 0) : size])
        del self._bytes[: size + 2]
        self._message = None
        return Message(subject, sid, payload, headers, status)

    def _line(self) -> bytes | None:
        end = self._bytes.find(b"\r\n", self._scanned)
        longest = MAX_SERVER_INFO if self._bytes[:5].upper() == b"INFO " else MAX_LINE
        if end > longest or (end < 0 and len(self._bytes) > longest):
            raise WireError(f"the server sent a line of more than {longest} bytes")
        if end < 0:
            self._scanned = max(0, len(self._bytes) - 1)
            return None
        line = bytes(self._bytes[:end])
        del self._bytes[: end + 2]
        self._scanned = 0
        return line

    def _take(self, line: bytes) -> Received | None:
        """None: its payload follows, or it says nothing."""
        verb, _, rest = line.partition(b" ")
        words = rest.split()
        try:
            match verb.upper():
                case b"MSG" if 3 <= len(words) <= 4:
                    self._expect(words[:-1], -1, _number(words[-1]))
                case b"HMSG" if 4 <= len(words) <= 5:
                    self._expect(words[:-2], _number(words[-2]), _number(words[-1]))
                case b"PING":
                    return Ping()
                case b"PONG":
                    return Pong()
                case b"+OK":
                    pass
                case b"-ERR":
                    return Error(rest.decode(errors="replace").strip().strip("'"))
                case b"INFO" if isinstance(values := json.loads(rest), dict):
                    return Info(values)
                case _:
                    raise ValueError
        except (ValueError, RecursionError):
            raise WireError(f"no line of a NATS server: {line[:80]!r}") from None
        return None

    def _expect(self, words: list[bytes], head: int, size: int) -> None:
        if not max(head, 0) <= size <= MAX_MESSAGE:
            raise WireError(f"the server sent a message of {size} bytes, at most {MAX_MESSAGE} are taken")
        self._message = (words[0].decode(), _number(words[1]), head, size)


def _number(word: bytes) -> int:
    if not word.isdigit():
        raise ValueError
    return int(word)


def _headers(data: bytes) -> tuple[int, dict[str, str]]:
    """Status and headers."""
    first, *lines = data.decode(errors="replace").split("\r\n")
    version, _, status = first.partition(" ")
    code = status.strip().partition(" ")[0]
    if version != "NATS/1.0" or (code and not code.isascii()) or (code and not code.isdigit()):
        raise WireError(f"no headers of NATS: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers.setdefault(name, value.strip())
    return int(code[:4] or 0), headers


def checked_subject(subject: str) -> str:
    """ValueError: it would break the protocol, or the server would refuse it."""
    if len(subject) > MAX_LINE // 4 or not _SUBJECT.fullmatch(subject):
        raise ValueError(f"{subject!r} is no subject of NATS: words with dots between them, without blanks")
    return subject


def connect_line(options: Mapping[str, Any]) -> bytes:
    return b"CONNECT " + json.dumps(options).encode() + b"\r\n"


def publish_lines(subject: str, reply: str, headers: Mapping[str, str], size: int) -> tuple[bytes, bytes]:
    """The line and the headers; the payload and an end of line follow. ValueError: an invalid name or value
    of a header."""
    if not headers:
        return f"PUB {subject} {reply} {size}\r\n".encode(), b""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or "\r" in value or "\n" in value:
            raise ValueError(f"no header: {name!r}: {value!r}")
    text = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"NATS/1.0\r\n{text}\r\n".encode()
    return f"HPUB {subject} {reply} {len(head)} {len(head) + size}\r\n".encode(), head
