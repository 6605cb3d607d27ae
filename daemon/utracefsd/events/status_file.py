"""The status file: one byte per event in a shared page, written by the daemon and read by all programs.

`utracefs_protocol.pages.status_page` describes the page; this module keeps it.

- Index 0 is never allocated. The lowest free index is, and an index is reused after its event is removed.
- Clients get a descriptor over the socket and map it. It is read-only, and it cannot be opened again for
  writing through /proc/self/fd, because the file belongs to the daemon's user with mode 0600.
- A client may keep its mapping after the daemon has ended. So an ending daemon zeroes every byte, and a
  starting daemon zeroes an old file that a killed daemon left, before it makes a new one: in both cases
  old mappings say "no consumer". The new file is a new inode, visible only to clients that connect again.
"""

import contextlib
import errno
import mmap
import os
import stat
from collections.abc import Collection
from pathlib import Path

from utracefs_protocol.errors import TraceError
from utracefsd.events.lowest_free import LowestFree
from utracefsd.machine import disk
from utracefsd.machine.kept_file import remove

PAGE_SIZE = mmap.PAGESIZE

# Of an old file (`--status-pages`); a longer one is damaged.
_MAX_SIZE = 16 * PAGE_SIZE


class StatusFile:
    """`pages` pages of status bytes at `path`, where a file is replaced; the folder must be the daemon's own.
    `close` removes the file. TraceError(ENOSPC and the like) when there is no space for it; OSError."""

    def __init__(self, path: str | os.PathLike[str], pages: int = 1) -> None:
        self.path = os.fspath(path)
        self.size = pages * PAGE_SIZE
        self._fd = _create_file(self.path)
        try:
            self._allocate()
            self._map = mmap.mmap(self._fd, self.size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            self._readonly_fd = disk.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except BaseException:
            os.close(self._fd)
            disk.unlink(self.path)
            raise
        self._indexes = LowestFree(1, self.capacity)
        self._closed = False

    @property
    def capacity(self) -> int:
        """How many events can have a byte: every index but 0."""
        return self.size - 1

    def allocate(self) -> int:
        """Allocate the lowest free index, if there are fewer than `capacity`; its byte is 0."""
        index = self._indexes.allocate()
        assert index is not None
        return index

    def reserve(self, indexes: Collection[int]) -> bool:
        """Allocate exactly these initially. False, and nothing is allocated, when one does not fit."""
        return self._indexes.reserve(indexes)

    def free(self, index: int) -> None:
        """Free `index`; its byte becomes 0 at once, so a program that still polls it emits nothing."""
        self._check(index)
        self._map[index] = 0
        self._indexes.free(index)

    def set(self, index: int, byte: int) -> None:
        """Store one event's byte; seen by every mapping at once (a single byte is always stored whole)."""
        self._check(index)
        self._map[index] = byte

    def get(self, index: int) -> int:
        """The byte at `index`."""
        return self._map[index]

    def readonly_fd(self) -> int:
        """A new descriptor that can be read and mapped but not written; the caller closes it. OSError."""
        return os.dup(self._readonly_fd)

    def close(self) -> None:
        """Zero all bytes, unmap, remove the file unless it was replaced. A second call is harmless."""
        if self._closed:
            return
        self._closed = True
        self._map[:] = bytes(self.size)
        self._map.close()
        with contextlib.suppress(FileNotFoundError):
            ours, there = os.fstat(self._fd), os.lstat(self.path)
            if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino):
                disk.unlink(self.path)
        os.close(self._readonly_fd)
        os.close(self._fd)

    def _allocate(self) -> None:
        # Not ftruncate: in a full file system the first store into a byte would be a SIGBUS, here and in
        # readers.
        try:
            disk.posix_fallocate(self._fd, 0, self.size)
        except OSError as error:
            raise TraceError(
                error.errno or errno.EIO,
                f"no room for the status file {self.path} ({self.size} bytes): {error.strerror}",
            ) from error

    def _check(self, index: int) -> None:
        if index not in self._indexes:
            raise ValueError(f"status index {index} is not given out")


def _create_file(path: str) -> int:
    _retire(path)
    return disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _retire(path: str) -> None:
    """Zero an old file, for the programs that still map it, then unlink it."""
    try:
        fd = disk.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError:  # a link, a folder, a socket
        remove(Path(path))
        return
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            disk.pwrite(fd, bytes(min(found.st_size, _MAX_SIZE)), 0)
    finally:
        os.close(fd)
    remove(Path(path))
