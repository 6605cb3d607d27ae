"""A session: what applications call, whether or not a daemon is there.

It checks declarations, keeps one Event for each, and counts. What may be called millions of times is in
`_event`; all talking to the daemon is done by `session_thread`.
"""

from __future__ import annotations

import os
import sys

from utracefs._event import Event
from utracefs.checking import check_declaration, command_bytes
from utracefs.declaring import make_event
from utracefs.session_thread import UP, SessionThread
from utracefs.totals import EventStats, Stats
from utracefs_protocol.declaration import REG_MULTI_FORMAT, REG_PERSIST

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Final, Self

__all__ = ["Session"]

DEFAULT_BUFFER_KB: Final = 1024
MAX_BUFFER_KB: Final = 1 << 20


class Session:
    """One connection's worth of events. `utracefs.event` and its neighbours use one of these per process.

    directory: of the daemon's sockets; None looks where `runtime_dir` says.
    buffer_kb: room for records not yet sent, rounded up to a power of two; None asks UTRACEFS_BUFFER_KB, else
    1 MiB.

    Making one starts nothing; the first `event` does. Owns its thread, socket and descriptors until `close`.
    ValueError: an invalid directory or size.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, buffer_kb: int | None = None
    ) -> None:
        path = None if directory is None else os.fsdecode(directory)
        if path is not None and (not path or "\0" in path):
            raise ValueError(f"{path!r} cannot be a directory")
        self.thread = SessionThread(path, _capacity(buffer_kb))
        self._by_text: dict[tuple[bytes, int], Event] = {}
        self._by_declaration: dict[tuple[str, int], Event] = {}

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
        return self.thread.flush(timeout_s)

    def close(self) -> None:
        """As `utracefs.close`. May be called more than once."""
        self.thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """As `utracefs.stats`."""
        events = list(self.thread.declared)
        emitted, sent, pending, lost = self.thread.fifo.totals()
        return Stats(
            connected=self.thread.state == UP,
            emitted=emitted,
            sent=sent,
            pending=pending,
            lost=lost,
            refused=sum(sum(event.refused.values()) for event in events),
            events={
                event.declaration: EventStats(event.emitted, event.lost, dict(event.refused), event.error)
                for event in events
            },
        )

    # -- declaring

    def _new_event(self, text: bytes, flags: int) -> Event:
        return make_event(self, self.thread.fifo, check_declaration(text), flags)

    def _declare(self, text: bytes, new: Event) -> Event:
        """The one Event of this declaration; registers it if that is `new`."""
        event = self._by_declaration.setdefault((new.declaration, new.flags), new)
        if event is new and not self.thread.closing:
            self.thread.declare(event)
        self._by_text[text, event.flags] = event
        return event

    # -- what an Event asks of its session

    def _await_answer(self, event: Event) -> bool:
        """A pending event is looked at: wait for the daemon's answer, within bounds. True: not again, in a
        thread that waits already."""
        return self.thread.await_answer(event)

    def _start(self) -> None:
        """A forked child has lived for a while."""
        self.thread.start()

    def _log_for_caller(self, text: str) -> None:
        """A value did not fit in this call of `emit`, and the program makes exceptions of warnings."""
        try:
            frame = sys._getframe(1)
            text = f"{frame.f_code.co_filename}:{frame.f_lineno}: {text}"
            logging = sys.modules.get("logging")
            if logging is None:
                sys.stderr.write(f"utracefs: {text}\n")
            else:
                logging.getLogger("utracefs").warning("%s", text)
        except Exception:  # noqa: BLE001 - whatever a handler or stream of the program's raises
            return  # it is counted all the same

    def _reduce(self, event: Event) -> tuple[Any, ...]:
        """What pickling an event gives (object.__reduce__)."""
        raise TypeError("an event of a session of its own cannot be pickled; declare it in the other process")


def _capacity(buffer_kb: int | None) -> int:
    """Bytes of the FIFO. A number in the environment that makes no sense is not the application's fault:
    ignored."""
    if buffer_kb is None:
        text = os.environ.get("UTRACEFS_BUFFER_KB", "")
        buffer_kb = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else DEFAULT_BUFFER_KB
        buffer_kb = min(max(buffer_kb, 4), MAX_BUFFER_KB)
    elif not 4 <= buffer_kb <= MAX_BUFFER_KB:
        raise ValueError(f"buffer_kb is from 4 to {MAX_BUFFER_KB}")
    return 1 << (buffer_kb * 1024 - 1).bit_length()
