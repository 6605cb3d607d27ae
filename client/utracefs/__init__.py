"""Typed events for applications, at nearly no cost until a consumer is attached.

    import utracefs

    request = utracefs.event("http_request u16 status; u32 usec; __rel_loc char[] path")

    if request:                       # one byte of shared memory
        request.emit(200, 1834, path)

A missing daemon is no error: the event is off, and can be enabled when a daemon starts; until that daemon's
first answer it counts as on. Nor does `emit` fail while the event is on: a value that does not fit its field
is refused and counted, with one warning. A wrong declaration is a ValueError at once, a wrong number of
values a TypeError, on and off. With `strict(True)`, `UTRACEFS_STRICT=1` or `python -X dev` a refused value is
an exception, too, on and off.

The functions of this module share one session per process, made by the first call; a library or a test that
needs its own creates a `Session`. `utracefs.open` reads recordings, `utracefs.attach` a running daemon.
Importing this module starts nothing and changes nothing.
"""

from utracefs.producer._emit import strict  # it gives Event its `emit`
from utracefs.producer._event import Event

TYPE_CHECKING = (
    False  # typing.TYPE_CHECKING without its import, which takes longer than the rest of this module
)
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from utracefs.logging_handler import LoggingHandler
    from utracefs.producer.declarations.defining import define, f32, s8, s16, s32, s64, u8, u16, u32, u64
    from utracefs.producer.session import Session
    from utracefs.producer.totals import Stats
    from utracefs.producer.tracing.contexts import context
    from utracefs.producer.tracing.spans import current_span, span
    from utracefs.recordings.recording import Record, Recording
    from utracefs.recordings.recording import open as open
    from utracefs.streaming import Batch, Stream, attach
    from utracefs_protocol.errors import TraceError

    __version__: str

__all__ = [
    "Batch",
    "Event",
    "LoggingHandler",
    "Record",
    "Recording",
    "Session",
    "Stats",
    "Stream",
    "TraceError",
    "__version__",
    "attach",
    "close",
    "context",
    "current_span",
    "default_session",
    "define",
    "event",
    "events",
    "f32",
    "flush",
    "s8",
    "s16",
    "s32",
    "s64",
    "span",
    "stats",
    "strict",
    "u8",
    "u16",
    "u32",
    "u64",
]

_LAZY = {
    "Record": "utracefs.recordings.recording",
    "Recording": "utracefs.recordings.recording",
    # not in __all__: `from utracefs import *` leaves the builtin as it is
    "open": "utracefs.recordings.recording",
    "Batch": "utracefs.streaming",
    "Stream": "utracefs.streaming",
    "attach": "utracefs.streaming",
    "LoggingHandler": "utracefs.logging_handler",
    "context": "utracefs.producer.tracing.contexts",
    "current_span": "utracefs.producer.tracing.spans",
    "span": "utracefs.producer.tracing.spans",
    "Session": "utracefs.producer.session",
    "Stats": "utracefs.producer.totals",
    "TraceError": "utracefs_protocol.errors",
    "define": "utracefs.producer.declarations.defining",
    **{name: "utracefs.producer.declarations.defining" for name in __all__ if name[1:].isdigit()},
}


def __getattr__(name: str) -> "Any":
    """Names that need a further import."""
    if name == "__version__":
        try:
            from importlib import metadata

            return metadata.version("utracefs")
        except ImportError:  # the package is missing, or imports are no longer possible
            return "0 (not installed)"
    if name in _LAZY:
        try:
            module = __import__(_LAZY[name], fromlist=[name])
        except ModuleNotFoundError as error:
            from utracefs_protocol.extras import how_to_install

            if (text := how_to_install(error)) is None:
                raise
            raise ModuleNotFoundError(f"utracefs.{name}: {text}", name=error.name) from None
        value = getattr(module, name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'utracefs' has no attribute {name!r}")


def default_session() -> "Session":
    """The session behind the functions of this module."""
    from utracefs.producer.process_session import process_session

    return process_session()


def event(declaration: str | bytes, *, persist: bool = False, multi_format: bool = False) -> Event:
    """Declare an event: `name type field; type field ...`, the command string of the kernel's user_events.

    The same declaration gives the same Event. Registering with the daemon happens in the background.
    persist: keep the event in the daemon when nothing refers to it (needs an administrator).
    multi_format: other programs may use the name with other fields.

    ValueError: the declaration is wrong.
    """
    return default_session().event(declaration, persist=persist, multi_format=multi_format)


def events(
    declarations: "Iterable[str | bytes]", *, persist: bool = False, multi_format: bool = False
) -> list[Event]:
    """Declare several events at once; if one declaration is wrong, none is made.

    ValueError: a declaration is wrong. TypeError: one declaration instead of several.
    """
    return default_session().events(declarations, persist=persist, multi_format=multi_format)


def flush(timeout_s: float = 1.0) -> bool:
    """Wait until everything emitted so far has reached the attached consumers; False when that took too long
    or the connection was lost. Without a daemon it waits for one only if there are records for it; with
    nothing emitted it returns at once, also before an event is registered.
    TypeError: timeout_s is not a number."""
    return default_session().flush(timeout_s)


def close() -> None:
    """Send pending records (at most half a second), disconnect, and turn all events off permanently. Called
    automatically when the interpreter exits."""
    default_session().close()


def stats() -> "Stats":
    """Numbers of this process's records: emitted, lost, refused."""
    return default_session().stats()
