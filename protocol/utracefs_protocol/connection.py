"""Bytes become messages, and messages bytes: both sides of both sockets, without a socket.

Both directions carry MessagePack objects one after the other, with no other framing:

    [0, msgid, method, params]      Request         wants one Response with the same msgid
    [1, msgid, error, result]       Response        error is nil or [errno, text]
    [2, method, params]             Notification    wants nothing
    bin                             EventRecord     data socket only: i32 write_index, payload

A Connection never holds an object that it will refuse: what is too large, too deep or no object at all is a
ProtocolError as soon as the bytes say so (see _framing), after every message before it was handed out. Then
the connection is over, since nothing tells where the next message would begin.

Messages are handed out one by one, and what follows one is not looked at before the next is asked for. So a
registration has been carried out when the records behind it, which use its write_index, are taken in.

Text on the wire ought to be UTF-8. Where it is not, it arrives with surrogate escapes and leaves with the
same bytes; it must not kill anything.
"""

from __future__ import annotations

import errno

import msgpack

from utracefs_protocol._framing import Scanner, record_run
from utracefs_protocol.errors import ProtocolError
from utracefs_protocol.frozen import Frozen
from utracefs_protocol.limits import MAX_MSGID, MAX_NESTING

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any, Final, TypeAlias

    TakeRecords: TypeAlias = Callable[[bytes | bytearray | memoryview, int], int]

__all__ = [
    "Connection",
    "EventRecord",
    "Message",
    "Notification",
    "Request",
    "Response",
    "encode_bin_response",
    "encode_error",
    "encode_notification",
    "encode_record",
    "encode_request",
    "encode_response",
    "is_record_head",
]

_REQUEST: Final = 0
_RESPONSE: Final = 1
_NOTIFICATION: Final = 2


class Request(Frozen):
    """A call that wants a response."""

    msgid: int
    """Chosen by the caller, 0 to 2^32-1; ties the response to it."""
    method: str
    params: list[Any]


class Response(Frozen):
    """The answer to a Request, in any order."""

    msgid: int
    error: tuple[int, str] | None
    """(errno, text), or None for success."""
    result: Any


class Notification(Frozen):
    """Something worth telling that wants no answer: `error`, `write_error`."""

    method: str
    params: list[Any]


class EventRecord(Frozen):
    """One event record as `write(2)` would carry it."""

    data: bytes
    """write_index (i32), then the payload; not checked in any way."""


Message: TypeAlias = Request | Response | Notification | EventRecord


class Connection:
    """The receiving half of one connection, fed with bytes as they come.

    max_object: bytes of the largest object that is accepted; None for a client that trusts its daemon.
    allow_records: whether bare bin objects may come (the data socket's daemon side).
    take_records: takes complete bare bin objects out of a buffer from an offset on and returns the offset
    behind the last one it took; with it no EventRecord is handed out, and records cost no Python each. When
    it takes none, they have to wait, and all behind them.
    """

    def __init__(
        self,
        *,
        max_object: int | None,
        max_nesting: int = MAX_NESTING,
        allow_records: bool | None = None,
        take_records: TakeRecords | None = None,
    ) -> None:
        self._max_object = max_object
        self._scanner = Scanner(max_object, max_nesting)
        self._allow_records = take_records is not None if allow_records is None else allow_records
        self._take_records = take_records
        self._buffer = bytearray()
        self._offset = 0
        self._error: ProtocolError | None = None
        self.records_only = False
        """Requests, responses and notifications are passed over."""

    def close(self) -> None:
        """Nothing more is received. Forgets what takes records, which usually knows this object in turn."""
        self._take_records = None

    @property
    def bytes_pending(self) -> int:
        """Bytes that were received and not yet handed out: at end of file, half a message when not 0."""
        return len(self._buffer) - self._offset

    @property
    def pending_head(self) -> int | None:
        """The first byte of them; None when there are none."""
        return self._buffer[self._offset] if self._offset < len(self._buffer) else None

    def receive(self, data: bytes | bytearray | memoryview) -> Iterator[Message]:
        """Take in bytes; iterate to get the messages that are complete with them.

        The bytes are taken in at once, the rest happens while iterating. Iteration may be broken off: the
        next call goes on where it stopped. Raises ProtocolError at the first object that is broken or over a
        limit, and again whenever more is asked for.
        """
        return (message for message in self.receive_in_turns(data) if message is not None)

    def receive_in_turns(self, data: bytes | bytearray | memoryview) -> Iterator[Message | None]:
        """As `receive`, with None before each message but records: who breaks off there holds no decoded
        object, which may be fifty times as large as its bytes. Also None while records have to wait."""
        if self._error is None:
            if self._offset == len(self._buffer):
                self._buffer.clear()
                self._offset = 0
            self._buffer += data
        return self._messages()

    def _messages(self) -> Iterator[Message | None]:
        try:
            while True:
                if self._error is not None:
                    raise ProtocolError(self._error.errno, self._error.text)
                end = self._next_object()
                if end is None:
                    yield None
                    continue
                if not end:
                    return
                if 0xC4 <= self._buffer[self._offset] <= 0xC6:
                    yield EventRecord(_decode(self._take_object(end)))
                elif self.records_only:
                    self._offset = end
                else:
                    yield None
                    yield _message(_decode(self._take_object(end)))
        except ProtocolError as error:
            # One that was not raised: its traceback would know this object.
            self._error = ProtocolError(error.errno, error.text)
            self._buffer.clear()
            self._offset = 0
            raise
        finally:
            # one move of what is left per call, never one per message
            if self._offset:
                del self._buffer[: self._offset]
                self._offset = 0

    def _take_object(self, end: int) -> bytes:
        with memoryview(self._buffer) as view:
            data = bytes(view[self._offset : end])
        self._offset = end
        return data

    def _next_object(self) -> int | None:
        """Where the object ends that stands next, behind a run of records; 0: it is not complete; None: these
        have to wait."""
        buffer = self._buffer
        if (
            self._offset < len(buffer)
            and 0xC4 <= buffer[self._offset] <= 0xC6
            and self._take_records
            and not self._take_run(self._take_records)
        ):
            return None
        start = self._offset
        if start == len(buffer):
            return 0
        kind = buffer[start]
        if 0xC4 <= kind <= 0xC6:
            if not self._allow_records:
                raise ProtocolError(
                    errno.EPROTO, "event record on a connection that takes none; use the data socket"
                )
        elif not (0x90 <= kind <= 0x9F or kind in (0xDC, 0xDD)):
            raise ProtocolError(
                errno.EPROTO, f"object beginning with {kind:#04x} is neither an array nor bin"
            )
        return self._scanner.scan(buffer, start)

    def _take_run(self, take_records: TakeRecords) -> bool:
        """Hand over the complete records that stand next; what is too large stays for the scanner to
        refuse. False: they have to wait."""
        end = record_run(self._buffer, self._offset, self._max_object)
        if end > self._offset:
            with memoryview(self._buffer) as whole, whole[:end] as run:
                while self._offset < end:
                    taken = take_records(run, self._offset)
                    if taken == self._offset:
                        return False
                    if not self._offset < taken <= end:
                        raise RuntimeError(f"take_records went from {self._offset} to {taken} of {end}")
                    self._offset = taken
        return True


def is_record_head(byte: int | None) -> bool:
    """Whether an object that begins with this byte is an event record: bin 8, 16 and 32."""
    return byte is not None and 0xC4 <= byte <= 0xC6


def _decode(data: bytes) -> Any:
    try:
        return msgpack.unpackb(
            data, raw=False, unicode_errors="surrogateescape", strict_map_key=False, use_list=True
        )
    except (ValueError, TypeError) as error:  # a bad timestamp, an array as key of a map
        raise ProtocolError(errno.EPROTO, f"object that cannot be decoded: {error}") from None


def _message(value: Any) -> Message:
    """Check the outer shape of msgpack-rpc; what is in params is for the method to judge."""
    match value:
        case [kind, msgid, str() as method, list() as params] if _is(kind, _REQUEST) and _is_u32(msgid):
            return Request(msgid, method, params)
        case [kind, msgid, None, result] if _is(kind, _RESPONSE) and _is_u32(msgid):
            return Response(msgid, None, result)
        case [kind, msgid, [number, str() as text], _] if (
            _is(kind, _RESPONSE) and _is_u32(msgid) and type(number) is int
        ):
            return Response(msgid, (number, text), None)
        case [kind, str() as method, list() as params] if _is(kind, _NOTIFICATION):
            return Notification(method, params)
    raise ProtocolError(
        errno.EPROTO,
        "array that is no message; [0, msgid, method, params], [1, msgid, error, result] "
        "or [2, method, params]",
    )


def _is(value: object, number: int) -> bool:
    """An integer, not the true or 1.0 that Python finds equal to one."""
    return type(value) is int and value == number


def _is_u32(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_MSGID


def _encode(value: Any) -> bytes:
    data: bytes = msgpack.packb(value, use_bin_type=True, unicode_errors="surrogateescape")
    return data


def encode_request(msgid: int, method: str, params: list[Any]) -> bytes:
    return _encode([_REQUEST, msgid, method, params])


def encode_response(msgid: int, result: Any) -> bytes:
    """Success: error is nil."""
    return _encode([_RESPONSE, msgid, None, result])


def encode_bin_response(msgid: int, pieces: Sequence[bytes]) -> list[bytes]:
    """Success with one bin, which is made of these pieces: what to send, one after the other.

    Large pieces are neither joined nor copied: a `read_file` has up to 64 MiB.
    """
    size = sum(map(len, pieces))
    if size <= 0xFFFF:
        return [encode_response(msgid, b"".join(pieces))]
    head = b"\x94" + b"".join(map(_encode, (_RESPONSE, msgid, None)))
    return [head + b"\xc6" + size.to_bytes(4, "big"), *pieces]


def encode_error(msgid: int, errno: int, text: str) -> bytes:
    """Failure: result is nil. `errno` is the positive number."""
    return _encode([_RESPONSE, msgid, [errno, text], None])


def encode_notification(method: str, params: list[Any]) -> bytes:
    return _encode([_NOTIFICATION, method, params])


def encode_record(data: bytes | bytearray | memoryview) -> bytes:
    """One event record: `data` is write_index and payload."""
    return _encode(bytes(data))
