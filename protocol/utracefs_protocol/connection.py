"""Decodes bytes into messages and encodes messages, for both ends of both sockets. Does no I/O.

Both directions carry MessagePack objects one after the other, with no other framing:

    [0, msgid, method, params]      Request         expects one Response with the same msgid
    [1, msgid, error, result]       Response        error is nil or [errno, text]
    [2, method, params]             Notification    expects no response
    bin                             event record    data socket only: i32 write_index, payload

A Connection never buffers an object that it will refuse. An object that is malformed, too large or nested too
deeply raises ProtocolError as soon as the received bytes show it (see _framing), after all messages before it
were returned. Then the connection has ended, since the start of the next message is unknown.

Messages are decoded one at a time, when the caller requests the next. So a registration has been carried out
before the records behind it, which use its write_index, are decoded. Bytes of text that are not UTF-8 become
surrogate escapes.
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


_REQUEST: Final = 0
_RESPONSE: Final = 1
_NOTIFICATION: Final = 2


class Request(Frozen):
    """A call that expects a response."""

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
    """A message without a response: `error`, `write_error`."""

    method: str
    params: list[Any]


Message: TypeAlias = Request | Response | Notification


class Connection:
    """The receiving half of one connection, fed with bytes as they come.

    max_object: bytes of the largest accepted object; None for a client that trusts its daemon.
    take_records: consumes complete event records from a buffer, starting at an offset, and returns the offset
    behind the last one: a record costs no Python call. If it takes none, these records and all messages
    behind them wait. None: records are refused.
    """

    def __init__(
        self,
        *,
        max_object: int | None,
        max_nesting: int = MAX_NESTING,
        take_records: TakeRecords | None = None,
    ) -> None:
        self._max_object = max_object
        self._scanner = Scanner(max_object, max_nesting)
        self._take_records = take_records
        self._buffer = bytearray()
        self._offset = 0
        self._error: ProtocolError | None = None

    def close(self) -> None:
        """Stop receiving. Drops `take_records`, which usually refers to this object in turn."""
        self._take_records = None

    @property
    def bytes_pending(self) -> int:
        """Received bytes that are not decoded yet. At end of file, not 0 means an incomplete message."""
        return len(self._buffer) - self._offset

    def receive(self, data: bytes | bytearray | memoryview) -> Iterator[Message]:
        """Take in bytes; iterate to get the messages that are complete with them. If the caller stops early,
        the next call continues there. ProtocolError at the first object that is malformed or over a limit,
        and at every later call."""
        return (message for message in self.receive_in_turns(data) if message is not None)

    def receive_in_turns(self, data: bytes | bytearray | memoryview) -> Iterator[Message | None]:
        """Like `receive`, but yields None before each message. A caller that stops there holds no decoded
        object, which may be fifty times as large as its bytes. Also None while records wait."""
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
                yield None
                yield _message(_decode(self._take_object(end)))
        except ProtocolError as error:
            # A new exception: the traceback of a raised one would refer to this object.
            self._error = ProtocolError(error.errno, error.text)
            self._buffer.clear()
            self._offset = 0
            raise
        finally:
            # move the remaining bytes once per call, not per message
            if self._offset:
                del self._buffer[: self._offset]
                self._offset = 0

    def _take_object(self, end: int) -> bytes:
        with memoryview(self._buffer) as view:
            data = bytes(view[self._offset : end])
        self._offset = end
        return data

    def _next_object(self) -> int | None:
        """Offset of the end of the next message, behind a run of records; 0: it, or a record, is incomplete;
        None: the records have to wait."""
        buffer = self._buffer
        if self._offset < len(buffer) and 0xC4 <= buffer[self._offset] <= 0xC6:
            if self._take_records is None:
                raise ProtocolError(
                    errno.EPROTO, "event record on a connection that takes none; use the data socket"
                )
            if not self._take_run(self._take_records):
                return None
        start = self._offset
        if start == len(buffer):
            return 0
        kind = buffer[start]
        if not (0x90 <= kind <= 0x9F or kind in (0xDC, 0xDD) or 0xC4 <= kind <= 0xC6):
            raise ProtocolError(
                errno.EPROTO, f"object beginning with {kind:#04x} is neither an array nor bin"
            )
        return self._scanner.scan(buffer, start)

    def _take_run(self, take_records: TakeRecords) -> bool:
        """Pass the next complete records on; the scanner refuses too large ones. False: they have
        to wait."""
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


def _decode(data: bytes) -> Any:
    try:
        return msgpack.unpackb(
            data, raw=False, unicode_errors="surrogateescape", strict_map_key=False, use_list=True
        )
    except (ValueError, TypeError) as error:  # a bad timestamp, an array as key of a map
        raise ProtocolError(errno.EPROTO, f"object that cannot be decoded: {error}") from None


def _message(value: Any) -> Message:
    """Check the outer shape of msgpack-rpc; the method checks its params."""
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
    """Success with one bin of these pieces: the buffers to send. A `read_file` has up to 64 MiB, not
    joined."""
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
