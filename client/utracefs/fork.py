"""What becomes of a process's sessions when it forks, when it ends, and when it is one of multiprocessing's.

| when | what |
|---|---|
| fork, in the child | the thread id is forgotten; every watched session begins anew (`Watched.start_child`) |
| the interpreter exits | every watched session is closed, by atexit |
| a process of multiprocessing ends, without atexit | every watched session is flushed |

Nothing is installed before the first session is watched, which is when its first event is declared.

`no_fork` is the one lock that the application's threads share with the session thread. fork takes it, and the
session thread holds it for short times that a child must not be born in: while a descriptor was made and is
not noted yet (the child could not close it), and while a module is being imported (the child would wait for
its lock for ever).
"""

import atexit
import os
import sys
import threading
from typing import Any, Final, Protocol

from utracefs._outlets import forget_thread_id

__all__ = ["CLOSE_S", "Watched", "forget", "no_fork", "watch"]

CLOSE_S: Final = 0.5
"""What the end of a process may take to send what is pending."""


class Watched(Protocol):
    """A session, as far as this file knows it."""

    def start_child(self) -> None: ...
    def flush(self, timeout_s: float) -> bool: ...
    def close(self) -> None: ...


no_fork: Final = threading.RLock()
"""Reentrant, since a signal handler may fork while its thread is about to. The child's one thread is the one
that took it for the fork, and gives it back."""

_watched: dict[int, Watched] = {}
"""By id(). Strong: a session lives until it is closed or the process ends."""

_hooks: list[str] = []
_for_multiprocessing: list[object] = []


def watch(session: Watched) -> None:
    """From here on a fork and the end of the process find the session."""
    _watched[id(session)] = session
    _hook_multiprocessing()
    if not _hooks:
        _hooks.append("installed")
        os.register_at_fork(before=_before_fork, after_in_parent=no_fork.release, after_in_child=_in_child)
        atexit.register(_close_all)


def forget(session: Watched) -> None:
    """The session is closed. It need not have been watched."""
    _watched.pop(id(session), None)


def _before_fork() -> None:
    _hook_multiprocessing()
    no_fork.acquire()


def _in_child() -> None:
    no_fork.release()
    forget_thread_id()
    for session in list(_watched.values()):
        session.start_child()


def _close_all() -> None:
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
