"""Files that a daemon maps and the next daemon finds by name: opening and making them.

A file appears complete or not at all, with all its memory allocated: a full /dev/shm is an error when the
file is made, not a SIGBUS at a later record.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from utracefsd.machine import disk

_OF_THE_FILE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV, errno.EFBIG)
)
"""Errors of a file that is missing, or is not a daemon's. Others (EMFILE, ENOMEM, EIO) say nothing about its
contents, and may be gone at the next start."""


class UnreadableError(Exception):
    """The previous daemon's file cannot be read now, whatever it holds: a daemon must not start without it.

    errno: the reason.
    """

    def __init__(self, path: str | os.PathLike[str], number: int) -> None:
        super().__init__(f"{os.fspath(path)} cannot be read: {os.strerror(number)}; it is kept as it is")
        self.errno = number


def check_readable(path: str | os.PathLike[str], error: Exception) -> None:
    """UnreadableError if this error of opening, reading or mapping the file is not due to the file."""
    if isinstance(error, MemoryError):
        raise UnreadableError(path, errno.ENOMEM) from error
    if isinstance(error, OSError) and error.errno not in _OF_THE_FILE:
        raise UnreadableError(path, error.errno or errno.EIO) from error


def open_kept(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Open the previous daemon's file for reading and writing: (descriptor, size). The caller closes the
    descriptor. Size -1: not a regular file. None: no such file. OSError; ELOOP for a link."""
    try:
        fd = disk.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = os.fstat(fd)
    return fd, found.st_size if stat.S_ISREG(found.st_mode) else -1


@contextlib.contextmanager
def made_whole(path: str | os.PathLike[str], size: int) -> Iterator[int]:
    """Make a file of `size` zero bytes and yield its descriptor, which the caller closes. At the end of the
    block rename(2) moves the file to `path`.

    An exception in the block leaves no file and no descriptor. OSError.
    """
    new = f"{os.fspath(path)}.new"
    remove(Path(new))
    fd = disk.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        disk.posix_fallocate(fd, 0, size)
        yield fd
        disk.rename(new, path)
    except BaseException:
        os.close(fd)
        disk.unlink(new)
        raise


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its contents; errors are ignored."""
    if path.is_dir() and not path.is_symlink():
        disk.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            disk.unlink(path)
