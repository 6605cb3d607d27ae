"""Replacement for the compiled modules where they cannot be used: events that are never on.

This applies to a second interpreter of the process (mod_wsgi with two applications,
`concurrent.interpreters`), and to a free-threaded Python without its GIL, which all compiled modules rely on.
Missing tracing is never an error: a program runs there as without a daemon. A wrong declaration is still a
ValueError; values are not checked.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, Self

BEGIN_FIELDS = "u64 span_id; u64 parent_id"
END_FIELDS = f"{BEGIN_FIELDS}; u64 duration_ns; __rel_loc char[] error"
KINDS = dict.fromkeys(("INTEGER", "CHAR_ARRAY", "STRUCT", "DATA_LOC", "REL_LOC", "FLOAT", "BOOL"), 0)


class Event:
    """An event that no consumer can be attached to."""

    enabled = False
    registered = False
    index = -1
    emitted = 0
    lost = 0
    error = None

    def __init__(
        self,
        session: Any,
        name: bytes,
        declaration: bytes,
        _command: bytes,
        flags: int,
        fields: list[tuple[Any, ...]],
        _max_size: int,
    ) -> None:
        self.session = session
        self.name = name.decode("utf-8", "surrogateescape")
        self.declaration = declaration.decode("utf-8", "surrogateescape")
        self.fields = tuple([field[0].decode("utf-8", "surrogateescape") for field in fields])
        self.flags = flags
        self.refused: dict[str, int] = {}
        self.defaults: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return False

    def emit(self, *args: Any, **kwargs: Any) -> None:
        """No effect. TypeError: the number or names of values do not match the fields."""
        optional = {*_names_of_contexts[0], *(self.defaults or ())}
        named = [field for field in self.fields[len(args) :] if field in kwargs or field not in optional]
        if len(args) > len(self.fields) or sorted(kwargs) != sorted(named):
            raise TypeError(
                f"{self.name}: {len(args)} values and {list(kwargs)} for the fields {', '.join(self.fields)}"
            )

    def __repr__(self) -> str:
        return f"<utracefs.Event {self.declaration!r}, off>"

    def __str__(self) -> str:
        return self.declaration

    def __reduce__(self) -> Any:
        return self.session._reduce(self)

    def _counts(self) -> tuple[int, int, int]:
        return (0, 0, 0)


class Span:
    """A span that is never on; also a use of it."""

    span_id = 0
    parent_id = 0

    def __init__(self, name: str, begin: Event, end: Event, fields: tuple[str, ...]) -> None:
        self.name = name
        self.begin = begin
        self.end = end
        self.fields = fields

    def __bool__(self) -> bool:
        return False

    def __call__(self, *values: Any, **named: Any) -> Any:
        return values[0] if len(values) == 1 and callable(values[0]) else self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def having(self, _values: object) -> Self:
        return self

    def set(self, *args: Any, **kwargs: Any) -> None:
        """No effect."""


def current() -> None:
    """No span is running."""


class NativeSession:
    """Accepts declarations without effect."""

    is_connected = False
    ring_bytes = 0

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def declare(self, _event: Event) -> bool:
        return True

    def flush(self, _timeout_s: float) -> bool:
        return True

    def close(self) -> None: ...


def install(*_: Any) -> None:
    """Nothing is to be done at a fork."""


def end() -> None:
    """No session has a thread."""


_is_strict = [False]


def strict(on: bool = True) -> bool:
    """As `utracefs.strict`."""
    before, _is_strict[0] = _is_strict[0], on
    return before


def check_defaults(_event: Event) -> None:
    """No value is checked."""


_names_of_contexts: list[AbstractSet[str]] = [frozenset()]


def use_context(_variable: object, names: AbstractSet[str]) -> None:
    _names_of_contexts[0] = names


def present_context() -> int:
    return 0
