"""Packs values into a payload and unpacks them, in plain Python: the judge of what is compiled. A payload:

    | fixed part: every field at its offset, no padding | what the location words point at, in field order |

A location word is size << 16 | offset. The offset of `__data_loc` counts from the beginning of the recorded
entry, which has 8 common bytes in front of the payload; that of `__rel_loc` from the byte after the word. The
size includes the NUL that ends a string.
"""

import math
import operator
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias

from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.limits import ENTRY_HEADER_SIZE, MAX_LOC, MAX_PAYLOAD
from utracefs_protocol.text import bytes_of, text_of

Value: TypeAlias = int | float | str | bytes | list[Any]

_BYTES_LIKE: Final = (bytes, bytearray, memoryview)
_FLOAT_CODES: Final = {4: "<f", 8: "<d"}


class Layout:
    """Packs and unpacks the payloads of one event."""

    def __init__(self, fields: Iterable[Field]) -> None:
        self.fields: Final = tuple(fields)
        self.names: Final = tuple(text_of(field.name) for field in self.fields)
        self.min_size: Final = max((field.payload_offset + field.size for field in self.fields), default=0)

    def pack(self, *values: Any) -> bytes:
        """The payload for one value per field.

        | field | value | out of range |
        |---|---|---|
        | integer | int, or what has `__index__` | OverflowError |
        | char array | str (as UTF-8) or bytes, NUL added up to its length | ValueError when longer |
        | `struct bool` of 1 byte | bool, or the integers 0 and 1 | OverflowError |
        | `struct double` of 8 bytes, `struct float` of 4 | a number | OverflowError |
        | array (`Field.element`) | a sequence of its numbers, or its bytes | as these; ValueError |
        | other structs | bytes of exactly its size | ValueError |
        | location word | as a char array; a NUL is added where the type has `char` | ValueError above 65535 |

        TypeError for a value of another type, or another number of them. ValueError for a payload above 65529
        bytes, which no record can carry. Surrogate escapes in a str become the bytes that they stand for.
        """
        if len(values) != len(self.fields):
            raise TypeError(f"the event has {len(self.fields)} fields, {len(values)} values were given")
        payload = bytearray(self.min_size)
        for field, name, value in zip(self.fields, self.names, values, strict=True):
            start = field.payload_offset
            if field.is_loc:
                word = self._append(payload, field, name, value)
                payload[start : start + 4] = word.to_bytes(4, "little")
            else:
                payload[start : start + field.size] = _fixed(field, name, value)
        if len(payload) > MAX_PAYLOAD:
            raise ValueError(f"payload of {len(payload)} bytes; a record holds at most {MAX_PAYLOAD}")
        return bytes(payload)

    @staticmethod
    def _append(payload: bytearray, field: Field, name: str, value: Any) -> int:
        """Put dynamic data behind all that is there; the location word for it."""
        data = _as_bytes(name, value, text=True)
        if field.is_string:
            data += b"\0"
        position = len(payload)
        if field.kind is FieldKind.DATA_LOC:
            offset = ENTRY_HEADER_SIZE + position
        else:
            offset = position - (field.payload_offset + 4)
        if len(data) > MAX_LOC or offset > MAX_LOC:
            raise ValueError(
                f"field {name!r}: {len(data)} bytes at offset {offset}; "
                f"a location word holds at most {MAX_LOC} each"
            )
        payload += data
        return len(data) << 16 | offset

    def unpack(self, payload: bytes | bytearray | memoryview) -> dict[str, Value]:
        """Name to value. Of fields with the same name the last one remains; `unpack_items` has them all."""
        return dict(self.unpack_items(payload))

    def unpack_items(self, payload: bytes | bytearray | memoryview) -> list[tuple[str, Value]]:
        """(name, value) of every field in order. Arrays (`Field.element`) are lists of numbers; text
        (`char[N]`, dynamic data with `char` in its type) is str up to its first NUL; `unsigned char[N]`,
        other structs and other dynamic data are bytes. A field of size 0, as in the kernel's `char buf[]`,
        goes to the end.

        ValueError when the payload is too short, or a location word points outside it.
        """
        payload = bytes(payload)
        if len(payload) < self.min_size:
            raise ValueError(f"payload of {len(payload)} bytes; the event has at least {self.min_size}")
        return [
            (name, _value(field, name, payload)) for field, name in zip(self.fields, self.names, strict=True)
        ]


def _as_bytes(name: str, value: Any, *, text: bool) -> bytes:
    if isinstance(value, _BYTES_LIKE):
        return bytes(value)
    if text and isinstance(value, str):
        return bytes_of(value)
    wanted = "str or bytes" if text else "bytes"
    raise TypeError(f"field {name!r} takes {wanted}, not {type(value).__name__}")


def _fixed(field: Field, name: str, value: Any) -> bytes:
    element = field.element
    if element is not None and not isinstance(value, _BYTES_LIKE):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"field {name!r} takes a sequence or bytes, not {type(value).__name__}")
        count = field.size // element.size
        if len(value) != count:
            raise ValueError(f"field {name!r} takes exactly {count} numbers, not {len(value)}")
        return b"".join([_fixed(element, name, one) for one in value])
    if field.is_float:
        try:
            number = math.copysign(value, value)  # as float(), which takes texts, too
        except TypeError:
            raise TypeError(f"field {name!r} takes a number, not {type(value).__name__}") from None
        return struct.pack(_FLOAT_CODES[field.size], number)
    if field.is_bool:
        number = operator.index(value)
        if number not in (0, 1):
            raise OverflowError(f"field {name!r}: {number} does not fit bool")
        return number.to_bytes(1, "little")
    match field.kind:
        case FieldKind.INTEGER:
            try:
                number = operator.index(value)
            except TypeError:
                raise TypeError(f"field {name!r} takes an integer, not {type(value).__name__}") from None
            try:
                return number.to_bytes(field.size, "little", signed=field.signed)
            except OverflowError:
                raise OverflowError(f"field {name!r}: {number} does not fit {field.type.decode()}") from None
        case FieldKind.CHAR_ARRAY:
            data = _as_bytes(name, value, text=True)
            if len(data) > field.size:
                raise ValueError(f"field {name!r}: {len(data)} bytes, there is room for {field.size}")
            return data.ljust(field.size, b"\0")
        case _:
            data = _as_bytes(name, value, text=False)
            if len(data) != field.size:
                raise ValueError(f"field {name!r}: {len(data)} bytes, the struct has {field.size}")
            return data


def _value(field: Field, name: str, payload: bytes) -> Value:
    start = field.payload_offset
    data = payload[start : start + field.size] if field.size else payload[start:]
    if field.is_loc:
        word = int.from_bytes(data, "little")
        offset, size = word & 0xFFFF, word >> 16
        begin = offset - ENTRY_HEADER_SIZE if field.kind is FieldKind.DATA_LOC else start + 4 + offset
        if begin < 0 or begin + size > len(payload):
            raise ValueError(f"field {name!r}: {size} bytes at {begin} of a payload of {len(payload)}")
        data = payload[begin : begin + size]
        return _string(data) if field.is_string else data
    if (element := field.element) is not None:
        offsets = range(field.offset, field.offset + field.size, element.size)
        return [_value(element.evolve(offset=offset), name, payload) for offset in offsets]
    if field.is_float:
        return float(struct.unpack(_FLOAT_CODES[field.size], data)[0])
    if field.is_bool:
        return data != b"\0"
    match field.kind:
        case FieldKind.INTEGER:
            return int.from_bytes(data, "little", signed=field.signed)
        case FieldKind.CHAR_ARRAY if not field.type.startswith(b"unsigned"):
            return _string(data)
        case _:
            return data


def _string(data: bytes) -> str:
    return text_of(data.partition(b"\0")[0])
