"""Declaring spans.

    with utracefs.span("shop.order", order=7):          # fields by their values
        ...

    order_span = utracefs.span("shop_order u64 order")  # declared once, for hot code
    with order_span(7) as running:
        running.set(order=8)                            # for the record of the end

    request = utracefs.span("request __rel_loc char[] route", "u16 status")     # status: of the end only
    with request("/") as running:
        running.set(status=200)

    @utracefs.span("shop.pay")
    async def pay(): ...

A span NAME is two events, NAME_begin and NAME_end: a consumer enables both (`NAME_*`), or only the end, which
has all the fields and the duration.

    NAME_begin   u64 span_id; u64 parent_id; FIELDS
    NAME_end     u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error; FIELDS; END

A field without a value may be set until the end; in the record of the begin it is 0 or empty. If it never
gets one, there is one warning, and the record of the end has 0 or empty, too.

error is the class of the exception that ended the span, or empty. Exports recognize spans by these fields.
"""

from __future__ import annotations

import contextlib

from utracefs.producer._span import BEGIN_FIELDS, END_FIELDS, Span, current
from utracefs.producer.declarations.defining import FIELDS, check_defaults, command_string, defaults_of
from utracefs.producer.process_session import process_session

TYPE_CHECKING = False  # typing is not imported by a program that does not use it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, overload

    from utracefs.producer.declarations.defining import Declared
    from utracefs.producer.session import Session

    Begin = ParamSpec("Begin")
    End = ParamSpec("End")
else:

    def overload(function):
        return function  # without typing


current_span = current

_known: dict[object, Span] = {}
"""Spans of the process's session, with the values in the order of the fields."""

_OWN = {"span_id", "parent_id", "duration_ns", "error"}


# (`overload` is typing's for type checkers only.)
@overload
def span(  # type: ignore[overload-overlap]
    what: Declared[Begin], end: Callable[End, object], /
) -> Span[Begin, End]: ...
@overload
def span(  # type: ignore[overload-overlap] # noqa: F811
    what: Declared[Begin], end: str | None = None, /
) -> Span[Begin, ...]: ...
@overload
def span(  # noqa: F811
    what: object, end: Callable[End, object], /, **values: Any
) -> Span[..., End]: ...
@overload
def span(  # noqa: F811
    what: object, end: str | None = None, /, **values: Any
) -> Span[..., ...]: ...
def span(what: object, end: Any = None, /, **values: Any) -> Any:  # noqa: F811
    """A span: for `with`, to call for each use, or as a decorator.

    what: the name, of which dots become `_`; or a declaration `NAME TYPE FIELD; ...`, an Event, or anything
    whose str() is a declaration. end: fields of the end only: `TYPE FIELD; ...`, or a function or class as
    `utracefs.define` takes it, whose arguments are then those of `set` for type checkers. values: of the
    other fields; for a name they are the fields, with types by the first call. The parent is the span of this
    context; `span(parent_id=...)` is a use with another one.

    ValueError: the declaration is wrong. TypeError: a value's type is no field's.
    """
    try:
        return _known[what, end, *values].having(tuple(values.values()) if values else None)
    except (KeyError, TypeError):
        pass  # a new one; or it has no hash
    found = declare(process_session(), what, values, end)
    if not values or found.begin.fields[2:] == tuple(values):
        with contextlib.suppress(TypeError):
            _known[what, end, *values] = found
    return found


def declare(session: Session, what: object, values: dict[str, Any], end: Any = None) -> Span:
    """As `span`, in this session."""
    key = (what, end, *values)
    try:
        known: Span | None = session._spans.get(key)
    except TypeError:  # it has no hash
        known = None
    if known is None:
        text = _declaration(what, values)
        name, _, fields = text.partition(" ")
        is_text = end is None or isinstance(end, str)
        of_end = (end or "") if is_text else command_string(end, {}, "end").partition(" ")[2]
        events = session.events(
            [
                _event_text(f"{name}_begin", BEGIN_FIELDS, fields),
                _event_text(f"{name}_end", END_FIELDS, fields, of_end),
            ]
        )
        own = events[1].fields[4:]
        if clashing := _OWN.intersection(own):
            raise ValueError(f"{name}: every span has a field {clashing.pop()!r}")
        if of_end and (twice := [field for field in own if own.count(field) > 1]):
            raise ValueError(f"{name}: two fields {twice[0]!r}")
        for event in events:
            defaults = {**(getattr(what, "defaults", None) or {}), **({} if is_text else defaults_of(end))}
            check_defaults(event.declaration, defaults)
            event.defaults = defaults or event.defaults
        known = session._spans[key] = Span(name, events[0], events[1], own)
    if not values:
        return known.having(None)
    fields_of_begin = known.begin.fields[2:]
    if values.keys() != set(fields_of_begin):
        raise TypeError(
            f"{known.name}: values for {', '.join(values)}; its fields are {', '.join(fields_of_begin)}"
        )
    return known.having(tuple([values[field] for field in fields_of_begin]))


def _declaration(what: object, values: dict[str, Any]) -> str:
    text = getattr(what, "declaration", None)
    if text is None:
        text = str(what)
        if callable(what) or what is None or not text.strip():
            raise TypeError('a span has a name: @utracefs.span("NAME")')
    name, _, fields = text.strip().partition(" ")
    if not fields:
        fields = "; ".join(_field(name, value) for name, value in values.items())
    return f"{name.replace('.', '_')} {fields}"


def _event_text(name: str, *fields: str) -> str:
    return f"{name} {'; '.join(text.strip(' ;') for text in fields if text.strip(' ;'))}"


def _field(name: str, value: object) -> str:
    """A field for values like this one; None is a text."""
    for kind in (bool, int, float, str, bytes):  # bool is an int
        if isinstance(value, kind):
            return FIELDS[kind].format(name)
    if value is None:
        return FIELDS[str].format(name)
    raise TypeError(
        f"{name} is {type(value).__name__}: fields by their values are int, float, bool, str or bytes"
    )
