"""Connecting to a daemon's socket, from the client's side.

Which directories are tried is `utracefs_protocol.places`. /tmp belongs to everybody: another user who makes
/tmp/utracefs-UID first could read what we emit. So it counts only when it is a directory of ours that nobody
else may enter; that is the daemon's rule for it, too.
"""

from __future__ import annotations

import errno
import os
import stat

from utracefs_protocol import places
from utracefs_protocol.places import DATA_SOCKET, TRACEFS_SOCKET

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

__all__ = ["DATA_SOCKET", "TRACEFS_SOCKET", "candidates", "connect", "socket_path"]


def candidates(directory: str | None = None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The socket directories to try, best first. Touches nothing."""
    return places.candidates(directory, environ, os.geteuid())


def socket_path(directory: str, name: str) -> str:
    """Where the socket `name` of one directory is. OSError: EPERM for a directory in /tmp that is not ours
    alone, or that there is none."""
    if directory == places.temporary_directory(os.geteuid()):
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "not a directory of ours with mode 0700", directory)
    return os.path.join(directory, name)


def connect(name: str, directory: str | None = None, timeout_s: float | None = None) -> socket.socket:
    """A connected, blocking stream socket: the first of the candidates that answers.

    timeout_s: how long to wait for room in the listener's queue, which may be full when its process is
    stopped; then BlockingIOError.

    OSError when none does: of the errors, the first that says more than "there is nothing" (ENOENT), with the
    path.
    """
    import socket  # for tools; a program that emits does not pay for these imports
    import struct

    worst: OSError | None = None
    for candidate in candidates(directory):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if timeout_s is not None:
            # unix_stream_connect() of the kernel waits that long. settimeout() would not wait at all.
            microseconds = max(1, int(timeout_s * 1e6))  # 0 would be for ever
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
