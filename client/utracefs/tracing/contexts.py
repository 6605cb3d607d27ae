"""Values that all records of a request, or of another context, have in common.

    with utracefs.context(request_id="a1", user="jo"):
        login.emit(200)                 # login u16 status; __rel_loc char[] request_id
        logging.info("hello")           # by LoggingHandler

If an event or a declared span has a field of that name, and `emit` gets no value for it, the record gets the
context's. So one column finds all records of a request. Outside of the context the field is 0 or empty. This
applies from the moment when the first context with that name was made, entered or not; before, a missing
value is a TypeError as always.

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
"""Names of all values ever given to a context."""


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
