"""A session: the API for applications, with or without a daemon.

It checks declarations, keeps one Event for each, and counts. `_event` and `_emit` have the functions called
millions of times; libutracefs (client/c) communicates with the daemon.
"""

from __future__ import annotations

import os
import sys

from utracefs.producer import fork
from utracefs.producer._event import Event
from utracefs.producer._session import NativeSession
from utracefs.producer.declarations.checking import check_declaration, command_bytes
from utracefs.producer.declarations.declaring import make_event
from utracefs.producer.totals import EventStats, Stats
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final, Self

__all__ = ["Session"]

MAX_BUFFER_KB: Final = 1 << 20


class Session:
    """A connection with its events. The functions of `utracefs` share one of these per process.

    directory: of the daemon's sockets; None: see `runtime_dir`.
    buffer_kb: space for records not yet sent, rounded up to a power of two from 64 on; None:
    UTRACEFS_BUFFER_KB, else 1 MiB.

    Making one starts nothing; the first `event` does. Owns its connection and descriptors until `close`.
    ValueError: an invalid directory or size.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, buffer_kb: int | None = None
    ) -> None:
        path = None if directory is None else os.fsencode(directory)
        if path is not None and (not path or b"\0" in path):
            raise ValueError(f"{os.fsdecode(path)!r} cannot be a directory")
        if buffer_kb is not None and not 4 <= buffer_kb <= MAX_BUFFER_KB:
            raise ValueError(f"buffer_kb is from 4 to {MAX_BUFFER_KB}")
        self._native = self._open(path, (buffer_kb or 0) * 1024)
        self._by_text: dict[tuple[bytes, int], Event] = {}
        self._by_declaration: dict[tuple[str, int], Event] = {}
        self._spans: dict[Any, Any] = {}

    def _open(self, directory: bytes | None, buffer_bytes: int) -> NativeSession:
        return NativeSession(directory, buffer_bytes)

    def event(self, declaration: str | bytes, *, persist: bool = False, multi_format: bool = False) -> Event:
        """As `utracefs.event`. ValueError: the declaration is wrong."""
        flags = REG_PERSIST * bool(persist) | REG_MULTI_FORMAT * bool(multi_format)
        text = command_bytes(declaration)
        if (found := self._by_text.get((text, flags))) is not None:
            return found
        return self._declare(text, self._new_event(text, flags))

    def events(
        self, declarations: Iterable[str | bytes], *, persist: bool = False, multi_format: bool = False
    ) -> list[Event]:
        """As `utracefs.events`. ValueError: a declaration is wrong; then none is made."""
        if isinstance(declarations, str | bytes):
            raise TypeError("events takes several declarations; for one there is event")
        flags = REG_PERSIST * bool(persist) | REG_MULTI_FORMAT * bool(multi_format)
        texts = [command_bytes(declaration) for declaration in declarations]
        new = {text: self._new_event(text, flags) for text in texts if (text, flags) not in self._by_text}
        # (An Event is false while no consumer is attached: no `or` here.)
        return [
            self._declare(text, new[text]) if text in new else self._by_text[text, flags] for text in texts
        ]

    def flush(self, timeout_s: float = 1.0) -> bool:
        """As `utracefs.flush`. Waits with the GIL released; may be called from signal handlers."""
        if not isinstance(timeout_s, int | float):
            raise TypeError(f"timeout_s is a number of seconds, not {type(timeout_s).__name__}")
        return self._native.flush(timeout_s)

    def close(self) -> None:
        """As `utracefs.close`. May be called more than once."""
        self._native.flush(fork.CLOSE_S)
        self._native.close()
        fork.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """As `utracefs.stats`."""
        connected = self._native.is_connected
        events = list(self._by_declaration.values())
        counts = [event._counts() for event in events]
        emitted, lost, pending = map(sum, zip(*counts, strict=True)) if counts else (0, 0, 0)
        refused = [event.refused for event in events]
        return Stats(
            connected=connected,
            emitted=emitted,
            sent=emitted - lost - pending,
            pending=pending,
            lost=lost,
            refused=sum(sum(reasons.values()) for reasons in refused),
            events={
                event.declaration: EventStats(*count[:2], reasons, event.error)
                for event, count, reasons in zip(events, counts, refused, strict=True)
            },
        )

    def _start_child(self) -> None:
        """In a forked child: reset the counts."""
        for event in list(self._by_declaration.values()):
            event._start_child()

    # -- declaring

    def _new_event(self, text: bytes, flags: int) -> Event:
        return make_event(self, check_declaration(text), flags)

    def _declare(self, text: bytes, new: Event) -> Event:
        """The one Event of this declaration, registered.

        A thread or a signal handler may declare it at the same time, and an exception of a handler may end
        this anywhere. So each call registers the one Event, also a later call that finds it in the table,
        which does nothing twice; and only a registered one gets into `_by_text`, where `event` finds it.
        """
        event = self._by_declaration.setdefault((new.declaration, new.flags), new)
        if fork.watch(self) and not self._native.declare(event):
            fork.forget(self)
        self._by_text[text, event.flags] = event
        return event

    # -- called by an Event

    def _log_for_caller(self, text: str) -> None:
        """Log a refused value of this call of `emit` where a warning is not possible."""
        try:
            frame = sys._getframe(1)
            fork.log(f"{frame.f_code.co_filename}:{frame.f_lineno}: {text}")
        except Exception:  # noqa: BLE001 - any exception of the program's handlers or streams
            return  # it is counted in any case

    def _reduce(self, event: Event) -> tuple[Any, ...]:
        """The result of pickling an event (object.__reduce__)."""
        raise TypeError("an event of a session of its own cannot be pickled; declare it in the other process")
