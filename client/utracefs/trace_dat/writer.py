"""Writes a trace.dat, version 7.

While a recording runs, each cpu's pages go to a nameless file in the target's folder, so that a recording may
be larger than memory. `finish` puts all of it together beside NAME and renames that: a recorder that is
killed leaves no half file under the final name.

A recorder that reads often gets pages that hold little. They are joined: the records of a short page go
behind those of the page before it, with a time extend between them.
"""

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Final, Self

import attrs

import utracefs.trace_dat.format as layout
from utracefs.half_written import name_beside
from utracefs_protocol.limits import SUBBUF_SIZE
from utracefs_protocol.subbuf import commit_of, join_pages, last_ts, missed_events

__all__ = ["Contents", "TraceDatWriter"]

_COPY_BYTES: Final = 1 << 20


@attrs.frozen(kw_only=True)
class Contents:
    """All that a trace.dat holds besides the pages. Texts are the tracefs files of that name, whole."""

    header_page: bytes
    header_event: bytes
    ftrace_formats: Sequence[bytes] = ()
    """events/ftrace/*/format."""
    formats: Mapping[bytes, Sequence[bytes]] = attrs.field(factory=dict[bytes, Sequence[bytes]])
    """System to the formats of its events."""
    kallsyms: bytes = b""
    """Lines `ADDRESS TYPE NAME`."""
    printk_formats: bytes = b""
    cmdlines: bytes = b""
    """Lines `TID COMM`."""
    trace_clock: bytes = b"[mono]"
    """The clocks on one line, the one in use in brackets."""
    cpu_stats: Mapping[int, bytes] = attrs.field(factory=dict[int, bytes])
    """cpu to per_cpu/cpuN/stats."""
    event_stats: bytes = b""
    """What became of the records of all events; lines as `cpu_stats` has them."""
    uname: str = ""
    version: str = ""
    """Name and version of the producer."""
    trace_id: int = 0
    """Any number that tells recordings apart; 0 leaves it out."""
    offset_ns: int | None = None
    """Added to all time stamps on reading, for wall-clock times."""


class TraceDatWriter:
    """Writes one trace.dat: `add_page` as they come, then `finish`. A context manager: leaving it without
    `finish` leaves nothing behind.

    OSError from the file system, with the path: the folder is not there or not writable, the disk is full;
    IsADirectoryError; and EINVAL when `path` is something other than a regular file.
    """

    def __init__(self, path: str | os.PathLike[str], *, nr_cpus: int, page_size: int = SUBBUF_SIZE) -> None:
        self.path: Final = os.path.realpath(path)
        self._shown = os.fspath(path)
        self._page_size = page_size
        self._check_target()
        folder = os.path.dirname(self.path)
        self._cpus: list[_CpuFile] = []
        try:
            for _ in range(nr_cpus):
                self._cpus.append(_CpuFile(folder, page_size))
        except OSError as error:
            self.close()
            raise OSError(error.errno, error.strerror, self._shown) from None
        self.pages_bytes = 0
        """Bytes of pages that were added."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what was not finished."""
        for cpu in self._cpus:
            with contextlib.suppress(OSError):  # what waits in its buffer finds no room either
                cpu.file.close()
        self._cpus.clear()

    def add_page(self, cpu: int, page: bytes) -> None:
        """The next sub-buffer of a cpu, as `trace_pipe_raw` gives it."""
        if len(page) != self._page_size:
            raise ValueError(f"page of {len(page)} bytes; this file's have {self._page_size}")
        try:
            self._cpus[cpu].add(page)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._shown) from None
        self.pages_bytes += len(page)

    def finish(self, contents: Contents) -> int:
        """Write the file and give it its name; returns its size in bytes."""
        temporary = name_beside(self.path)
        try:
            for cpu in self._cpus:
                cpu.flush()
            with open(temporary, "xb") as file:
                self._write(file, contents)
                size = file.tell()
            os.rename(temporary, self.path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self._shown) from None
            raise
        self.close()
        return size

    def _check_target(self) -> None:
        try:
            mode = os.stat(self.path).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self._shown)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "is not a regular file", self._shown)

    def _write(self, file: IO[bytes], contents: Contents) -> None:
        file.write(layout.MAGIC + b"7\0" + layout.LITTLE_ENDIAN + layout.LONG_SIZE)
        file.write(layout.U32.pack(self._page_size) + layout.COMPRESSIONS[0] + b"\0" + b"\0")
        options_at = file.tell()
        file.write(layout.U64.pack(0))
        sections = _Sections(file)
        for section, body in _bodies(contents):
            sections.add(section, body)

        padding = -(file.tell() + layout.SECTION_HEADER.size) % self._page_size
        sections.begin(layout.BUFFER, padding + sum(cpu.size for cpu in self._cpus))
        file.write(bytes(padding))
        extents: list[layout.Extent] = []
        for number, cpu in enumerate(self._cpus):
            extents.append(layout.Extent(number, file.tell(), cpu.size))
            _copy(cpu.file, file, cpu.size)

        sections.add(layout.OPTIONS, _pack_options(self._options(contents, sections.offsets, extents)))
        sections.end()
        end = file.tell()
        file.seek(options_at)
        file.write(layout.U64.pack(sections.offsets[layout.OPTIONS]))
        file.seek(end)

    def _options(
        self,
        contents: Contents,
        offsets: Mapping[layout.Section, int],
        extents: Sequence[layout.Extent],
    ) -> list[tuple[int, bytes]]:
        """(id, data) of each option."""
        clock = layout.clock_in_use(contents.trace_clock)
        buffer = layout.U64.pack(offsets[layout.BUFFER]) + b"\0" + clock.encode() + b"\0"
        buffer += layout.U32.pack(self._page_size) + layout.U32.pack(len(extents))
        for extent in extents:
            buffer += layout.CPU_EXTENT.pack(extent.cpu, extent.offset, extent.size)
        options = [
            layout.OPTION_TRACECLOCK.pack(contents.trace_clock.rstrip(b"\n")),
            layout.OPTION_CPUCOUNT.pack(len(extents)),
        ]
        options += [
            layout.OPTION_CPUSTAT.pack(b"CPU: %d\n" % cpu + text.rstrip(b"\n") + b"\n")
            for cpu, text in sorted(contents.cpu_stats.items())
        ]
        if contents.event_stats:
            options.append(layout.OPTION_CPUSTAT.pack(contents.event_stats))
        if contents.uname:
            options.append(layout.OPTION_UNAME.pack(contents.uname.encode()))
        if contents.version:
            options.append(layout.OPTION_VERSION.pack(contents.version.encode()))
        if contents.trace_id:
            options.append(layout.OPTION_TRACEID.pack(contents.trace_id))
        if contents.offset_ns is not None:
            options.append(layout.OPTION_OFFSET.pack(contents.offset_ns))
        options += [
            layout.section_option(section).pack(offset)
            for section, offset in offsets.items()
            if section.by_option
        ]
        return [*options, layout.OPTION_BUFFER.pack(buffer), layout.OPTION_DONE.pack(0)]


class _Sections:
    """Writes sections one behind the other, and remembers where they are and what they are called."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._strings = bytearray()
        self.offsets: Final[dict[layout.Section, int]] = {}
        """In the file."""

    def begin(self, section: layout.Section, size: int) -> None:
        """The header; the caller writes the `size` bytes that follow."""
        self.offsets[section] = self._file.tell()
        self._file.write(layout.SECTION_HEADER.pack(section.id, 0, len(self._strings), size))
        self._strings += section.name + b"\0"

    def add(self, section: layout.Section, body: bytes) -> None:
        self.begin(section, len(body))
        self._file.write(body)

    def end(self) -> None:
        """The strings, their own name included."""
        self.begin(layout.STRINGS, len(self._strings) + len(layout.STRINGS.name) + 1)
        self._file.write(self._strings)


class _CpuFile:
    """The pages of one cpu, in a file without a name; the last page waits in memory for what may still fit on
    it."""

    def __init__(self, folder: str, page_size: int) -> None:
        self.file = tempfile.TemporaryFile(dir=folder, prefix=".utracefs-", buffering=1 << 16)  # noqa: SIM115
        self.size = 0
        self._page_size = page_size
        self._page: bytearray | None = None
        self._last_ts = 0

    def add(self, page: bytes) -> None:
        commit = commit_of(page)
        if not commit and not missed_events(page):
            return
        # Joining pays where readers outrun the writer; pages that came full are left as they are.
        full = commit * 2 > self._page_size
        if full or self._page is None or not join_pages(self._page, self._last_ts, page):
            self._write_waiting()
            if full:
                self.file.write(page)
                self.size += len(page)
                return
            self._page = bytearray(page)
        self._last_ts = last_ts(page)

    def flush(self) -> None:
        self._write_waiting()
        self.file.flush()

    def _write_waiting(self) -> None:
        if self._page is not None:
            self.file.write(self._page)
            self.size += len(self._page)
            self._page = None


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """`size` bytes from the beginning of one file to the end of another, inside the kernel where it can be
    done."""
    target.seek(0, os.SEEK_END)  # flushes, so that both descriptors stand where the files do
    source_fd, target_fd = source.fileno(), target.fileno()
    done = 0
    try:
        while done < size and (copied := os.copy_file_range(source_fd, target_fd, size - done, done)):
            done += copied
    except OSError as error:
        # copy_file_range(2): not between these two file systems, or not with this kernel.
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
            raise
    while done < size:
        data = os.pread(source_fd, min(_COPY_BYTES, size - done), done)
        if not data:
            raise OSError(errno.EIO, "a temporary file has become shorter")
        done += os.write(target_fd, data)
    target.seek(0, os.SEEK_END)


def _bodies(contents: Contents) -> list[tuple[layout.Section, bytes]]:
    """The sections that hold texts."""
    return [
        (
            layout.HEADERS,
            b"header_page\0" + _lstr(contents.header_page) + b"header_event\0" + _lstr(contents.header_event),
        ),
        (layout.FTRACE_EVENTS, _lstrs(contents.ftrace_formats)),
        (
            layout.EVENT_FORMATS,
            layout.U32.pack(len(contents.formats))
            + b"".join(system + b"\0" + _lstrs(texts) for system, texts in contents.formats.items()),
        ),
        (layout.KALLSYMS, layout.U32.pack(len(contents.kallsyms)) + contents.kallsyms),
        (layout.PRINTK, layout.U32.pack(len(contents.printk_formats)) + contents.printk_formats),
        (layout.CMDLINES, _lstr(contents.cmdlines)),
    ]


def _lstr(text: bytes) -> bytes:
    return layout.U64.pack(len(text)) + text


def _lstrs(texts: Sequence[bytes]) -> bytes:
    """u32 number, and an lstr each."""
    return layout.U32.pack(len(texts)) + b"".join(map(_lstr, texts))


def _pack_options(options: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(layout.OPTION_HEADER.pack(number, len(data)) + data for number, data in options)
