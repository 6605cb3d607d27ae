"""The directory of a daemon's sockets: one rule for the daemon and for its clients.

    |                  | directory of the sockets                                                    |
    |------------------|-----------------------------------------------------------------------------|
    | daemon of root   | /run/utracefs                                                               |
    | daemon of a user | $XDG_RUNTIME_DIR/utracefs; /tmp/utracefs-UID where that is unset or relative |
    | either, named    | the directory given (--dir), else $UTRACEFS_DIR                             |

The XDG Base Directory specification wants a relative path to be ignored. These functions do not look at the
file system. The caller checks whether a directory is safe: every user may write to /tmp, so a directory there
is valid only if the user owns it and its mode is 0700.
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Final


DATA_SOCKET: Final = "user_events_data"
"""Name of the socket for applications that emit."""

TRACEFS_SOCKET: Final = "tracefs"
"""Name of the socket for administrators: the tree."""

DELETED: Final = "the current directory has been deleted; change to another one, or give an absolute path"

SYSTEM_DIRECTORY: Final = "/run/utracefs"
"""Directory of root's daemon, which serves all users."""


def chosen_directory(directory: str | None, environ: Mapping[str, str]) -> str | None:
    """The directory given by argument or UTRACEFS_DIR, absolute: a process may change its working directory
    before it connects again. None or an empty text is no directory."""
    chosen = directory or environ.get("UTRACEFS_DIR")
    try:
        return os.path.abspath(chosen) if chosen else None
    except FileNotFoundError:  # of os.getcwd()
        raise OSError(errno.ESTALE, DELETED, chosen) from None


def xdg_runtime_dir(environ: Mapping[str, str]) -> str | None:
    """XDG_RUNTIME_DIR, unless it is unset, empty or relative."""
    folder = environ.get("XDG_RUNTIME_DIR", "")
    return folder if folder.startswith("/") else None


def temporary_directory(uid: int) -> str:
    """A user's directory where there is no XDG_RUNTIME_DIR."""
    return f"/tmp/utracefs-{uid}"


def user_directory(environ: Mapping[str, str], uid: int) -> str:
    """Directory of a daemon that a user runs."""
    folder = xdg_runtime_dir(environ)
    return temporary_directory(uid) if folder is None else f"{folder.rstrip('/')}/utracefs"


def daemon_directory(environ: Mapping[str, str], uid: int) -> str:
    return SYSTEM_DIRECTORY if uid == 0 else user_directory(environ, uid)


def candidates(directory: str | None, environ: Mapping[str, str], uid: int) -> list[str]:
    """Directories in which a program looks for a daemon, in order: the given directory only, else the user's
    and the system's."""
    chosen = chosen_directory(directory, environ)
    return [chosen] if chosen else [user_directory(environ, uid), SYSTEM_DIRECTORY]
