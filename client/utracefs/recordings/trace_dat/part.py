"""NAME.part, the file of a running recording, and its conversion to a trace.dat without needing its space
twice.

    head, texts | PAGES cpu 0 ~~~~~~~~ | PAGES cpu 1 ~~~~~~~~ | texts | PAGES cpu 0 ~~~~   |
                  extents, filled one after the other; so each text and page is
                  written once, and a reader can read all of it at any moment

A trace.dat has the pages of a cpu in one piece. Where a file system can take holes out of a file (ext4, XFS),
a cpu's first extent has place for all that the disk can hold, and `squeeze` takes out what was not written:
NAME.part becomes the trace.dat. Elsewhere extents have 1 MiB. Their pages are moved from the end of NAME.part
to its beginning, step by step, and NAME.part is truncated each time: that works on every file system.

The disk may be full at any time. A page without space is dropped, its records are counted, and the next page
of its cpu has their number.
"""

import contextlib
import errno
import os
import resource
from collections.abc import Iterable, Iterator
from typing import BinaryIO, Final

import attrs

import utracefs.recordings.trace_dat.format as layout
from utracefs.recordings.partial_files import NO_ROOM, WrittenFile, open_part
from utracefs.recordings.trace_dat._pages import count_events, take_out
from utracefs_protocol.pages._subbuf import commit_of, missed_events
from utracefs_protocol.pages.subbuf import join_pages, last_ts, with_missed

STEP: Final = 256 << 10
"""Bytes moved at a time, the space needed for it; less on a small disk."""

_EXTENT: Final = 1 << 20
_LARGEST_FILE: Final = 8 << 40
"""Offsets that every file system has."""
_WAITING: Final = 16
"""Pages of a cpu that are collected in memory to be written together."""


@attrs.define
class _Extent:
    cpu: int
    head: int
    """Offset of its section in the file."""
    offset: int
    """Offset of its pages."""
    end: int
    size: int = 0
    """Bytes of pages."""


class Part(WrittenFile):
    """The file. OSError if it cannot be opened; no other call raises for a full disk."""

    def __init__(self, path: str, *, nr_cpus: int, page_size: int, step: int = STEP) -> None:
        super().__init__(open_part(path))
        self.name: Final[str] = self.file.name
        self.direct: int | None = None
        """The same file past the page cache."""
        with contextlib.suppress(OSError):  # not by its name: others may have replaced it
            self.direct = os.open(f"/proc/self/fd/{self.file.fileno()}", os.O_WRONLY | os.O_DIRECT)
        self.given_up = 0
        """Records of events on dropped pages."""
        self.is_moved = False
        """Some pages have been moved out of this file."""
        self._page_size = page_size
        self._step = max(step // page_size, 1) * page_size
        self._region = _region(self.file.fileno(), nr_cpus)
        self._end = 0
        self._extents: list[_Extent] = []
        self._cpus = [_Cpu(page_size) for _ in range(nr_cpus)]
        self._current: list[_Extent | None] = [None] * nr_cpus
        self._size = 0
        """Bytes of pages in full extents."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of the pages of each cpu."""
        sizes = [0] * len(self._cpus)
        for extent in self._extents:
            sizes[extent.cpu] += extent.size
        return sizes

    @property
    def size(self) -> int:
        """Bytes of all pages."""
        return self._size + sum(extent.size for extent in self._current if extent is not None)

    def leave(self) -> None:
        self.file.close()
        if self.direct is not None:
            os.close(self.direct)
            self.direct = None

    def remove(self) -> None:
        """Remove the file, unless it is closed already (then it was kept or removed)."""
        if not self.file.closed:
            self.leave()
            os.unlink(self.name)

    def add_text(self, data: bytes) -> bool:
        """Write the head, or a whole section; False: there was no space."""
        written = self.put(data, self._end)
        if written < len(data):
            if written:
                os.truncate(self.file.fileno(), self._end)
            return False
        self._end += len(data)
        return True

    def add_page(self, number: int, page: bytes) -> None:
        """Add a cpu's next page; it may be kept in memory, and be joined with others."""
        cpu = self._cpus[number]
        cpu.add(page)
        if len(cpu.full) >= _WAITING:
            self._write(number)

    def add_pages(self, number: int, pages: memoryview, *, is_direct: bool = False) -> None:
        """Write the next pages of a cpu at once, without joining them. is_direct: see the writer."""
        self._cpus[number].close_page()
        self._write(number)
        self._put(number, pages, is_direct=is_direct)

    def sync(self, *, is_end: bool = False) -> None:
        """Write the collected pages. A page that others may still be joined with is written again later."""
        for number, cpu in enumerate(self._cpus):
            if is_end:
                cpu.close_page()
            self._write(number)
            if cpu.page is not None and (extent := self._room(number)) is not None:
                self.put(cpu.page, extent.offset + extent.size)

    def _write(self, number: int) -> None:
        cpu = self._cpus[number]
        if cpu.full:
            full, cpu.full = cpu.full, []
            self._put(number, memoryview(b"".join(full)))

    def _put(self, number: int, pages: memoryview, *, is_direct: bool = False) -> None:
        cpu, size = self._cpus[number], self._page_size
        while pages:
            written = 0
            if (extent := self._room(number)) is not None:
                at = extent.offset + extent.size
                fitting = pages[: extent.end - at]
                if cpu.missing:
                    fitting = memoryview(with_missed(bytes(pages[:size]), cpu.missing) + fitting[size:])
                if is_direct and not cpu.missing:
                    written = self._write_directly(fitting, at)
                written += self.put(fitting[written:], at + written)
                written -= written % size
                extent.size += written
            if written:
                cpu.missing = 0
            else:
                page = bytes(pages[:size])
                cpu.missing = _missing(cpu.missing, page)
                self.given_up += count_events(page)
            pages = pages[written or size :]

    def _write_directly(self, pages: memoryview, at: int) -> int:
        """Returns the written bytes; 0: this file system cannot do that, or has no room for all."""
        if self.direct is not None:
            try:
                return os.pwrite(self.direct, pages, at)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, *NO_ROOM):
                    raise
                os.close(self.direct)
                self.direct = None
        return 0

    def _room(self, number: int) -> _Extent | None:
        """Offset of a cpu's next page; None: no space."""
        extent = self._current[number]
        if extent is None or extent.offset + extent.size == extent.end:
            head = layout.SECTION_HEADER.size + layout.U32.size
            offset = self._end + head
            offset += -offset % self._page_size
            wanted = self._region if extent is None else _EXTENT
            end = offset + max(wanted // self._page_size, 1) * self._page_size
            begin = self._end
            if not self.add_text(_pages_section(begin, end, number)):
                return None
            self._end = end
            self._size += extent.size if extent is not None else 0
            extent = self._current[number] = _Extent(number, begin, offset, end)
            self._extents.append(extent)
        return extent

    # The end.

    def places(self) -> tuple[list[layout.Extent], int] | None:
        """Where the pages of each cpu, and the end of the file, will be after `squeeze`; None: they are not
        in one piece, or there is no head."""
        in_one_piece = len({extent.cpu for extent in self._extents}) == len(self._extents)
        has_head = os.pread(self.file.fileno(), len(layout.MAGIC), 0) == layout.MAGIC
        if self._region == _EXTENT or not in_one_piece or not has_head:
            return None
        places = [layout.Extent(cpu, 0, 0) for cpu in range(len(self._cpus))]
        removed = 0
        for extent in self._extents:
            places[extent.cpu] = layout.Extent(extent.cpu, extent.offset - removed, extent.size)
            removed += extent.end - extent.offset - extent.size
        return places, self._end - removed

    def squeeze(self, head: bytes) -> None:
        """Take out what was not written of each extent; then the file has this head. A reader of a file that
        is left by a kill finds the next section behind the hole."""
        fd = self.file.fileno()
        for extent in reversed(self._extents):
            if unwritten := extent.end - extent.offset - extent.size:
                end = extent.end - unwritten
                os.pwrite(fd, _pages_section(extent.head, end, extent.cpu), extent.head)
                take_out(fd, end, unwritten)
        os.pwrite(fd, head, 0)

    def give_up_last(self) -> bool:
        """Drop the last pages of the file, up to a step, to free space; False: there are none left."""
        while self._extents and not self._extents[-1].size:
            self._extents.pop()
        if not self._extents:
            return False
        extent = self._extents[-1]
        at = extent.offset + max(0, extent.size - self._step)
        self._count(at, extent.offset + extent.size)
        extent.size = at - extent.offset
        os.truncate(self.file.fileno(), at)
        return True

    def move(self, target: BinaryIO, offsets: Iterable[int]) -> None:
        """Move the pages of each cpu to its offset in `target`. OSError for other reasons than space: pages
        not moved are still here."""
        places = list(offsets)
        moves = []
        for extent in self._extents:
            moves.append((extent, places[extent.cpu]))
            places[extent.cpu] += extent.size
        source, step = self.file.fileno(), self._step
        for extent, place in reversed(moves):
            while extent.size:
                size = extent.size % step or step
                at = extent.size - size
                try:
                    _copy(source, extent.offset + at, target.fileno(), place + at, size)
                except OSError as error:
                    self.note(error)
                    self._count(extent.offset + at, extent.offset + extent.size)
                self.is_moved = True
                os.truncate(source, extent.offset + at)
                extent.size = at

    def pages_of(self, cpu: int) -> Iterator[bytes]:
        """The pages of a cpu, a step of them at a time."""
        step = self._step
        for extent in self._extents:
            for at in range(0, extent.size if extent.cpu == cpu else 0, step):
                yield os.pread(self.file.fileno(), min(step, extent.size - at), extent.offset + at)

    def _count(self, begin: int, end: int) -> None:
        for at in range(begin, end, self._page_size):
            self.given_up += count_events(os.pread(self.file.fileno(), self._page_size, at))


class _Cpu:
    """The pages of one cpu collected in memory."""

    def __init__(self, page_size: int) -> None:
        self.full: list[bytes] = []
        """Pages to be written."""
        self.page: bytearray | None = None
        """The last one, to which further records may be joined."""
        self.missing = 0
        """Records dropped before them; -1: unknown."""
        self._page_size = page_size
        self._last_ts = 0

    def add(self, page: bytes) -> None:
        commit = commit_of(page)
        if not commit and not missed_events(page):
            return
        # Joining pays if readers outrun the writer; full pages are not changed.
        full = commit * 2 > self._page_size
        if full or self.page is None or not join_pages(self.page, self._last_ts, page):
            self.close_page()
            if full:
                self.full.append(page)
                return
            self.page = bytearray(page)
        self._last_ts = last_ts(page)

    def close_page(self) -> None:
        """End joining with the last page."""
        if self.page is not None:
            self.full.append(bytes(self.page))
            self.page = None


def _region(fd: int, nr_cpus: int) -> int:
    """Size of the first extent of a cpu."""
    disk = os.fstatvfs(fd)
    size = min(disk.f_bavail * disk.f_frsize, _LARGEST_FILE // nr_cpus) // _EXTENT * _EXTENT
    if size <= _EXTENT or resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        return _EXTENT
    try:
        os.ftruncate(fd, 8192)
        take_out(fd, 0, 4096)
    except OSError:
        size = _EXTENT
    os.ftruncate(fd, 0)
    return size


def _pages_section(begin: int, end: int, cpu: int) -> bytes:
    """Its beginning."""
    size = end - begin - layout.SECTION_HEADER.size
    return layout.SECTION_HEADER.pack(layout.PAGES.id, 0, 0, size) + layout.U32.pack(cpu)


def _missing(count: int, page: bytes) -> int:
    """Records missing with `count` and this page: -1 if unknown."""
    before = missed_events(page)
    return -1 if before < 0 or count < 0 else count + before + count_events(page)


def _copy(source: int, at: int, target: int, place: int, size: int) -> None:
    """Copy in the kernel if possible, else through memory."""
    done = 0
    try:
        while done < size and (
            copied := os.copy_file_range(source, target, size - done, at + done, place + done)
        ):
            done += copied
    except OSError as error:
        # copy_file_range(2): not between these two file systems, or not with this kernel.
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    while done < size:
        data = os.pread(source, size - done, at + done)
        if not data:
            raise OSError(errno.EIO, "NAME.part was truncated meanwhile")
        done += os.pwrite(target, data, place + done)
