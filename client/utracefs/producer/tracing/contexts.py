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
from weakref import WeakValueDictionary

from utracefs.producer._emit import present_context, use_context

_variable: ContextVar[Mapping[str, Any]] = ContextVar("utracefs.context")
_NOTHING: Mapping[str, Any] = {}

NAMES: set[str] = set()
"""Names of all values ever given to a context."""


class context:
    """A context manager: adds values to those of the context around it. May be entered again, also by several
    tasks.

    Its end removes its values, and values that were added within it and are still there, as by a suspended
    generator. If the end comes in another contextvars.Context than the begin (the event loop closes a
    generator), the values are removed from both.
    """

    def __init__(self, **values: Any) -> None:
        NAMES.update(values)
        self._values = values
        self._uses: WeakValueDictionary[int, _Values] = WeakValueDictionary()

    def __enter__(self) -> Self:
        # The values around are kept in the dict itself: one object is entered by several tasks.
        around = present()
        use = _Values(around, {**around, **self._values})
        _variable.set(use)
        use.place = present_context()
        self._uses[id(use)] = use
        return self

    def __exit__(self, *_: object) -> None:
        use = present()
        while isinstance(use, _Values) and id(use) not in self._uses:
            use = use.around
        if isinstance(use, _Values):
            _variable.set(use.around)
        elif len(self._uses) == 1:
            # Not in this context; or it is a generator's, whose caller's has ended before.
            (use,) = self._uses.values()
        else:
            return  # which of them, is not known
        del self._uses[id(use)]
        if use.place != present_context():
            use.clear()
            use.update(use.around)


class _Values(dict[str, Any]):
    place = 0
    """The contextvars.Context in which they were added."""

    def __init__(self, around: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.around = around


def present() -> Mapping[str, Any]:
    return _variable.get(_NOTHING)


use_context(_variable, NAMES)
