"""structlog's events as events: a processor, before the one that renders.

    structlog.configure(processors=[..., utracefs.bridges.structlog.Processor(fields=["user"]), renderer])

    structlog   level; message; values; FIELDS

`values` is a JSON object of at most 1 KiB: the other members of the event dict, and the values of
`utracefs.context`; numbers, bools, None and lists keep their types. Members named in `fields` are fields of
the event instead, as texts. The processor returns the event dict unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any

import utracefs
from utracefs.producer.tracing.contexts import present
from utracefs.producer.tracing.texts import json_object, short

__all__ = ["Processor"]

_MESSAGE = 1536


class Processor:
    """Emits each event dict as a record of the event `name`."""

    def __init__(self, name: str = "structlog", *, fields: Iterable[str] = ()) -> None:
        self._fields = tuple(fields)
        texts = ["level", "message", "values", *self._fields]
        self._event = utracefs.event(f"{name} {'; '.join(f'__rel_loc char[] {text}' for text in texts)}")

    def __call__(
        self, logger: object, method_name: str, event_dict: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        if self._event:
            values = {**present(), **event_dict}
            message = values.pop("event", None)
            own = [short(values.pop(name, None)) for name in self._fields]
            self._event.emit(method_name, short(message, _MESSAGE), json_object(values), *own)
        return event_dict
