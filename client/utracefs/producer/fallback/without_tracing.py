"""Replacement for the compiled modules where they cannot be used: events that are never on.

This applies to a second interpreter of the process (mod_wsgi with two applications,
`concurrent.interpreters`), and to a free-threaded Python without its GIL, which all compiled modules rely on.
Missing tracing is never an error: a program runs there as without a daemon. A wrong declaration is still a
ValueError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, Self

from utracefs.producer.declarations.checking import check_declaration, command_bytes
from utracefs.producer.totals import EventStats, Stats
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST


class Event:
    """An event that no consumer can be attached to."""

    enabled = False
    registered = False
    index = -1
    emitted = 0
    lost = 0
    error = None

    def __init__(
        self, session: Session, name: str, declaration: str, fields: tuple[str, ...], flags: int
    ) -> None:
        self.session = session
        self.name = name
        self.declaration = declaration
        self.fields = fields
        self.flags = flags
        self.refused: dict[str, int] = {}
        self.defaults: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return False

    def emit(self, *args: Any, **kwargs: Any) -> None:
        """No effect. TypeError: the number or names of values do not match the fields."""
        contexts = sys.modules.get("utracefs.producer.tracing.contexts")
        optional = {*(contexts.NAMES if contexts is not None else ()), *(self.defaults or ())}
        named = [field for field in self.fields[len(args) :] if field in kwargs or field not in optional]
        if len(args) > len(self.fields) or sorted(kwargs) != sorted(named):
            raise TypeError(
                f"{self.name}: {len(args)} values and {list(kwargs)} for the fields {', '.join(self.fields)}"
            )

    def __repr__(self) -> str:
        return f"<utracefs.Event {self.declaration!r}, off>"

    def __str__(self) -> str:
        return self.declaration

    def __reduce__(self) -> tuple[Any, ...]:
        return _declare_again, (self.declaration, self.flags, self.defaults)


class Span:
    """A span that is never on; also a use of it."""

    span_id = 0
    parent_id = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False

    def __call__(self, *values: Any, **named: Any) -> Any:
        return values[0] if len(values) == 1 and callable(values[0]) else self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def set(self, *args: Any, **kwargs: Any) -> None:
        """No effect."""


class Session:
    """Accepts declarations without effect."""

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, buffer_kb: int | None = None
    ) -> None:
        self._events: dict[tuple[str, int], Event] = {}

    def event(self, declaration: str | bytes, *, persist: bool = False, multi_format: bool = False) -> Event:
        """As `utracefs.event`. ValueError: the declaration is wrong."""
        found = check_declaration(command_bytes(declaration))
        flags = REG_PERSIST * bool(persist) | REG_MULTI_FORMAT * bool(multi_format)
        text = _text(found.canonical())
        fields = tuple(_text(field.name) for field in found.fields)
        return self._events.setdefault((text, flags), Event(self, _text(found.name), text, fields, flags))

    def events(
        self, declarations: Iterable[str | bytes], *, persist: bool = False, multi_format: bool = False
    ) -> list[Event]:
        """As `utracefs.events`. ValueError: a declaration is wrong."""
        return [self.event(one, persist=persist, multi_format=multi_format) for one in declarations]

    def flush(self, timeout_s: float = 1.0) -> bool:
        """As `utracefs.flush`: nothing was emitted."""
        return True

    def close(self) -> None:
        """As `utracefs.close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """As `utracefs.stats`."""
        events = {event.declaration: EventStats(0, 0, {}, None) for event in self._events.values()}
        return Stats(connected=False, emitted=0, sent=0, pending=0, lost=0, refused=0, events=events)


_is_strict = [False]


def strict(on: bool = True) -> bool:
    """As `utracefs.strict`; values are not checked here."""
    before, _is_strict[0] = _is_strict[0], on
    return before


_session = Session()


def process_session() -> Session:
    return _session


def span(what: object, end: object = None, /, **values: Any) -> Span:
    """As `utracefs.span`; declarations are not checked here."""
    return Span(str(getattr(what, "declaration", what)).partition(" ")[0])


def current_span() -> None:
    return None


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _declare_again(declaration: str, flags: int, defaults: dict[str, Any] | None) -> Event:
    event = _session.event(
        declaration, persist=bool(flags & REG_PERSIST), multi_format=bool(flags & REG_MULTI_FORMAT)
    )
    event.defaults = defaults or event.defaults
    return event
