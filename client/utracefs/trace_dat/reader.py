"""Reads a trace.dat, version 6 or 7.

Nothing in a file is trusted: TraceError(EINVAL) says what is wrong with it and where.
"""

import contextlib
import errno
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import BinaryIO, Final, NamedTuple, Self, TypeVar

import utracefs.trace_dat.format as layout
from utracefs.trace_dat._merge import Merge
from utracefs_protocol.errors import TraceError
from utracefs_protocol.event_format import EventFormat, parse_format
from utracefs_protocol.limits import SUBBUF_SIZE
from utracefs_protocol.text import text_of

__all__ = ["BufferRecord", "TraceDatReader"]

READ_BYTES: Final = 1 << 30
"""Up to this size a file is read into memory, which takes no longer than mapping it. A larger one is mapped,
so that it need not fit: nobody may make it shorter then."""

T = TypeVar("T")


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
        value: int = layout.U32.unpack(self.take(layout.U32.size))[0]
        return value

    def u64(self) -> int:
        value: int = layout.U64.unpack(self.take(layout.U64.size))[0]
        return value

    def lstr(self) -> bytes:
        return self.take(self.u64())


def _contents(file: BinaryIO) -> mmap.mmap | bytes:
    """All of a file. What is read at once stays as it is, whatever somebody does to the file meanwhile; a map
    would end us by SIGBUS where he makes it shorter."""
    if os.fstat(file.fileno()).st_size > READ_BYTES:
        with contextlib.suppress(ValueError, OSError):
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return file.read()


class BufferRecord(NamedTuple):
    """One record, of any cpu. A plain tuple, since there may be many millions."""

    ts: int
    """In units of the buffer's clock; TraceDatReader.offset_ns is not added yet."""
    cpu: int
    data: memoryview
    """The entry, and what pads it; a part of the mapped file. Copy what is to outlive the reader."""
    lost: int
    """Records of this cpu lost just before this one: a number, or -1 when they were not counted."""
    buffer: layout.Buffer


class TraceDatReader:
    """Reads a trace.dat; a context manager that unmaps the file.

    OSError when the file cannot be opened; TraceError(EINVAL) when it is not a trace.dat, is broken, or is
    compressed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        with open(path, "rb") as file:
            self._map: mmap.mmap | bytes = _contents(file)
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
        self.buffers: list[layout.Buffer] = []
        self.nr_cpus = 0
        self.trace_clock = b""
        self.offset_ns = 0
        """To be added to all time stamps."""
        self.cpu_stats: list[str] = []
        self.uname = ""
        self.producer = ""
        try:
            self._read()
        except (struct.error, IndexError, ValueError, OverflowError):
            self.close()
            raise self._error("trace.dat is cut off or broken") from None
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
        """As trace-cmd says it: `<idle>` for 0, `<...>` for a thread whose name is not known."""
        return self.cmdlines.get(tid) or ("<...>" if tid else "<idle>")

    def records(self, cpus: frozenset[int] | None = None) -> Iterator[BufferRecord]:
        """All records of all buffers, merged by time, equal times in the order of cpus. `cpus`: only those.

        ValueError at a broken page, after what came before it on that cpu; records of other cpus may be
        missing.
        """
        view = memoryview(self._map)
        for ts, cpu, start, size, lost, buffer in self.merge(cpus):
            yield BufferRecord(ts, cpu, view[start : start + size], lost, self.buffers[buffer])

    def merge(self, cpus: frozenset[int] | None = None) -> Merge:
        """The same for compiled readers; `buffer` is the place of one in `buffers`."""
        return Merge(
            self._map,
            [
                (number, extent.cpu, extent.offset, extent.size, buffer.page_size)
                for number, buffer in enumerate(self.buffers)
                for extent in buffer.extents
                if cpus is None or extent.cpu in cpus
            ],
        )

    def _error(self, text: str) -> TraceError:
        return TraceError(errno.EINVAL, f"{self._path}: {text}")

    def _read(self) -> None:
        file = _Cursor(self._map)
        if self._map[: len(layout.MAGIC)] != layout.MAGIC:
            raise self._error("is not a trace.dat")
        file.take(len(layout.MAGIC))
        version = file.string()
        if version not in layout.VERSIONS:
            raise self._error(f"trace.dat version {version.decode('ascii', 'replace')}; 6 and 7 can be read")
        self.version = layout.VERSIONS[version]
        if file.take(len(layout.LITTLE_ENDIAN)) != layout.LITTLE_ENDIAN:
            raise self._error("was written on a big-endian machine")
        file.take(len(layout.LONG_SIZE))
        self.page_size = file.u32()
        layout.check_page_size(self.page_size)
        if self.version == 6:
            self._read_v6(file)
        else:
            self._read_v7(file)
        if not self.nr_cpus:
            self.nr_cpus = max((len(buffer.extents) for buffer in self.buffers), default=0)
        for buffer in self.buffers:
            for extent in buffer.extents:
                if extent.offset + extent.size > len(self._map) or extent.size % buffer.page_size:
                    raise self._error(
                        f"cpu {extent.cpu} has {extent.size} bytes at {extent.offset} of a file of "
                        f"{len(self._map)}"
                    )

    # Version 7: sections, found through the options.

    def _read_v7(self, file: _Cursor) -> None:
        compression = file.string()
        file.string()
        if compression not in layout.COMPRESSIONS:
            name = compression.decode("ascii", "replace")
            raise self._error(
                f"is compressed ({name}); `trace-cmd convert --compression none` makes it readable"
            )
        options = self._options(file.u64())
        section_at = {
            layout.SECTIONS_BY_OPTION[number]: layout.U64.unpack(data)[0]
            for number, data in options
            if number in layout.SECTIONS_BY_OPTION
        }
        read: Mapping[layout.Section, Callable[[_Cursor], None]] = {
            layout.HEADERS: self._headers,
            layout.FTRACE_EVENTS: self._ftrace_formats,
            layout.EVENT_FORMATS: self._event_formats,
            layout.KALLSYMS: self._kallsyms,
            layout.CMDLINES: self._cmdlines,
        }
        for section, take_in in read.items():
            if section in section_at:
                take_in(_Cursor(self._section(section_at[section], section)))
        self._take_options(options)
        self.buffers += map(self._buffer_v7, _values(options, layout.OPTION_BUFFER))

    def _section(self, offset: int, wanted: layout.Section) -> bytes:
        number, flags, _, size = layout.SECTION_HEADER.unpack_from(self._map, offset)
        if number != wanted.id:
            raise self._error(f"section {number} at {offset}, where {wanted.id} should be")
        if flags & layout.SECTION_COMPRESSED:
            raise self._error(f"section {number} is compressed")
        start = offset + layout.SECTION_HEADER.size
        if start + size > len(self._map):
            raise self._error(f"section {number} is cut off")
        return self._map[start : start + size]

    def _options(self, offset: int) -> list[tuple[int, bytes]]:
        """(id, data) of each option, of all sections that are chained from this one on."""
        options: list[tuple[int, bytes]] = []
        seen: set[int] = set()
        while offset and offset not in seen:
            seen.add(offset)
            file = _Cursor(self._section(offset, layout.OPTIONS))
            offset = 0
            while file.left:
                number, size = layout.OPTION_HEADER.unpack(file.take(layout.OPTION_HEADER.size))
                data = file.take(size)
                if number == layout.OPTION_DONE.id:
                    offset = layout.OPTION_DONE.type.decode(data) if size == layout.U64.size else 0
                    break
                options.append((number, data))
        return options

    @staticmethod
    def _buffer_v7(data: bytes) -> layout.Buffer:
        option = _Cursor(data)
        option.u64()
        name = text_of(option.string())
        clock = option.string().decode("ascii", "replace")
        page_size = option.u32()
        layout.check_page_size(page_size)
        extents = [
            layout.Extent(*layout.CPU_EXTENT.unpack(option.take(layout.CPU_EXTENT.size)))
            for _ in range(option.u32())
        ]
        return layout.Buffer(name, clock, page_size, tuple(extents))

    # Version 6: one part after the other.

    def _read_v6(self, file: _Cursor) -> None:
        self._headers(file)
        self._ftrace_formats(file)
        self._event_formats(file)
        self._kallsyms(file)
        file.take(file.u32())  # printk
        self._cmdlines(file)
        nr_cpus = file.u32()
        if nr_cpus > layout.MAX_CPUS:
            raise ValueError("number of cpus")
        options: list[tuple[int, bytes]] = []
        kind = file.take(layout.KIND_SIZE)
        if kind == layout.KIND_OPTIONS:
            while number := layout.OPTION_ID.unpack(file.take(layout.OPTION_ID.size))[0]:
                options.append((number, file.take(file.u32())))
            kind = file.take(layout.KIND_SIZE)
        self._take_options(options)
        if kind != layout.KIND_FLYRECORD:
            raise self._error(f"holds no recording of this kind ({kind!r})")
        self.buffers.append(self._buffer_v6(file, "", nr_cpus))
        for option in map(_Cursor, _values(options, layout.OPTION_BUFFER)):
            instance = _Cursor(self._map, option.u64())
            name = text_of(option.string())
            if instance.take(layout.KIND_SIZE) != layout.KIND_FLYRECORD:
                raise ValueError("instance")
            self.buffers.append(self._buffer_v6(instance, name, nr_cpus))

    def _buffer_v6(self, file: _Cursor, name: str, nr_cpus: int) -> layout.Buffer:
        extents = [
            layout.Extent(cpu, *layout.EXTENT.unpack(file.take(layout.EXTENT.size))) for cpu in range(nr_cpus)
        ]
        clock = file.lstr() if self.trace_clock else b"[local]"
        return layout.Buffer(name, layout.clock_in_use(clock), self.page_size, tuple(extents))

    # Parts that both versions have.

    def _headers(self, file: _Cursor) -> None:
        if file.string() != b"header_page":
            raise ValueError("header_page")
        self.header_page = file.lstr()
        if file.string() != b"header_event":
            raise ValueError("header_event")
        file.lstr()

    def _ftrace_formats(self, file: _Cursor) -> None:
        for _ in range(file.u32()):
            self._add_format("ftrace", file.lstr())

    def _event_formats(self, file: _Cursor) -> None:
        for _ in range(file.u32()):
            system = text_of(file.string())
            for _ in range(file.u32()):
                self._add_format(system, file.lstr())

    def _add_format(self, system: str, text: bytes) -> None:
        # One format that we cannot read makes its own records unreadable, not the file.
        with contextlib.suppress(TraceError):
            event = parse_format(text)
            self.formats[event.id] = event
            self.systems[event.id] = system

    def _kallsyms(self, file: _Cursor) -> None:
        for line in file.take(file.u32()).splitlines():
            words = line.split(None, 2)
            if len(words) == 3:
                with contextlib.suppress(ValueError):
                    self.kallsyms[int(words[0], 16)] = text_of(words[2].split(b"\t")[0])

    def _cmdlines(self, file: _Cursor) -> None:
        for line in file.lstr().split(b"\n"):
            tid, _, comm = line.partition(b" ")
            if tid.lstrip(b"-").isdigit():
                self.cmdlines[int(tid)] = text_of(comm)

    def _take_options(self, options: Sequence[tuple[int, bytes]]) -> None:
        """What both versions say in options; of several the last one counts."""
        self.trace_clock = _last(options, layout.OPTION_TRACECLOCK, b"")
        self.uname = text_of(_last(options, layout.OPTION_UNAME, b""))
        self.offset_ns = sum(_values(options, layout.OPTION_OFFSET))
        self.nr_cpus = _last(options, layout.OPTION_CPUCOUNT, 0)
        self.producer = text_of(_last(options, layout.OPTION_VERSION, b""))
        self.cpu_stats = [text_of(text) for text in _values(options, layout.OPTION_CPUSTAT)]


def _values(options: Sequence[tuple[int, bytes]], wanted: layout.Option[T]) -> list[T]:
    return [wanted.type.decode(data) for number, data in options if number == wanted.id]


def _last(options: Sequence[tuple[int, bytes]], wanted: layout.Option[T], default: T) -> T:
    return next(reversed(_values(options, wanted)), default)
