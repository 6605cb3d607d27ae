"""Closing descriptors that came from another process: never by the loop.

close(2) of a last reference does what the file says. A socket with SO_LINGER waits for its peer, a FUSE file
for its server, both as long as they like, and a file system may answer with an error. So foreign descriptors
are closed by threads, errors ignored, as systemd and dbus-broker do it. What cannot block is closed at once:
memory files and eventfds, which are what honest clients send.

Each user's descriptors that wait here, or are being closed, are counted (`waiting_of`), so that who sends
what never closes can be kept from sending more.
"""

import _thread
import contextlib
import fcntl
import os
from collections import Counter, deque
from collections.abc import Iterable

MAX_THREADS = 32
"""Closes that may hang at once; what comes behind them waits with its descriptor open."""

_waiting: deque[tuple[int, int]] = deque()
_counts: Counter[int] = Counter()
_threads = 0
_lock = _thread.allocate_lock()


def close_foreign(fds: Iterable[int], uid: int = 0) -> None:
    """Close them, now or soon. Never blocks and never raises. uid: whose share they are counted in."""
    for fd in fds:
        if _cannot_block(fd):
            _close(fd)
        else:
            with _lock:
                _counts[uid] += 1
            _waiting.append((fd, uid))
    for _ in range(min(len(_waiting), MAX_THREADS)):  # any of them may hang
        _start_thread()


def waiting_of(uid: int) -> int:
    """Descriptors of this user that are not closed yet."""
    return _counts.get(uid, 0)


def waiting() -> int:
    """Descriptors that are not closed yet, of all users."""
    with _lock:
        return _counts.total()


def _cannot_block(fd: int) -> bool:
    """Only memory has seals; a path begins with a slash, so nothing else is called like an eventfd."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        return True
    except OSError:
        pass
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("anon_inode:[eventfd")
    except OSError:
        return False


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


def _start_thread() -> None:
    global _threads
    with _lock:
        if _threads == MAX_THREADS:
            return
        _threads += 1
    try:
        _thread.start_new_thread(_work, ())
    except RuntimeError:  # no more threads: what waits is closed with the next one
        with _lock:
            _threads -= 1


def _work() -> None:
    global _threads
    while True:
        try:
            fd, uid = _waiting.popleft()
        except IndexError:
            with _lock:
                if _waiting:
                    continue
                _threads -= 1
                return
        _close(fd)
        with _lock:
            _counts[uid] -= 1
            if not _counts[uid]:
                del _counts[uid]
