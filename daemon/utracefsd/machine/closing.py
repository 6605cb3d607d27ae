"""Closing descriptors that came from another process: never by the loop.

close(2) of a last reference does what the file says. A socket with SO_LINGER waits for its peer, a FUSE file
for its server, both as long as they like, and a file system may answer with an error. So foreign descriptors
are closed by threads, errors ignored, as systemd and dbus-broker do it. What cannot block is closed at once:
memory files and eventfds, which are what honest clients send.

Each user has a queue and a few threads. So who sends what never closes hangs his own closes and nobody
else's, and when more than MAX_WAITING of his wait, no more are received (`is_behind`). Users are those of
`Peer.share`. Only many of them together could use up the threads; then closes wait, the loop does not.

Connections with descriptors in them that nobody received have queues of their own (`close_unread`): of such a
descriptor only the end can block, not its flush, so they are hardly ever held up.
"""

import _thread
import contextlib
import fcntl
import os
from collections import Counter, deque
from collections.abc import Iterable

MAX_THREADS = 4
"""Of one user: closes of his that may hang before his others wait, each with its descriptor."""

MAX_THREADS_IN_ALL = 128
"""Far below what a service may have (TasksMax, 15 % of what the kernel allows)."""

MAX_WAITING = 64
"""Descriptors of a user that may wait before he is behind."""

_queues: dict[int, deque[int]] = {}
"""What no thread has begun with, by user; ~uid for unread connections. Without empty ones, and who was served
last comes last."""
_closing: Counter[int] = Counter()
"""Threads that are in a close, by user."""
_threads = 0
_lock = _thread.allocate_lock()
"""For all of these; nothing is waited for under it."""


def close_foreign(fds: Iterable[int], uid: int) -> None:
    """Close them, now or soon. Never blocks and never raises. uid: whose they are."""
    waiting = []
    for fd in fds:
        if _cannot_block(fd):
            _close(fd)
        else:
            waiting.append(fd)
    if waiting:
        with _lock:
            _queues.setdefault(uid, deque()).extend(waiting)
    if _queues:
        for _ in range(MAX_THREADS):  # any of these may hang
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
    """So many of this user's wait that no more shall be received from it."""
    return waiting_of(uid) > MAX_WAITING


def waiting() -> int:
    """Descriptors that are not closed yet, of all users."""
    with _lock:
        return sum(map(len, _queues.values())) + _closing.total()


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


def _next_user() -> int | None:
    """Who may have one more close under way. Those passed over have MAX_THREADS each, so they are few."""
    return next((uid for uid in _queues if _closing[uid] < MAX_THREADS), None)


def _start_thread() -> None:
    global _threads
    with _lock:
        if _threads == MAX_THREADS_IN_ALL or _next_user() is None:
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
        with _lock:
            uid = _next_user()
            if uid is None:
                _threads -= 1
                return
            queue = _queues.pop(uid)
            fd = queue.popleft()
            if queue:
                _queues[uid] = queue
            _closing[uid] += 1
        _close(fd)
        with _lock:
            _closing[uid] -= 1
            if not _closing[uid]:
                del _closing[uid]
