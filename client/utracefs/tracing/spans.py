"""Declaring spans.

    with utracefs.span("shop.order", order=7):          # fields by their values
        ...

    order_span = utracefs.span("shop_order u64 order")  # declared once, for hot code
    with order_span(7) as running:
        running.set(order=8)                            # for the record of the end

    @utracefs.span("shop.pay")
    async def pay(): ...

A span NAME is two events, NAME_begin and NAME_end: a consumer enables both (`NAME_*`), or only the end, which
has all the fields and the duration.

    NAME_begin   u64 span_id; u64 parent_id; FIELDS
    NAME_end     u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error; FIELDS

error is the class of the exception that ended the span, or empty. Exports recognize spans by these fields.
"""

from __future__ import annotations

import contextlib

import utracefs._traced  # noqa: F401 - decorates
from utracefs._span import BEGIN_FIELDS, END_FIELDS, Span, current
from utracefs.declarations.defining import FIELDS
from utracefs.process_session import process_session

TYPE_CHECKING = False  # typing is not imported by a program that does not use it
if TYPE_CHECKING:
    from typing import Any

    from utracefs.session import Session


current_span = current

_known: dict[object, Span] = {}
"""Spans of the process's session, with the values in the order of the fields."""

_OWN = {"span_id", "parent_id", "duration_ns", "error"}


def span(what: object, /, **values: Any) -> Span:
    """A span: for `with`, to call for each use, or as a decorator.

    what: the name, of which dots become `_`; or a declaration `NAME TYPE FIELD; ...`, an Event, or anything
    whose str() is a declaration. values: of its fields; for a name they are the fields, with types by the
    first call. The parent is the span of this context; `span(parent_id=...)` is a use with another one.

    ValueError: the declaration is wrong. TypeError: a value's type is no field's.
    """
    try:
        return _known[what, *values].having(tuple(values.values()) if values else None)
    except (KeyError, TypeError):  # a new one; or it has no hash
        session = process_session()
        found = declare(session, what, values)
        if not values or found.fields == tuple(values):
            with contextlib.suppress(TypeError):
                _known[what, *values] = found
        return found


def declare(session: Session, what: object, values: dict[str, Any]) -> Span:
    """As `span`, in this session."""
    key = (what, *values)
    try:
        known: Span | None = session._spans.get(key)
    except TypeError:  # it has no hash
        known = None
    if known is None:
        text = _declaration(what, values)
        name, _, fields = text.partition(" ")
        begin, end = session.events(
            [
                _event_text(f"{name}_begin", BEGIN_FIELDS, fields),
                _event_text(f"{name}_end", END_FIELDS, fields),
            ]
        )
        own = begin.fields[2:]
        if clashing := _OWN.intersection(own):
            raise ValueError(f"{name}: every span has a field {clashing.pop()!r}")
        known = session._spans[key] = Span(name, begin, end, own)
    if not values:
        return known.having(None)
    if values.keys() != set(known.fields):
        raise TypeError(
            f"{known.name}: values for {', '.join(values)}; its fields are {', '.join(known.fields)}"
        )
    return known.having(tuple([values[field] for field in known.fields]))


def _declaration(what: object, values: dict[str, Any]) -> str:
    text = getattr(what, "declaration", None)
    if text is None:
        text = str(what)
    name, _, fields = text.strip().partition(" ")
    if not fields:
        fields = "; ".join(_field(name, value) for name, value in values.items())
    return f"{name.replace('.', '_')} {fields}"


def _event_text(name: str, own: str, fields: str) -> str:
    return f"{name} {own}; {fields}" if fields.strip(" ;") else f"{name} {own}"


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
