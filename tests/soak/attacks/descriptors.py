"""A descriptor of every kind that a process without rights can send.

`Descriptors.make` gives one by its name and keeps its other objects (the other end of a pipe) until `close`.
A kind that the machine does not have is replaced by /dev/null: a script must mean the same everywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import encodings.idna  # noqa: F401  (connect loads it, and an attacker cannot read our files)
import fcntl
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence

from tests.soak.plain import HEADER_BYTES, LOST_BYTES

_EFD_SEMAPHORE = 1
_MFD_HUGETLB = 4
_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_UFFD_USER_MODE_ONLY = 1
_LINGER_S = 2
_FULL = (1 << 64) - 2

_libc = ctypes.CDLL(None, use_errno=True)


class Descriptors:
    """`fuse`: the folder of FuseFiles; None: there is none. `own`: descriptors sent by the daemon."""

    def __init__(self, directory: str, fuse: str | None) -> None:
        self.own: list[int] = []
        self._directory = directory
        self._fuse = fuse
        self._keep: list[int] = []

    def make(self, kind: str) -> int:
        """Owned by this object; closed by `close`."""
        if kind.startswith("own"):
            index = int(kind[3:])
            return self.own[index % len(self.own)] if self.own else self._open("/dev/null")
        try:
            fd = KINDS[kind](self)
        except OSError:
            fd = os.open("/dev/null", os.O_RDONLY)
        self._keep.append(fd)
        return fd

    def close(self) -> None:
        for fd in [*self._keep, *self.own]:
            with contextlib.suppress(OSError):
                os.close(fd)
        self._keep.clear()
        self.own.clear()

    def _open(self, path: str, flags: int = os.O_RDONLY) -> int:
        return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)

    def _pipe(self, end: int) -> int:
        ends = os.pipe()
        self._keep.append(ends[1 - end])
        return ends[end]

    def _socketpair(self, kind: int) -> int:
        a, b = socket.socketpair(socket.AF_UNIX, kind)
        b.setblocking(False)
        with contextlib.suppress(OSError):
            b.send(b"unread")
        self._keep.append(b.detach())
        return a.detach()

    def _connected(self) -> int:
        """A connection to the daemon itself."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(os.path.join(self._directory, "user_events_data"))
        except OSError:
            sock.close()
            raise
        return sock.detach()

    def _carrying(self) -> int:
        """A Unix socket with descriptors in flight, also its own other end."""
        a, b = socket.socketpair()
        socket.send_fds(b, [b"x"], [a.fileno(), b.fileno()])
        self._keep.append(b.detach())
        return a.detach()

    def _lingering(self) -> int:
        """A TCP socket whose last close waits for a peer that does not read."""
        with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
            sock = socket.create_connection(listener.getsockname(), 1)
            accepted, _ = listener.accept()
        self._keep.append(accepted.detach())
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sock.send(bytes(1 << 16))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, _LINGER_S))
        return sock.detach()

    def _memfd(self, size: int, seals: int, flags: int = 0) -> int:
        fd = os.memfd_create("soak", os.MFD_ALLOW_SEALING | flags)
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
        return fd

    def _ring_like(self, size: int) -> int:
        """An imitation of a data ring."""
        fd = self._memfd(HEADER_BYTES + size + LOST_BYTES, 0)
        os.pwrite(fd, struct.pack("<IIII", 0x52525455, 2, size, 24), 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd

    def _eventfd(self, value: int, flags: int = 0) -> int:
        fd = os.eventfd(0, flags | os.EFD_NONBLOCK)
        if value:
            os.eventfd_write(fd, value)
        return fd

    def _unread_only(self) -> int:
        fd = self._memfd(4096, fcntl.F_SEAL_SHRINK)
        self._keep.append(fd)
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)

    def _fuse_file(self, name: str) -> int:
        if self._fuse is None:
            return self._open("/dev/null")
        return os.open(os.path.join(self._fuse, name), os.O_RDWR)

    def _epoll(self) -> int:
        poll = select.epoll()
        fd = os.dup(poll.fileno())
        poll.close()
        return fd


def _of_libc(name: str, *arguments: object) -> int:
    fd: int = getattr(_libc, name)(*arguments)
    if fd < 0:
        raise OSError(ctypes.get_errno(), name)
    return fd


KINDS: dict[str, Callable[[Descriptors], int]] = {
    "pipe read": lambda d: d._pipe(0),
    "pipe write": lambda d: d._pipe(1),
    "stream": lambda d: d._socketpair(socket.SOCK_STREAM),
    "seqpacket": lambda d: d._socketpair(socket.SOCK_SEQPACKET),
    "connection to the daemon": Descriptors._connected,
    "descriptors in flight": Descriptors._carrying,
    "lingering": Descriptors._lingering,
    "epoll": Descriptors._epoll,
    "eventfd": lambda d: d._eventfd(0),
    "eventfd full": lambda d: d._eventfd(_FULL),
    "eventfd semaphore": lambda d: d._eventfd(_FULL, _EFD_SEMAPHORE),
    "memfd": lambda d: d._memfd(4096, 0),
    "memfd empty": lambda d: d._memfd(0, fcntl.F_SEAL_SHRINK),
    "memfd sealed": lambda d: d._memfd(8192, fcntl.F_SEAL_SHRINK),
    "memfd sealed against writing": lambda d: d._memfd(8192, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE),
    "memfd odd length": lambda d: d._memfd(4099, fcntl.F_SEAL_SHRINK),
    "memfd huge": lambda d: d._memfd(1 << 50, fcntl.F_SEAL_SHRINK),
    "memfd of huge pages": lambda d: d._memfd(2 << 20, fcntl.F_SEAL_SHRINK, _MFD_HUGETLB),
    "memfd read-only": Descriptors._unread_only,
    "like a ring": lambda d: d._ring_like(64 << 10),
    "like a ring, odd size": lambda d: d._ring_like(100_000),
    "fuse fails": lambda d: d._fuse_file("fails"),
    "fuse slow": lambda d: d._fuse_file("slow"),
    "fuse hangs": lambda d: d._fuse_file("hangs"),
    "/dev/null": lambda d: d._open("/dev/null", os.O_RDWR),
    "/dev/zero": lambda d: d._open("/dev/zero", os.O_RDWR),
    "/dev/full": lambda d: d._open("/dev/full", os.O_RDWR),
    "/dev/ptmx": lambda d: d._open("/dev/ptmx", os.O_RDWR),
    "/proc/self/mem": lambda d: d._open("/proc/self/mem", os.O_RDWR),
    "directory": lambda d: d._open("/"),
    "O_PATH": lambda d: d._open("/", os.O_PATH),
    "pidfd": lambda d: os.pidfd_open(os.getpid()),
    "signalfd": lambda d: _of_libc("signalfd", -1, ctypes.byref((ctypes.c_ulong * 16)()), 0),
    "timerfd": lambda d: _of_libc("timerfd_create", 1, 0),
    "inotify": lambda d: _of_libc("inotify_init1", 0),
    "userfaultfd": lambda d: _of_libc(
        "syscall", _USERFAULTFD.get(os.uname().machine, -1), _UFFD_USER_MODE_ONLY
    ),
}
"""Name to maker; `own0`, `own1`, ... are further names: descriptors sent by the daemon."""

HANGING: Sequence[str] = ("lingering", "fuse slow", "fuse hangs")
"""Kinds whose last close waits."""

ORDINARY: Sequence[str] = sorted(set(KINDS) - set(HANGING))

USEFUL: Sequence[str] = ("own0", "own1", "own2", "memfd sealed", "eventfd", "like a ring")
"""Kinds used by requests with descriptors."""
