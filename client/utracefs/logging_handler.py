"""Log records as events: `logging.getLogger().addHandler(utracefs.LoggingHandler())`.

A logger checks `record.levelno >= handler.level` before it calls a handler (Logger.callHandlers in the
standard library). Here `level` follows the event: while no consumer is attached it is above any level, so the
handler is not called and nothing is formatted.
"""

import logging
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from utracefs.producer.process_session import process_session
from utracefs.producer.tracing.texts import cut, json_object, shown
from utracefs_protocol.limits import MAX_FTRACE_PAYLOAD

if TYPE_CHECKING:
    from utracefs.producer.session import Session

__all__ = ["LoggingHandler"]

FIELDS = (
    "s32 level; u32 line; __rel_loc char[] logger; __rel_loc char[] message; "
    "__rel_loc char[] pathname; __rel_loc char[] func; __rel_loc char[] context"
)

OFF = 1 << 62
"""Above every level: no consumer is attached."""

_FIXED_SIZE = 7 * 4 + 5
"""Bytes of the fixed part, and a NUL for each of the five texts."""

_SHORT = 512
"""Limit in bytes of the texts other than message and context."""


class LoggingHandler(logging.Handler):
    """Writes one record of the event `name` per log record, while a consumer is attached.

    The message is the text of the handler's formatter (by default message and traceback), cut to the size of
    a record in the ring buffer.

    context: the values of `utracefs.context` as a JSON object, or empty. fields: further columns, of texts:
    each takes its value of `extra=`, else of the context. session: None is the default session. Never closes
    a session. ValueError: `name` is not a valid event name.
    """

    def __init__(
        self,
        name: str = "python_log",
        level: int | str = logging.NOTSET,
        *,
        fields: Iterable[str] = (),
        session: "Session | None" = None,
    ) -> None:
        if not name or not set(name).isdisjoint(" ;\t\n"):
            raise ValueError(f"{name!r} cannot be the name of an event")
        self._level = logging.NOTSET
        self._fields = tuple(fields)
        texts = "".join(f"; __rel_loc char[] {field}" for field in self._fields)
        self._event = (session or process_session()).event(f"{name} {FIELDS}{texts}")
        super().__init__(level)

    @property
    def event(self) -> object:
        return self._event

    @property
    def level(self) -> int:
        """The level that was set, while a consumer is attached; OFF otherwise."""
        return self._level if self._event else OFF

    @level.setter
    def level(self, level: int) -> None:
        self._level = level

    def emit(self, record: logging.LogRecord) -> None:
        try:
            logger, pathname, func = _text(record.name), _text(record.pathname), _text(record.funcName or "")
            contexts = sys.modules.get("utracefs.producer.tracing.contexts")
            values = {} if contexts is None else contexts.present()
            given = record.__dict__
            own = [_text(shown(given.get(name, values.get(name)))) for name in self._fields]
            context = json_object(values)
            room = MAX_FTRACE_PAYLOAD - _FIXED_SIZE - len(logger) - len(pathname) - len(func) - len(context)
            room -= sum(len(text) + 5 for text in own)
            message = shown(self.format(record)).encode("utf-8", "backslashreplace")
            if len(message) > room:
                message = cut(message, max(room - 3, 0)) + b"..."
            level = min(max(record.levelno, -(1 << 31)), (1 << 31) - 1)
            self._event.emit(level, max(record.lineno, 0), logger, message, pathname, func, context, *own)
        except Exception:  # noqa: BLE001  # required of emit() by logging.Handler
            self.handleError(record)


def _text(text: str) -> bytes:
    """UTF-8, at most _SHORT bytes, the end of the text, which for a path is the more useful part."""
    data = text.encode("utf-8", "backslashreplace")
    return data if len(data) <= _SHORT else b"..." + data[-(_SHORT - 3) :]
