"""Close descriptors that came from another process, in threads and never in the loop.

close(2) of a last reference runs code of the file. A socket with SO_LINGER waits for its peer, a FUSE file
for its server, without limit, and a file system may answer with an error. So threads close foreign
descriptors and ignore errors, as systemd and dbus-broker do. Descriptors that cannot block are closed at
once: memory files and eventfds, which is all that honest clients send.

Each user (`Peer.share`) has a queue and a few threads. If the closes of a user's descriptors hang, they delay
only that user's other closes; while more than MAX_WAITING of them wait, no more descriptors are received from
the user (`is_behind`).

Connections with unreceived descriptors in them have queues of their own (`close_unread`): closing those skips
the flush, so such a close rarely blocks.
"""

import _thread
import contextlib
import fcntl
import os
from collections import Counter, deque
from collections.abc import Iterable

MAX_THREADS = 4
"""Threads per user: this many closes may hang before the user's others wait. Each holds a descriptor."""

MAX_THREADS_IN_ALL = 128
"""Far below what a service may have (TasksMax, 15 % of what the kernel allows)."""

MAX_WAITING = 64
"""Descriptors of a user that may wait to be closed before `is_behind`."""

_queues: dict[int, deque[int]] = {}
"""Descriptors that no thread has taken yet, by user; ~uid for unread connections. No queue is empty; the
user served last comes last."""
_closing: Counter[int] = Counter()
"""Threads inside close(2), by user."""
nr_threads = 0
"""The sum over all users."""
_lock = _thread.allocate_lock()
"""Guards all of these; no code blocks while it holds the lock."""


def close_foreign(fds: Iterable[int], uid: int) -> None:
    """Close them, now or soon. Never blocks and never raises. uid: the user who sent them."""
    waiting = []
    for fd in fds:
        if _cannot_block(fd):
            close_here(fd)
        else:
            waiting.append(fd)
    if waiting:
        with _lock:
            _queues.setdefault(uid, deque()).extend(waiting)
    if _queues:
        for _ in range(MAX_THREADS):  # each of these may hang
            _start_thread()


def close_unread(connection: int, uid: int) -> None:
    """`close_foreign` of a socket that was not read to its end."""
    close_foreign([connection], ~uid)


def waiting_of(uid: int) -> int:
    """Descriptors received from this user that are not closed yet."""
    if not _queues and not _closing:
        return 0
    with _lock:
        return len(_queues.get(uid, ())) + _closing[uid]


def is_behind(uid: int) -> bool:
    """So many of this user's descriptors wait that no more may be received from him."""
    return waiting_of(uid) > MAX_WAITING


def waiting() -> int:
    """Descriptors that are not closed yet, of all users."""
    with _lock:
        return sum(map(len, _queues.values())) + _closing.total()


def _cannot_block(fd: int) -> bool:
    """Only memory files have seals; a path begins with a slash, so only an eventfd has that name."""
    try:
        fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        return True
    except OSError:
        pass
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith("anon_inode:[eventfd")
    except OSError:
        return False


def close_here(fd: int) -> None:
    """In the calling thread, which may hang."""
    with contextlib.suppress(OSError):
        os.close(fd)


def _next_user() -> int | None:
    """The next user who may have one more close in progress. Each user skipped has MAX_THREADS, so they are
    few."""
    return next((uid for uid in _queues if _closing[uid] < MAX_THREADS), None)


def _start_thread() -> None:
    global nr_threads
    with _lock:
        if nr_threads == MAX_THREADS_IN_ALL or _next_user() is None:
            return
        nr_threads += 1
    try:
        _thread.start_new_thread(_work, ())
    except RuntimeError:  # no more threads: the next one closes what waits
        with _lock:
            nr_threads -= 1


def _work() -> None:
    global nr_threads
    while True:
        with _lock:
            uid = _next_user()
            if uid is None:
                nr_threads -= 1
                return
            queue = _queues.pop(uid)
            fd = queue.popleft()
            if queue:
                _queues[uid] = queue
            _closing[uid] += 1
        close_here(fd)
        with _lock:
            _closing[uid] -= 1
            if not _closing[uid]:
                del _closing[uid]
