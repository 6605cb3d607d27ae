"""A process's sessions at a fork, at its end, and in processes of multiprocessing.

| event | action |
|---|---|
| a fork | libutracefs has its own handlers; `_session` has those for Python |
| in the child | every watched session resets its counts (`Watched._start_child`) |
| the interpreter exits | every session is closed, by atexit; from then on none starts |
| a process of multiprocessing ends, without atexit | every watched session is flushed |

Nothing is installed before the first session is watched, which is when its first event is declared.
"""

from __future__ import annotations

import sys

from utracefs.producer import _session

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Any, Final, Protocol

    class Watched(Protocol):
        """The methods of a session used here."""

        def _start_child(self) -> None: ...
        def flush(self, timeout_s: float) -> bool: ...


CLOSE_S: Final = 0.5
"""Longest time to send pending records at the end of a session or a process."""


_watched: dict[int, Watched] = {}
"""By id(). Strong references: a session lives until it is closed or the process ends."""

_ended: list[bool] = []
_for_multiprocessing: list[object] = []


def watch(session: Watched) -> bool:
    """Register a session for forks and the end of the process. False: the interpreter is exiting, and no
    session may begin. An exception of a signal handler may end this anywhere; the next call does the rest."""
    if _ended:
        return False
    _watched[id(session)] = session
    _hook_multiprocessing()
    _session.install(_log_in_thread, _hook_multiprocessing, _in_child, _end)
    return True


def forget(session: Watched) -> None:
    """Unregister a closed session. It need not be registered."""
    _watched.pop(id(session), None)


def _in_child() -> None:
    for session in list(_watched.values()):
        session._start_child()


def _end() -> None:
    _ended.append(True)
    _session.end()
    _watched.clear()


def log(text: str) -> None:
    """Give a warning to the program's log; print it on standard error if there is none or it has no handlers.
    Imports nothing: the program may have lost its rights or its modules (chroot), or another user may have
    placed modules there. Exceptions of the program's handlers propagate."""
    logging = sys.modules.get("logging")
    if logging is None:
        _session.say(text)
        return
    logger = logging.getLogger("utracefs")
    # (logging would write to sys.stderr, which may block, or be a file of the program's by now.)
    if not logger.hasHandlers() and logger.isEnabledFor(logging.WARNING):
        _session.say(text)
    else:
        logger.warning("%s", text)


def _log_in_thread(text: str) -> None:
    """Called for each warning, in a thread that libutracefs starts for it."""
    # gevent does not know this thread: if both it and the main thread wait for the first time, both may hang.
    if getattr(sys.modules.get("gevent.monkey"), "saved", None):
        _session.say(text)
        return
    try:
        log(text)
    except BaseException as error:  # noqa: BLE001 - any exception of the program's handlers
        _session.say(f"{text} (and logging failed: {error!r})")


# ---- multiprocessing


class _Anchor:
    """multiprocessing references its after-fork functions weakly, by this object."""


def _hook_multiprocessing() -> None:
    """Processes of multiprocessing end with os._exit(), without atexit, but run the finalizers of
    multiprocessing.util; each such process first clears these, and then calls the after-fork functions. If it
    was never imported, this process has no such children and is none. Done when the anchor is kept; until
    then again, for a second flush does no harm."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None or _for_multiprocessing:
        return
    anchor = _Anchor()
    util.register_after_fork(anchor, _flush_at_end_of_child)
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        _flush_at_end_of_child(anchor)
    _for_multiprocessing.append(anchor)


def _flush_at_end_of_child(_anchor: object) -> None:
    util: Any = sys.modules["multiprocessing.util"]
    # Priority: after all others. No obj: kept until it runs.
    util.Finalize(None, _flush_all, exitpriority=-1000)


def _flush_all() -> None:
    for session in list(_watched.values()):
        session.flush(CLOSE_S)
