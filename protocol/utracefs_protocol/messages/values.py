"""Single values of a message: valid names, numbers and maps. EINVAL, naming the member, for others.

A kind of members has a function to read a value and one to write it.

Text (names, paths, command strings) may arrive as str or as bin and is bytes in the program: `text_bytes`. We
send str if it is UTF-8 and bin if not: `wire_text`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from utracefs_protocol.errors import TOO_OLD, TraceError
from utracefs_protocol.text import bytes_of

WireMap: TypeAlias = Mapping[Any, Any]

U64_MAX: Final = (1 << 64) - 1


def wire_text(value: bytes) -> str | bytes:
    """A name or path for the wire: str if it is UTF-8, else bin."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def text_bytes(value: object, what: str) -> bytes:
    """A name or path from the wire, str or bin."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return bytes_of(value)
        except UnicodeEncodeError:
            raise TraceError(errno.EINVAL, f"{what} cannot be written as UTF-8") from None
    raise TraceError(errno.EINVAL, f"{what} must be str or bin, not {_kind(value)}")


def wire_bytes(value: object, what: str) -> bytes:
    """Contents: bin only."""
    if not isinstance(value, bytes):
        raise TraceError(errno.EINVAL, f"{what} must be bin, not {_kind(value)}")
    return value


def wire_int(value: object, what: str, low: int = 0, high: int = U64_MAX) -> int:
    """An integer from low to high; true and false are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TraceError(errno.EINVAL, f"{what} must be an integer, not {_kind(value)}")
    if not low <= value <= high:
        raise TraceError(errno.EINVAL, f"{what} {value} is not within {low} to {high}")
    return value


def wire_bool(value: object, what: str) -> bool:
    """true or false; also 0 and 1, for languages without booleans."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise TraceError(errno.EINVAL, f"{what} must be true or false, not {_kind(value)}")


def wire_map(value: object, what: str) -> WireMap:
    """A map. Its keys are checked when a member is looked up."""
    if not isinstance(value, dict):
        raise TraceError(errno.EINVAL, f"{what} must be a map, not {_kind(value)}")
    return value


def params_of(method: str, params: list[Any], *names: str) -> list[Any]:
    """The params of a call, with a check of their number: `path, size = params_of("read", params, "handle",
    "size")`. EINVAL otherwise."""
    if len(params) != len(names):
        raise TraceError(errno.EINVAL, f"{method} takes [{', '.join(names)}], not {len(params)} params")
    return params


def refuse_unknown(members: WireMap, known: Collection[str], what: str) -> None:
    """copy_struct_from_user(): E2BIG for a tail that is not zero."""
    for key, value in members.items():
        if key not in known and value:
            raise TraceError(errno.E2BIG, f"{what} has the unknown member {key!r}: {TOO_OLD}")


class Kind(NamedTuple):
    """Reads and writes members of one kind."""

    word: str
    """Its name in docs/protocol.md."""
    read: Callable[..., Any]
    """Called with the value on the wire, the member's name and its limits. TraceError."""
    write: Callable[[Any], Any] | None = None
    """None: it is written unchanged."""


INT: Final = Kind("int", wire_int)
TEXT: Final = Kind("text", text_bytes, wire_text)
BIN: Final = Kind("bin", wire_bytes)
BOOL: Final = Kind("bool", wire_bool)


def or_nil(kind: Kind) -> Kind:
    """The same, or None."""

    def read(value: Any, *more: Any) -> Any:
        return None if value is None else kind.read(value, *more)

    def write(value: Any) -> Any:
        return value if value is None or kind.write is None else kind.write(value)

    return Kind(kind.word, read, write)


_KINDS: Final = {type(None): "nil", bool: "bool", bytes: "bin", list: "array", dict: "map"}


def _kind(value: object) -> str:
    return _KINDS.get(type(value), type(value).__name__)
