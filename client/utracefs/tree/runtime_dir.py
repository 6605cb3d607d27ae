"""Connecting to a daemon's socket, from the client's side.

`utracefs_protocol.places` has the directories. Every user may write to /tmp: another user who makes
/tmp/utracefs-UID first could read our records. So a directory there is valid only if it is ours with no
access for others; the daemon has the same rule.
"""

from __future__ import annotations

import errno
import os
import stat

from utracefs_protocol import places

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping


def candidates(directory: str | None = None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The socket directories to try, in order. Does not access them."""
    return places.candidates(directory, environ, os.geteuid())


def socket_path(directory: str, name: str) -> str:
    """Path of the socket `name` in a directory. OSError: EPERM for a directory in /tmp that is not
    exclusively ours, or a missing one."""
    if directory == places.temporary_directory(os.geteuid()):
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "not a directory of this user with mode 0700", directory)
    return os.path.join(directory, name)


def connect(name: str, directory: str | None = None, timeout_s: float | None = None) -> socket.socket:
    """A connected, blocking stream socket: that of the first candidate that answers.

    timeout_s: longest wait for a place in the listener's queue, which may be full when its process is
    stopped; then BlockingIOError.

    OSError when none does: the first error other than ENOENT, if any, with the path.
    """
    import socket  # only for tools, not for programs that emit
    import struct

    worst: OSError | None = None
    for candidate in candidates(directory):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if timeout_s is not None:
            # unix_stream_connect() in the kernel waits that long. settimeout() would not wait.
            microseconds = max(1, int(timeout_s * 1e6))  # 0 would be no limit
            timeval = struct.pack("ll", *divmod(microseconds, 1_000_000))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        try:
            sock.connect(socket_path(candidate, name))
        except OSError as error:
            sock.close()
            if worst is None or (worst.errno == errno.ENOENT and error.errno != errno.ENOENT):
                worst = OSError(error.errno, error.strerror or str(error), os.path.join(candidate, name))
        else:
            return sock
    assert worst is not None
    raise worst
