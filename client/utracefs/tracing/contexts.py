"""Values of a context, as a request, which its records have in common.

    with utracefs.context(request_id="a1", user="jo"):
        login.emit(200)                 # login u16 status; __rel_loc char[] request_id
        logging.info("hello")           # by LoggingHandler

An event, or a declared span, that has a field of such a name takes it when it is not given: so one column
finds all that a request did. Outside of the context the field is 0 or empty. Names count from the first
context that was made with them, entered or not; before, a missing value is a TypeError as always.

Tasks have the values of the context where they were created, threads none (contextvars).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Self

from utracefs.fallback.available import CAN_TRACE

_variable: ContextVar[Mapping[str, Any]] = ContextVar("utracefs.context")
_NOTHING: Mapping[str, Any] = {}

NAMES: set[str] = set()
"""Of all contexts that were made."""


class context:
    """A context manager: adds values to those of the context around it. May be entered again, also by several
    tasks."""

    def __init__(self, **values: Any) -> None:
        NAMES.update(values)
        self._values = values

    def __enter__(self) -> Self:
        # The values around are kept in the dict itself: one object is entered by several tasks.
        around = present()
        _variable.set(_Values(around, {**around, **self._values}))
        return self

    def __exit__(self, *_: object) -> None:
        within = present()
        _variable.set(within.around if isinstance(within, _Values) else _NOTHING)


class _Values(dict[str, Any]):
    def __init__(self, around: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.around = around


def present() -> Mapping[str, Any]:
    return _variable.get(_NOTHING)


if CAN_TRACE:
    from utracefs._emit import use_context

    use_context(_variable, NAMES)
