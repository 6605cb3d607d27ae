"""What becomes of a process's sessions when it forks, when it ends, and when it is one of multiprocessing's.

| when | what |
|---|---|
| before a fork | the session threads end (`Watched.pause`): the child finds nothing half done, and a program
without threads forks as one |
| in the parent | they start again (`Watched.resume`) |
| in the child | the thread id is forgotten; every watched session begins anew (`Watched.start_child`) |
| the interpreter exits | every watched session is closed, by atexit; from then on none starts |
| a process of multiprocessing ends, without atexit | every watched session is flushed |

Nothing is installed before the first session is watched, which is when its first event is declared. What runs
no hooks (vfork and posix_spawn, so subprocess without preexec_fn) ends in exec and leaves the thread alone.
"""

from __future__ import annotations

import atexit
import sys

from utracefs._native import install_fork_hooks
from utracefs._outlets import forget_thread_id

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Any, Final, Protocol

    class Watched(Protocol):
        """A session, as far as this file knows it."""

        def pause(self) -> None: ...
        def resume(self) -> None: ...
        def start_child(self) -> None: ...
        def flush(self, timeout_s: float) -> bool: ...
        def close(self) -> None: ...


__all__ = ["CLOSE_S", "forget", "watch"]

CLOSE_S: Final = 0.5
"""What the end of a process may take to send what is pending."""


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
        install_fork_hooks(_before_fork, _in_parent, _in_child)
        atexit.register(_close_all)
    return True


def forget(session: Watched) -> None:
    """The session is closed. It need not have been watched."""
    _watched.pop(id(session), None)


def _before_fork() -> None:
    _hook_multiprocessing()
    for session in list(_watched.values()):
        session.pause()


def _in_parent() -> None:
    for session in list(_watched.values()):
        session.resume()


def _in_child() -> None:
    forget_thread_id()
    for session in list(_watched.values()):
        session.start_child()


def _close_all() -> None:
    _hooks.append("ended")
    for session in list(_watched.values()):
        session.close()


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
