"""What becomes of a process's sessions when it forks, when it ends, and when it is one of multiprocessing's.

| when | what |
|---|---|
| a fork | libutracefs has handlers of its own; `_session` says what Python asks for besides |
| in the child | every watched session counts anew (`Watched._start_child`) |
| the interpreter exits | every session is closed, by atexit; from then on none starts |
| a process of multiprocessing ends, without atexit | every watched session is flushed |

Nothing is installed before the first session is watched, which is when its first event is declared.
"""

from __future__ import annotations

import atexit
import sys

from utracefs import _session

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Any, Final, Protocol

    class Watched(Protocol):
        """A session, as far as this file knows it."""

        def _start_child(self) -> None: ...
        def flush(self, timeout_s: float) -> bool: ...


__all__ = ["CLOSE_S", "forget", "watch"]

CLOSE_S: Final = 0.5
"""What the end of a session or a process may take to send what is pending."""


_watched: dict[int, Watched] = {}
"""By id(). Strong: a session lives until it is closed or the process ends."""

_hooks: list[str] = []
_for_multiprocessing: list[object] = []


def watch(session: Watched) -> bool:
    """From here on a fork and the end of the process find the session. False: the interpreter is about to
    exit, and no session is to begin."""
    if "ended" in _hooks:
        return False
    _watched[id(session)] = session
    _hook_multiprocessing()
    if not _hooks:
        _hooks.append("installed")
        _session.install(_warn, _hook_multiprocessing, _in_child)
        atexit.register(_end)
    return True


def forget(session: Watched) -> None:
    """The session is closed. It need not have been watched."""
    _watched.pop(id(session), None)


def _in_child() -> None:
    for session in list(_watched.values()):
        session._start_child()


def _end() -> None:
    _hooks.append("ended")
    _session.end()
    _watched.clear()


def _warn(text: str) -> None:
    """To the program's log, else to its standard error, as `logging` does where nothing is set up. What is
    wrong with either costs the message. Nothing is imported for it: a program may have lost its right to, or
    its modules (chroot), or somebody else may have put his own there."""
    try:
        logging = sys.modules.get("logging")
        if logging is None:
            _say(text)
        else:
            logging.getLogger("utracefs").warning("%s", text)
    except BaseException as error:  # noqa: BLE001 - whatever a handler of the program's raises
        _say(f"{text} (and logging failed: {error!r})")


def _say(text: str) -> None:
    """On standard error, if it can be written to."""
    try:
        sys.stderr.write(f"utracefs: {text}\n")
    except BaseException:  # noqa: BLE001 - closed, replaced, or none
        return


# ---- multiprocessing


class _Anchor:
    """multiprocessing keeps its after-fork functions by a weak reference to an object: this one."""


def _hook_multiprocessing() -> None:
    """Processes of multiprocessing end with os._exit(), without atexit, but run the finalizers of
    multiprocessing.util; which every such process first forgets, and then calls the after-fork functions.
    If it was never imported, this process has no such children and is none."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None or _for_multiprocessing:
        return
    anchor = _Anchor()
    _for_multiprocessing.append(anchor)
    util.register_after_fork(anchor, _flush_at_end_of_child)
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        _flush_at_end_of_child(anchor)


def _flush_at_end_of_child(_anchor: object) -> None:
    util: Any = sys.modules["multiprocessing.util"]
    # Priority: the last of those that run at all. No obj: lives until it is run.
    util.Finalize(None, _flush_all, exitpriority=-1000)


def _flush_all() -> None:
    for session in list(_watched.values()):
        session.flush(CLOSE_S)
