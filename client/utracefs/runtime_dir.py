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
    import _socket
    import socket
    from collections.abc import Mapping

__all__ = ["DATA_SOCKET", "TRACEFS_SOCKET", "candidates", "connect", "connect_one"]


def candidates(directory: str | None = None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The socket directories to try, best first. Touches nothing."""
    return places.candidates(directory, environ, os.geteuid())


def connect_one(sock: _socket.socket, directory: str, name: str) -> None:
    """Connect `sock` to the socket `name` in one directory. OSError: what connect(2) said, or EPERM for a
    directory in /tmp that is not ours alone."""
    if directory == places.temporary_directory(os.geteuid()):
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, "not a directory of ours with mode 0700", directory)
    sock.connect(os.path.join(directory, name))


def connect(name: str, directory: str | None = None) -> socket.socket:
    """A connected, blocking stream socket: the first of the candidates that answers.

    OSError when none does: of the errors, the first that says more than "there is nothing" (ENOENT), with the
    path.
    """
    import socket  # of tools; a program that emits makes its own

    worst: OSError | None = None
    for candidate in candidates(directory):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connect_one(sock, candidate, name)
        except OSError as error:
            sock.close()
            if worst is None or (worst.errno == errno.ENOENT and error.errno != errno.ENOENT):
                worst = OSError(error.errno, error.strerror or str(error), os.path.join(candidate, name))
        else:
            return sock
    assert worst is not None
    raise worst
