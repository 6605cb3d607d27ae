"""Close descriptors that came from another process, in threads and never in the loop.

close(2) of a last reference runs code of the file. A socket with SO_LINGER waits for its peer, a FUSE file
for its server, without limit, and a file system may answer with an error. So threads close foreign
descriptors and ignore errors, as systemd and dbus-broker do. Descriptors that cannot block are closed at
once: memory files and eventfds, which is all that honest clients send.

Each user (`Peer.share`) has a queue and a few threads. If the closes of a user's descriptors hang, they delay
only that user's other closes; while more than MAX_WAITING of them wait, no more descriptors are received from
the user (`is_behind`).

Connections with unreceived descriptors in them have queues of their own (`close_unread`): closing those skips
the flush, so such a close rarely blocks. But a user can make as many as he likes whose close waits, for
sockets that linger. When they become too many, one thread closes all of a user's (`close_most`):
close_range(2) frees all numbers before it waits.
"""

import _thread
import contextlib
import fcntl
import os
import resource
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
_high_numbers = _thread.allocate_lock()
"""Guards the descriptors that `_close_all` moves; the same."""


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


def close_most() -> bool:
    """Close the unread connections of the user who has most of them. False: there are none, or no threads."""
    global nr_threads
    with _lock:
        unread = [uid for uid in _queues if uid < 0]
        if not unread or nr_threads == MAX_THREADS_IN_ALL:
            return False
        uid = max(unread, key=lambda uid: len(_queues[uid]))
        fds = _queues.pop(uid)
        try:
            _thread.start_new_thread(_close_all, (uid, fds))
        except RuntimeError:  # no more threads
            _queues[uid] = fds
            return False
        nr_threads += 1
        _closing[uid] += 1
    return True


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
    if not _queues and not _closing:
        return 0
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


def _close_all(uid: int, fds: Iterable[int]) -> None:
    """Sockets: a close of one that is not the last waits for nothing. So they are moved to numbers side by
    side first, from the middle on, where the daemon has no others."""
    global nr_threads
    middle = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    runs: list[list[int]] = []
    with _high_numbers:
        for fd in fds:
            number = fd
            with contextlib.suppress(OSError):  # none is left: it stays where it is
                number = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, middle)
                close_here(fd)
            if not runs or runs[-1][1] != number:
                runs.append([number, number])
            runs[-1][1] += 1
    for run in runs:
        os.closerange(*run)
    with _lock:
        nr_threads -= 1
        _end_closing(uid)


def _end_closing(uid: int) -> None:
    """With the lock."""
    _closing[uid] -= 1
    if not _closing[uid]:
        del _closing[uid]


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
            _end_closing(uid)
