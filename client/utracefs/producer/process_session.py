"""The session of the functions of `utracefs`: one per process, made at its first use."""

from __future__ import annotations

from utracefs.producer._event import Event
from utracefs.producer._session import NativeSession
from utracefs.producer.session import Session
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Any


# At most one entry. A dict, because `setdefault` decides a race between two threads without a lock.
_sessions: dict[str, Session] = {}


class _ProcessSession(Session):
    """libutracefs' session of the process, shared with its C code. Its events can be pickled: the process
    that loads one has such a session, too, and declares the event there."""

    def _open(self, directory: bytes | None, buffer_bytes: int) -> NativeSession:
        return NativeSession(of_the_process=True)

    def _reduce(self, event: Event) -> tuple[Any, ...]:
        return _declare_again, (event.declaration, event.flags, event.defaults)


def process_session() -> Session:
    found = _sessions.get("session")
    return _sessions.setdefault("session", _ProcessSession()) if found is None else found


def _declare_again(declaration: str, flags: int, defaults: dict[str, Any] | None) -> Event:
    event = process_session().event(
        declaration, persist=bool(flags & REG_PERSIST), multi_format=bool(flags & REG_MULTI_FORMAT)
    )
    event.defaults = defaults or event.defaults
    return event
