"""trace.dat: the file that trace-cmd and KernelShark read; written in version 7, read in versions 6 and 7.

    +--------------------+  magic, "tracing", version, endian, size of long, page size, compression,
    | file header        |  offset of the options
    +--------------------+
    | 16 headers         |  header_page, header_event
    | 17 ftrace events   |  formats of the records of ftrace itself (print, raw_data)
    | 18 events format   |  per system the `format` of each event
    | 19 kallsyms        |  one line, for the ip of trace_marker records
    | 20 printk          |
    | 21 command lines   |  saved_cmdlines
    |  3 buffer flyrecord|  zeros up to a page boundary, then the pages of cpu 0, cpu 1, ...
    |  0 options         |  where each of the above is, the clock, the number of cpus, ...
    | 15 strings         |  what the sections are called
    +--------------------+

Every section begins with (u16 id, u16 flags, u32 offset in the strings, u64 bytes that follow), and the next one follows
without a gap. Version 6 has the same parts in a fixed order without section headers. Sources: trace-cmd.dat.v7(5),
trace-cmd.dat.v6(5). All numbers are little-endian.

**Writing.** While a recording runs, each cpu's pages go to a nameless file in the target's folder, so that a recording
may be larger than memory; `finish` puts all of it together in NAME.tmp and renames that. A recorder that is killed
leaves no half file under the final name.

A recorder that reads often gets pages that hold little. They are joined: records of a short page go behind those of
the page before it, with a time extend between them.

**Reading.** Nothing in a file is trusted: TraceError(EINVAL) says what is wrong with it and where.
"""

import contextlib
import errno
import heapq
import mmap
import os
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Final, NamedTuple, Self

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.event_format import EventFormat, parse_format
from utracefs_protocol.limits import SUBBUF_HEADER_SIZE, SUBBUF_SIZE
from utracefs_protocol.subbuf import commit_of, iter_records, join_pages, last_ts, missed_events

__all__ = [
    "Buffer",
    "BufferRecord",
    "Contents",
    "Extent",
    "TraceDatReader",
    "TraceDatWriter",
]

MAGIC: Final = b"\x17\x08\x44tracing"

SECTION_OPTIONS: Final = 0
SECTION_BUFFER: Final = 3
SECTION_STRINGS: Final = 15
SECTION_HEADERS: Final = 16
SECTION_FTRACE_EVENTS: Final = 17
SECTION_EVENT_FORMATS: Final = 18
SECTION_KALLSYMS: Final = 19
SECTION_PRINTK: Final = 20
SECTION_CMDLINES: Final = 21

SECTION_NAMES: Final = {
    SECTION_HEADERS: b"headers",
    SECTION_FTRACE_EVENTS: b"ftrace events",
    SECTION_EVENT_FORMATS: b"events format",
    SECTION_KALLSYMS: b"kallsyms",
    SECTION_PRINTK: b"printk",
    SECTION_CMDLINES: b"command lines",
    SECTION_BUFFER: b"buffer flyrecord",
    SECTION_OPTIONS: b"options",
    SECTION_STRINGS: b"strings",
}
"""The descriptions that trace-cmd gives them."""

OPTION_DONE: Final = 0
OPTION_CPUSTAT: Final = 2
OPTION_BUFFER: Final = 3
OPTION_TRACECLOCK: Final = 4
OPTION_UNAME: Final = 5
OPTION_OFFSET: Final = 7
OPTION_CPUCOUNT: Final = 8
OPTION_VERSION: Final = 9
OPTION_TRACEID: Final = 11

CLOCKS_IN_NS: Final = frozenset({"local", "global", "uptime", "perf", "mono", "mono_raw", "tai"})
"""Clocks whose stamps trace-cmd prints as seconds; it prints all others, `boot` too, as bare numbers."""

_SECTION: Final = struct.Struct("<HHIQ")
_OPTION: Final = struct.Struct("<HI")
_OPTION_ID: Final = struct.Struct("<H")
_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_EXTENT: Final = struct.Struct("<QQ")
_CPU_EXTENT: Final = struct.Struct("<IQQ")
_COMPRESSED: Final = 0x1
_COPY_BYTES: Final = 1 << 20
_MAX_CPUS: Final = 1 << 16


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
    uname: str = ""
    version: str = ""
    """Name and version of the producer."""
    trace_id: int = 0
    """Any number that tells recordings apart; 0 leaves it out."""
    offset_ns: int | None = None
    """Added to all time stamps on reading, for wall-clock times."""


class TraceDatWriter:
    """Writes one trace.dat: `add_page` as they come, then `finish`. A context manager: leaving it without `finish` leaves
    nothing behind.

    OSError from the file system, with the path: the folder is not there or not writable, the disk is full;
    IsADirectoryError; and EINVAL when `path` is something else than a file.
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
        temporary = self.path + ".tmp"
        try:
            for cpu in self._cpus:
                cpu.flush()
            with open(temporary, "wb") as file:
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
            raise OSError(errno.EINVAL, "exists and is no file; trace.dat needs one", self._shown)

    def _write(self, file: IO[bytes], contents: Contents) -> None:
        strings = bytearray()
        offsets: dict[int, int] = {}

        def begin(section: int, size: int) -> None:
            offsets[section] = file.tell()
            file.write(_SECTION.pack(section, 0, len(strings), size))
            strings.extend(SECTION_NAMES[section] + b"\0")

        def section(number: int, body: bytes) -> None:
            begin(number, len(body))
            file.write(body)

        file.write(MAGIC + b"7\0" + bytes([0, 8]) + _U32.pack(self._page_size) + b"none\0\0")
        options_at = file.tell()
        file.write(_U64.pack(0))
        section(
            SECTION_HEADERS,
            b"header_page\0" + _lstr(contents.header_page) + b"header_event\0" + _lstr(contents.header_event),
        )
        section(
            SECTION_FTRACE_EVENTS,
            _U32.pack(len(contents.ftrace_formats)) + b"".join(map(_lstr, contents.ftrace_formats)),
        )
        section(SECTION_EVENT_FORMATS, _formats_body(contents.formats))
        section(SECTION_KALLSYMS, _U32.pack(len(contents.kallsyms)) + contents.kallsyms)
        section(SECTION_PRINTK, _U32.pack(len(contents.printk_formats)) + contents.printk_formats)
        section(SECTION_CMDLINES, _lstr(contents.cmdlines))

        padding = -(file.tell() + _SECTION.size) % self._page_size
        begin(SECTION_BUFFER, padding + sum(cpu.size for cpu in self._cpus))
        file.write(bytes(padding))
        extents: list[tuple[int, int]] = []
        for cpu in self._cpus:
            extents.append((file.tell(), cpu.size))
            _copy(cpu.file, file, cpu.size)

        section(SECTION_OPTIONS, self._options(contents, offsets, extents))
        begin(SECTION_STRINGS, len(strings) + len(SECTION_NAMES[SECTION_STRINGS]) + 1)
        file.write(strings)
        end = file.tell()
        file.seek(options_at)
        file.write(_U64.pack(offsets[SECTION_OPTIONS]))
        file.seek(end)

    def _options(
        self, contents: Contents, offsets: Mapping[int, int], extents: Sequence[tuple[int, int]]
    ) -> bytes:
        clock = clock_in_use(contents.trace_clock)
        buffer = _U64.pack(offsets[SECTION_BUFFER]) + b"\0" + clock.encode() + b"\0"
        buffer += _U32.pack(self._page_size) + _U32.pack(len(extents))
        for cpu, (offset, size) in enumerate(extents):
            buffer += _CPU_EXTENT.pack(cpu, offset, size)
        options = [
            (OPTION_TRACECLOCK, contents.trace_clock.rstrip(b"\n") + b"\0"),
            (OPTION_CPUCOUNT, _U32.pack(len(extents))),
        ]
        options += [
            (OPTION_CPUSTAT, b"CPU: %d\n" % cpu + text.rstrip(b"\n") + b"\n\0")
            for cpu, text in sorted(contents.cpu_stats.items())
        ]
        if contents.uname:
            options.append((OPTION_UNAME, contents.uname.encode() + b"\0"))
        if contents.version:
            options.append((OPTION_VERSION, contents.version.encode() + b"\0"))
        if contents.trace_id:
            options.append((OPTION_TRACEID, _U64.pack(contents.trace_id)))
        if contents.offset_ns is not None:
            options.append((OPTION_OFFSET, b"%d\0" % contents.offset_ns))
        options += [(number, _U64.pack(offset)) for number, offset in offsets.items() if number >= 16]
        options += [(OPTION_BUFFER, buffer), (OPTION_DONE, _U64.pack(0))]
        return b"".join(_OPTION.pack(number, len(data)) + data for number, data in options)


class _CpuFile:
    """The pages of one cpu, in a file without a name; the last page waits in memory for what may still fit on it."""

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
            self.flush()
            if full:
                self.file.write(page)
                self.size += len(page)
                return
            self._page = bytearray(page)
        self._last_ts = last_ts(page)

    def flush(self) -> None:
        if self._page is not None:
            self.file.write(self._page)
            self.size += len(self._page)
            self._page = None
        self.file.flush()


def _copy(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """`size` bytes from the beginning of one file to the end of another, inside the kernel where it can be done."""
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


def _lstr(text: bytes) -> bytes:
    return _U64.pack(len(text)) + text


def _formats_body(formats: Mapping[bytes, Sequence[bytes]]) -> bytes:
    body = [_U32.pack(len(formats))]
    for system, texts in formats.items():
        body += [system, b"\0", _U32.pack(len(texts)), *map(_lstr, texts)]
    return b"".join(body)


def clock_in_use(trace_clock: bytes) -> str:
    """`mono` of `local [mono] boot`; the text itself where nothing is in brackets."""
    _, bracket, rest = trace_clock.partition(b"[")
    name = rest.partition(b"]")[0] if bracket else trace_clock.strip()
    return name.decode("ascii", "replace")


# Reading.


@attrs.frozen
class Extent:
    """The pages of one cpu."""

    cpu: int
    offset: int
    """In the file."""
    size: int
    """Bytes."""


@attrs.frozen
class Buffer:
    """One instance's pages."""

    name: str
    """Empty for the top instance."""
    clock: str
    page_size: int
    extents: tuple[Extent, ...]


class BufferRecord(NamedTuple):
    """One record, of any cpu. A plain tuple, since there may be many millions."""

    ts: int
    """In units of the buffer's clock; TraceDatReader.offset_ns is not added yet."""
    cpu: int
    data: memoryview
    """The entry, and what pads it; a part of the mapped file. Copy what is to outlive the reader."""
    lost: int
    """Records of this cpu lost just before this one: a number, or -1 when nobody counted them."""
    buffer: Buffer


class TraceDatReader:
    """Reads a trace.dat; a context manager that unmaps the file.

    OSError when the file cannot be opened; TraceError(EINVAL) when it is no trace.dat, is broken, or is compressed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with open(path, "rb") as file:
            try:
                self._map: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (ValueError, OSError):  # empty, or a pipe
                self._map = file.read()
        self.version = 0
        self.page_size = SUBBUF_SIZE
        self.header_page = b""
        self.formats: dict[int, EventFormat] = {}
        """Event id to format, those of ftrace itself included."""
        self.systems: dict[int, str] = {}
        """Event id to system."""
        self.cmdlines: dict[int, str] = {}
        """Thread id to comm."""
        self.kallsyms: dict[int, str] = {}
        """Address to name."""
        self.buffers: list[Buffer] = []
        self.nr_cpus = 0
        self.trace_clock = b""
        self.offset_ns = 0
        """To be added to all time stamps."""
        self.cpu_stats: list[str] = []
        self.uname = ""
        self.producer = ""
        try:
            self._read()
        except (struct.error, IndexError, ValueError):
            self.close()
            raise TraceError(errno.EINVAL, f"{self._path}: trace.dat is cut off or broken") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Records that are still referred to keep the file mapped until they are gone."""
        if isinstance(self._map, mmap.mmap):
            with contextlib.suppress(BufferError):
                self._map.close()

    def comm(self, tid: int) -> str:
        """As trace-cmd says it: `<idle>` for 0, `<...>` for a stranger."""
        return self.cmdlines.get(tid) or ("<...>" if tid else "<idle>")

    def records(self, cpus: frozenset[int] | None = None) -> Iterator[BufferRecord]:
        """All records of all buffers, merged by time, equal times in the order of cpus. `cpus`: only those.

        ValueError at a broken page, after what came before it; in the order of time, others' records may be missing.
        """
        return heapq.merge(
            *(
                self._extent_records(buffer, extent)
                for buffer in self.buffers
                for extent in buffer.extents
                if cpus is None or extent.cpu in cpus
            ),
            key=lambda record: record[0],
        )

    def _extent_records(self, buffer: Buffer, extent: Extent) -> Iterator[BufferRecord]:
        cpu = extent.cpu
        view = memoryview(self._map)[extent.offset : extent.offset + extent.size]
        lost = 0
        for start in range(0, extent.size, buffer.page_size):
            page = view[start : start + buffer.page_size]
            missed = missed_events(page)
            lost = -1 if missed < 0 or lost < 0 else lost + missed
            try:
                for ts, offset, length in iter_records(page):
                    yield BufferRecord(ts, cpu, page[offset : offset + length], lost, buffer)
                    lost = 0
            except ValueError as error:
                raise ValueError(f"cpu {cpu}, page at {extent.offset + start}: {error}") from None

    def _read(self) -> None:
        file = _Cursor(self._map)
        if self._map[: len(MAGIC)] != MAGIC:
            raise TraceError(errno.EINVAL, f"{self._path}: is no trace.dat")
        file.take(len(MAGIC))
        version = file.string()
        if version not in (b"6", b"7"):
            raise TraceError(
                errno.EINVAL,
                f"{self._path}: trace.dat version {version.decode('ascii', 'replace')}; 6 and 7 can be read",
            )
        self.version = int(version)
        if file.take(1) != b"\0":
            raise TraceError(errno.EINVAL, f"{self._path}: was written on a big-endian machine")
        file.take(1)
        self.page_size = file.u32()
        _check_page_size(self.page_size)
        if self.version == 6:
            self._read_v6(file)
        else:
            self._read_v7(file)
        if not self.nr_cpus:
            self.nr_cpus = max((len(buffer.extents) for buffer in self.buffers), default=0)
        for buffer in self.buffers:
            for extent in buffer.extents:
                if extent.offset + extent.size > len(self._map) or extent.size % buffer.page_size:
                    raise TraceError(
                        errno.EINVAL,
                        f"{self._path}: cpu {extent.cpu} has {extent.size} bytes at {extent.offset} of a file of "
                        f"{len(self._map)}",
                    )

    # Version 7: sections, found through the options.

    def _read_v7(self, file: "_Cursor") -> None:
        compression = file.string()
        file.string()
        if compression not in (b"none", b""):
            name = compression.decode("ascii", "replace")
            raise TraceError(
                errno.EINVAL,
                f"{self._path}: is compressed ({name}); `trace-cmd convert --compression none` makes it readable",
            )
        options = self._options(file.u64())
        section_at = {
            number: _U64.unpack(data)[0] for number, data in options if SECTION_HEADERS <= number <= 21
        }
        for number, read in (
            (SECTION_HEADERS, self._headers),
            (SECTION_FTRACE_EVENTS, self._ftrace_formats),
            (SECTION_EVENT_FORMATS, self._event_formats),
            (SECTION_KALLSYMS, self._kallsyms),
            (SECTION_CMDLINES, self._cmdlines),
        ):
            if number in section_at:
                read(_Cursor(self._section(section_at[number], number)))
        for number, data in options:
            self._common_option(number, data)
            if number == OPTION_BUFFER:
                self._buffer_v7(_Cursor(data))

    def _section(self, offset: int, wanted: int) -> bytes:
        number, flags, _, size = _SECTION.unpack_from(self._map, offset)
        if number != wanted:
            raise TraceError(
                errno.EINVAL, f"{self._path}: section {number} at {offset}, where {wanted} should be"
            )
        if flags & _COMPRESSED:
            raise TraceError(errno.EINVAL, f"{self._path}: section {number} is compressed")
        start = offset + _SECTION.size
        if start + size > len(self._map):
            raise TraceError(errno.EINVAL, f"{self._path}: section {number} is cut off")
        return self._map[start : start + size]

    def _options(self, offset: int) -> list[tuple[int, bytes]]:
        """Options of all sections that are chained from this one on."""
        options: list[tuple[int, bytes]] = []
        seen: set[int] = set()
        while offset and offset not in seen:
            seen.add(offset)
            file = _Cursor(self._section(offset, SECTION_OPTIONS))
            offset = 0
            while file.left:
                number, size = _OPTION.unpack(file.take(_OPTION.size))
                data = file.take(size)
                if number == OPTION_DONE:
                    offset = _U64.unpack(data)[0] if size == _U64.size else 0
                    break
                options.append((number, data))
        return options

    def _buffer_v7(self, file: "_Cursor") -> None:
        file.u64()
        name = _text(file.string())
        clock = file.string().decode("ascii", "replace")
        page_size = file.u32()
        _check_page_size(page_size)
        count = file.u32()
        extents = [Extent(*_CPU_EXTENT.unpack(file.take(_CPU_EXTENT.size))) for _ in range(count)]
        self.buffers.append(Buffer(name, clock, page_size, tuple(extents)))

    # Version 6: one part after the other.

    def _read_v6(self, file: "_Cursor") -> None:
        self._headers(file)
        self._ftrace_formats(file)
        self._event_formats(file)
        self._kallsyms(file)
        file.take(file.u32())  # printk_formats
        self._cmdlines(file)
        nr_cpus = file.u32()
        if nr_cpus > _MAX_CPUS:
            raise ValueError("number of cpus")
        instances: list[tuple[int, str]] = []
        kind = file.take(10)
        if kind == b"options  \0":
            while number := _OPTION_ID.unpack(file.take(2))[0]:
                data = file.take(file.u32())
                self._common_option(number, data)
                if number == OPTION_BUFFER:
                    instance = _Cursor(data)
                    instances.append((instance.u64(), _text(instance.string())))
            kind = file.take(10)
        if kind != b"flyrecord\0":
            raise TraceError(errno.EINVAL, f"{self._path}: holds no recording of this kind ({kind!r})")
        self.buffers.append(self._buffer_v6(file, "", nr_cpus))
        for offset, name in instances:
            at = _Cursor(self._map, offset)
            if at.take(10) != b"flyrecord\0":
                raise ValueError("instance")
            self.buffers.append(self._buffer_v6(at, name, nr_cpus))

    def _buffer_v6(self, file: "_Cursor", name: str, nr_cpus: int) -> Buffer:
        extents = [Extent(cpu, *_EXTENT.unpack(file.take(_EXTENT.size))) for cpu in range(nr_cpus)]
        clock = file.lstr() if self.trace_clock else b"[local]"
        return Buffer(name, clock_in_use(clock), self.page_size, tuple(extents))

    # Parts that both versions have.

    def _headers(self, file: "_Cursor") -> None:
        if file.string() != b"header_page":
            raise ValueError("header_page")
        self.header_page = file.lstr()
        if file.string() != b"header_event":
            raise ValueError("header_event")
        file.lstr()

    def _ftrace_formats(self, file: "_Cursor") -> None:
        for _ in range(file.u32()):
            self._add_format("ftrace", file.lstr())

    def _event_formats(self, file: "_Cursor") -> None:
        for _ in range(file.u32()):
            system = _text(file.string())
            for _ in range(file.u32()):
                self._add_format(system, file.lstr())

    def _add_format(self, system: str, text: bytes) -> None:
        # One format that we cannot read makes its own records unreadable, not the file.
        with contextlib.suppress(TraceError):
            event = parse_format(text)
            self.formats[event.id] = event
            self.systems[event.id] = system

    def _kallsyms(self, file: "_Cursor") -> None:
        for line in file.take(file.u32()).splitlines():
            words = line.split(None, 2)
            if len(words) == 3:
                with contextlib.suppress(ValueError):
                    self.kallsyms[int(words[0], 16)] = _text(words[2].split(b"\t")[0])

    def _cmdlines(self, file: "_Cursor") -> None:
        for line in file.lstr().split(b"\n"):
            tid, _, comm = line.partition(b" ")
            if tid.lstrip(b"-").isdigit():
                self.cmdlines[int(tid)] = _text(comm)

    def _common_option(self, number: int, data: bytes) -> None:
        text = data.rstrip(b"\0")
        if number == OPTION_TRACECLOCK:
            self.trace_clock = text
        elif number == OPTION_UNAME:
            self.uname = _text(text)
        elif number == OPTION_OFFSET:
            self.offset_ns += int(text, 0)
        elif number == OPTION_CPUCOUNT:
            self.nr_cpus = _U32.unpack(data)[0]
        elif number == OPTION_VERSION:
            self.producer = _text(text)
        elif number == OPTION_CPUSTAT:
            self.cpu_stats.append(_text(text))


class _Cursor:
    """Takes a file's parts one after the other; struct.error where it ends too early."""

    def __init__(self, data: bytes | mmap.mmap, at: int = 0) -> None:
        self._data = data
        self._at = at

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise struct.error("ends too early")
        data = self._data[self._at : self._at + size]
        self._at += size
        return data

    def string(self) -> bytes:
        """Up to a NUL, which is taken too."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise struct.error("no NUL")
        data = self._data[self._at : end]
        self._at = end + 1
        return data

    def u32(self) -> int:
        value: int = _U32.unpack(self.take(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack(self.take(8))[0]
        return value

    def lstr(self) -> bytes:
        return self.take(self.u64())


def _check_page_size(size: int) -> None:
    if size < SUBBUF_HEADER_SIZE + 8 or size > 1 << 27:
        raise ValueError("page size")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
