"""Files that a daemon maps and its successor finds by name: which are opened, and how they are made.

A successor maps what it finds, so a file stands there as a whole or not at all, with all its memory
allocated: a full /dev/shm is an error when it is made, not a SIGBUS at some record later.
"""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path


def open_kept(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Open the file that a daemon before this one left, to read and write: its descriptor, which is the
    caller's, and its size; -1: it is no regular file. None: there is none. OSError; ELOOP for a link."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = os.fstat(fd)
    return fd, found.st_size if stat.S_ISREG(found.st_mode) else -1


@contextlib.contextmanager
def made_whole(path: str | os.PathLike[str], size: int) -> Iterator[int]:
    """Make a file of `size` bytes, all 0, and give its descriptor, which is the caller's. At the end of the
    block it takes the place of what is at `path` (rename(2)).

    What is raised in the block leaves no file and no descriptor. OSError.
    """
    new = f"{os.fspath(path)}.new"
    remove(Path(new))
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        yield fd
        os.rename(new, path)
    except BaseException:
        os.close(fd)
        os.unlink(new)
        raise


def remove(path: Path) -> None:
    """A file, a link or a folder with all that is in it, where that can be done; else it stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
