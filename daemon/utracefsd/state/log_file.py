"""The file of the log. Its layout keeps the log valid after a kill at any moment and with a full /dev/shm.

    0           magic, `_HEAD`
    16          u32 `room`: bytes of an area, whole pages
    24          the word: u32 offset of the area in use, its lowest bit `_BEHIND`; u32 length of the lines
    4096        the first area
    4096 + room the second one

All of it is allocated when the file is made (`made_whole`), so lines that fit into an area need no new page
of /dev/shm later. Lines are appended behind those in use, and then one store of the word adds them. When one
area is full, the current state is written to the other, and the word is switched to it.
A state that no longer fits into an area needs space: another file with larger areas, filled before it is
renamed to the final name.

A SIGKILL leaves:

- while lines are appended (pwrite(2) may end at any page): the earlier lines, since the word does not count
  the new ones yet. Readers stop at the word's length, so zeros or half a line behind it do no harm;
- while an area is written anew: the other area, which is unchanged;
- at the word: the old value or the new one. It is eight bytes at a multiple of eight, one pwrite(2), copied
  within one page: the kernel looks at signals before or after that;
- while a larger file is made: the old file, and `state.new` beside it, which the next start removes.

`behind`: there was a change that the file had no space for. It is a bit of the word, so it needs no space,
follows the last valid line, and the write that completes the log clears it.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path

import attrs

from utracefsd.machine import disk
from utracefsd.machine.kept_file import made_whole, open_kept

PAGE = mmap.PAGESIZE

FIRST_ROOM = 64 << 10
"""Bytes of an area at first: some hundred events and their changes."""

MAX_ROOM = 1 << 30
"""Lengths and offsets are u32."""

_MAGIC = b"utracefs log\1\0\0\0"
_HEAD = struct.Struct("<16sI")
_WORD = struct.Struct("<II")
_WORD_AT = 24
_BEHIND = 1


@attrs.define(eq=False)
class LogFile:
    """An open file for writing. `make` and `open` give one; `close` ends it."""

    _fd: int
    room: int
    """Bytes of an area, the limit of all lines."""
    _offset: int
    length: int
    """Bytes of the lines."""
    behind: bool
    """Whether a change is missing from the lines."""

    @classmethod
    def make(cls, path: Path, room: int, data: bytes = b"") -> LogFile:
        """A new file with these lines, in place of the old one. OSError: no space for it, and the old file is
        unchanged."""
        room = -(-max(room, len(data), 1) // PAGE) * PAGE
        if room > MAX_ROOM:
            raise OSError(errno.EFBIG, "the log would be too large")
        with made_whole(path, PAGE + 2 * room) as fd:
            file = cls(fd, room, PAGE, 0, behind=False)
            if not file._put(_HEAD.pack(_MAGIC, room), 0) or not file.append(data):
                raise OSError(errno.ENOSPC, "no room for the log")
        return file

    @classmethod
    def open(cls, path: Path) -> LogFile:
        """Continue the file that `read_log_file` has found valid. OSError."""
        fd, size = open_kept(path) or (-1, 0)
        room, offset, length, behind = _parse(os.pread(fd, PAGE, 0), size) or (0, 0, 0, True)
        return cls(fd, room, offset, length, behind=behind)

    @property
    def left(self) -> int:
        """Bytes that can be appended."""
        return self.room - self.length

    def append(self, data: bytes) -> bool:
        """Append lines. False: there is no space for all of them, and none is appended."""
        return (
            len(data) <= self.left
            and self._put(data, self._offset + self.length)
            and self._turn(self._offset, self.length + len(data), behind=self.behind)
        )

    def replace(self, data: bytes) -> bool:
        """Replace all lines by these, a complete state. False: nothing is changed."""
        other = PAGE if self._offset != PAGE else PAGE + self.room
        return (
            len(data) <= self.room and self._put(data, other) and self._turn(other, len(data), behind=False)
        )

    def mark_behind(self) -> None:
        """Record that a change is missing, until `replace` writes a complete state."""
        if not self.behind:
            self._turn(self._offset, self.length, behind=True)

    def close(self) -> None:
        os.close(self._fd)

    def _put(self, data: bytes, at: int) -> bool:
        """The pages are allocated; writing can still fail at a limit on the size of files, or on a disk if
        the folder is not in memory."""
        try:
            return disk.pwrite(self._fd, data, at) == len(data)
        except OSError:
            return False

    def _turn(self, offset: int, length: int, *, behind: bool) -> bool:
        if not self._put(_WORD.pack(offset | (_BEHIND if behind else 0), length), _WORD_AT):
            return False
        self._offset, self.length, self.behind = offset, length, behind
        return True


def read_log_file(path: Path) -> tuple[bytes, bool] | None:
    """The lines of the file, and whether it is behind; None: there is no file, or it was never written.

    A file without this layout has no lines, which `parse_log` refuses. OSError.
    """
    kept = open_kept(path)
    if kept is None:
        return None
    fd, size = kept
    with open(fd, "rb") as file:
        if size > PAGE + 2 * MAX_ROOM:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        data = file.read()
    found = _parse(data, len(data))
    if found is None:
        return b"", False
    _room, offset, length, behind = found
    return (data[offset : offset + length], behind) if length else None


def _parse(head: bytes, size: int) -> tuple[int, int, int, bool] | None:
    """(room, offset, length, behind) of a file of this size; None when it does not have this layout."""
    if len(head) < PAGE or size < 3 * PAGE:
        return None
    magic, room = _HEAD.unpack_from(head)
    word, length = _WORD.unpack_from(head, _WORD_AT)
    offset = word & ~_BEHIND
    if magic != _MAGIC or size != PAGE + 2 * room or offset not in (PAGE, PAGE + room) or length > room:
        return None
    return room, offset, length, bool(word & _BEHIND)
