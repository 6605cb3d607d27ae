"""Incomplete files: their names, and reserved space for their end.

.utracefs-RANDOM.tmp   converted from an existing file; removed after an error
NAME.part              a recording, which cannot be repeated: it stays when its writer is killed
"""

import contextlib
import errno
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer


NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""The disk, the user's quota, or the size limit of files (RLIMIT_FSIZE) is exhausted."""

_NAME_MAX: Final = 255
"""Bytes of a file name (NAME_MAX of Linux)."""
_MORE: Final = 8
"""Bytes reserved for suffixes of the name of a .part."""
_LEAST: Final = 16 << 10
"""Reserved on any disk: the end of a file with few events."""


def name_beside(path: str) -> str:
    """A temporary name in the folder of `path`. Open it with "x", and remove it after an error."""
    return os.path.join(os.path.dirname(path), f".utracefs-{os.urandom(8).hex()}.tmp")


@contextlib.contextmanager
def errors_about(path: str) -> Iterator[None]:
    """Makes an OSError refer to `path`, as given by the caller."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def target_of(path: str) -> str:
    """The real file of `path`. OSError about `path`: EISDIR; EINVAL if it is not a regular file."""
    real = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(real).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
    return real


def open_part(path: str) -> BinaryIO:
    """Create PATH.part, or PATH.part.N with the first free N; files of earlier recordings are kept."""
    folder, name = os.path.split(path)
    number = 1
    while True:
        ending = ".part" if number == 1 else f".part.{number}"
        short = os.fsdecode(os.fsencode(name)[: _NAME_MAX - len(ending) - _MORE])
        with contextlib.suppress(FileExistsError):
            return open(os.path.join(folder, short + ending), "x+b", buffering=0)
        number += 1


class WrittenFile:
    """A file that is written at offsets of a disk that may be full."""

    def __init__(self, file: BinaryIO) -> None:
        self.file: Final = file
        self.error: OSError | None = None
        """The first error for lack of space."""

    def put(self, data: "Buffer", at: int) -> int:
        """Returns the bytes that had space."""
        view, written = memoryview(data), 0
        try:
            while written < len(view):  # a second write raises the error of a short one
                written += os.pwrite(self.file.fileno(), view[written:], at + written)
        except OSError as error:
            self.note(error)
        return written

    def note(self, error: OSError) -> None:
        if error.errno not in NO_ROOM:
            raise error
        self.error = self.error or error


def dumped_name(path: str) -> str:
    """PATH.YYYYMMDDhhmmssNN, local time, like the files of `perf record --switch-output`; a later time if it
    exists."""
    while True:
        now_ns = time.time_ns()
        name = f"{path}.{time.strftime('%Y%m%d%H%M%S', time.localtime(now_ns // 10**9))}"
        name += f"{now_ns // 10**7 % 100:02d}"
        if not os.path.lexists(name):
            return name


class Reserve:
    """Space reserved on the disk of a folder, in a file without a name: on a small disk a quarter of the free
    space. OSError: there is none."""

    def __init__(self, folder: str, size: int) -> None:
        import tempfile  # not for readers

        self._file = tempfile.TemporaryFile(dir=folder, prefix=".utracefs-", buffering=0)  # noqa: SIM115
        self.size = 0
        """Bytes reserved."""
        try:
            self.grow(size)
        except BaseException:
            self.free()
            raise

    def grow(self, size: int) -> None:
        """Grow to `size` bytes in total, or to less on a small disk."""
        disk = os.fstatvfs(self._file.fileno())
        if disk.f_blocks:  # else its size is unknown
            size = min(size, max(_LEAST, (self.size + disk.f_bavail * disk.f_frsize) // 4))
        if size <= self.size:
            return
        try:
            os.posix_fallocate(self._file.fileno(), self.size, size - self.size)
        except OSError as error:
            # Some libraries and file systems do not support it; then no space is guaranteed.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        self.size = size

    def free(self) -> None:
        """Free the reserved space for its purpose."""
        self._file.close()


class NoRoom(OSError):
    """A write of a WholeFile was undone: no space."""


class WholeFile(io.FileIO):
    """A new file, written without a buffer. A `write` is complete, or undone: NoRoom. The first of these
    frees the space reserved for the end."""

    def __init__(self, path: str, *, reserve: int = 256 << 10) -> None:
        super().__init__(path, "xb")
        self._is_ahead = False
        self._reserve: Reserve | None = None
        if reserve:
            # Without it small parts may still fit.
            with contextlib.suppress(OSError):
                self._reserve = Reserve(os.path.dirname(os.path.abspath(path)), reserve)

    def write(self, data: "Buffer", /) -> int:
        try:
            return _write_whole(self, super().write, data)
        except NoRoom:
            self.free()
            raise

    def need(self, size: int) -> None:
        """Ensure that so many bytes can be written; NoRoom."""
        try:
            os.posix_fallocate(self.fileno(), self.tell(), size)
        except OSError as error:
            if error.errno in NO_ROOM:
                self.truncate()
                raise NoRoom(error.errno, error.strerror) from None
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
        self._is_ahead = True

    def close(self) -> None:
        if not self.closed:
            self.free()
            if self._is_ahead:
                self.truncate()
        super().close()

    def free(self) -> None:
        """Free the reserved space for the end."""
        if self._reserve is not None:
            self._reserve.free()


def append(path: str, data: bytes) -> None:
    """Append all of it, or NoRoom and nothing."""
    with open(path, "ab", buffering=0) as file:
        _write_whole(file, file.write, data)


def _write_whole(file: io.FileIO, write: Callable[[memoryview], int], data: "Buffer") -> int:
    at, done = file.tell(), 0
    view = memoryview(data).cast("B")
    try:
        while done < len(view):
            done += write(view[done:])
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        file.seek(at)
        file.truncate()
        raise NoRoom(error.errno, error.strerror) from None
    return done
