"""Reads a trace.dat, version 6 or 7.

Nothing in a file is trusted: TraceError(EINVAL) says what is wrong with it and where.
"""

import contextlib
import copy
import errno
import mmap
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

import attrs

import utracefs.recordings.trace_dat.format as layout
from utracefs.recordings.origin import ClockPair, Origin
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs.recordings.trace_dat._pages import unknown_ids
from utracefs.recordings.trace_dat.compression import Compression, Packed, compression_of, unpacked
from utracefs.recordings.trace_dat.texts import Cursor, TraceTexts
from utracefs.tree.closing import Closing
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import SUBBUF_SIZE
from utracefs_protocol.pages.subbuf import last_ts
from utracefs_protocol.text import text_of

READ_BYTES: Final = 1 << 30
"""Up to this size a file is read into memory, which takes no longer than mapping it. A larger one is mapped,
so that it need not fit into memory: do not truncate it then."""

T = TypeVar("T")


class FileReader(TraceTexts, Closing):
    """The content of a file, and its texts; a context manager that unmaps the file.

    A file above read_bytes (None: READ_BYTES) is mapped. Bytes read at once never change later; truncating a
    mapped file would kill us by SIGBUS.
    """

    format: str
    clock: str
    clock_in_ns = True
    offset_ns = 0
    """Offset to add to all time stamps, which have 64 bits."""
    nr_cpus = 0
    """0: unknown."""
    cpu_stats: Sequence[str] = ()
    instances: Sequence[str] = ("",)
    """The names of the buffers."""
    origin = Origin()

    def __init__(self, path: str | os.PathLike[str], read_bytes: int | None) -> None:
        super().__init__()
        self._path = os.fspath(path)
        self.content: mmap.mmap | bytes = b""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > (READ_BYTES if read_bytes is None else read_bytes):
                with contextlib.suppress(ValueError, OSError):
                    self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.content = self.content or file.read()

    def _parse(self, what: str, read: Callable[[], None], advice: str = "") -> None:
        try:
            read()
        except (struct.error, IndexError, ValueError, OverflowError):
            self.close()
            raise self._error(f"{what} is cut off or broken{advice}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Records that are still referenced keep the file mapped."""
        if isinstance(self.content, mmap.mmap):
            with contextlib.suppress(BufferError):
                self.content.close()

    def _error(self, text: str) -> TraceError:
        return TraceError(errno.EINVAL, f"{self._path}: {text}")


class TraceDatReader(FileReader):
    """Reads a trace.dat; a context manager that unmaps the file.

    OSError when the file cannot be opened; TraceError(EINVAL) when it is not a trace.dat, is invalid, or is
    compressed in an unknown way.

    read_bytes: a file above this size is mapped, not read; so are the decompressed pages of one, from a
    temporary file. recover: read as much as possible of a truncated
    or invalid file. If the options are lost (they are at the end), the clock is assumed to be `mono`, and
    cpus are separated where times go back, and numbered in the order of the file.
    """

    format = "trace.dat"

    def __init__(
        self, path: str | os.PathLike[str], *, read_bytes: int | None = None, recover: bool = False
    ) -> None:
        super().__init__(path, read_bytes)
        self._read_bytes = READ_BYTES if read_bytes is None else read_bytes
        self._recover = recover
        self._compression: Compression | None = None
        self.version = 0
        self.page_size = SUBBUF_SIZE
        self.buffers: list[layout.Buffer] = []
        self.trace_clock = b""
        self.cpu_stats: list[str] = []
        self.uname = ""
        self.producer = ""
        self.notes: list[str] = []
        """With `recover`: what cannot be read, or may be missing."""
        self._parse("trace.dat", self._read, "" if recover else "; --recover may read a part of it")
        self.clock = self.buffers[0].clock if self.buffers else "mono"
        self.clock_in_ns = self.clock in layout.CLOCKS_IN_NS - {"uptime"} | {"boot"}
        self.instances = [buffer.name for buffer in self.buffers]

    def comm(self, tid: int) -> str:
        """In trace-cmd's words: `<idle>` for 0, `<...>` for a thread without a known name."""
        return self.cmdlines.get(tid) or ("<...>" if tid else "<idle>")

    def source(
        self,
        cpus: Collection[int] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        tgids: Mapping[int, int] | None = None,
    ) -> tuple[MergedPages, Callable[[], float]]:
        """A source of the records of all buffers, merged by time, equal times in the order of cpus, and a
        function that returns the part read. cpus: only those. Pages outside of the times are skipped; some
        records outside of them are not. tgids: thread id to process id, which the file does not have.

        ValueError at an invalid page, after all records before it on that cpu; records of other cpus may be
        missing.
        """
        since = None if since_ns is None else since_ns - self.offset_ns
        until = None if until_ns is None else until_ns - self.offset_ns
        source = MergedPages(
            self.content,
            [
                (number, extent.cpu, *self._between(extent, buffer.page_size, since, until), buffer.page_size)
                for number, buffer in enumerate(self.buffers)
                for extent in buffer.extents
                if cpus is None or extent.cpu in cpus
            ],
            offset_ns=self.offset_ns,
            tgids=tgids,
            recover=self._recover,
        )
        source.comms = self.cmdlines
        size = source.size_bytes
        return source, lambda: source.read_bytes / size if size else 1.0

    def last_ns(self) -> int:
        """Time of the last record, in times of the report; 0 without one, or if it cannot be read."""
        latest = -self.offset_ns
        for buffer in self.buffers:
            for extent in buffer.extents:
                if extent.size >= buffer.page_size:
                    at = extent.offset + extent.size - buffer.page_size
                    with contextlib.suppress(ValueError):
                        latest = max(latest, last_ts(self.content[at : at + buffer.page_size]))
        return (latest + self.offset_ns) % (1 << 64)

    def _between(
        self, extent: layout.Extent, page_size: int, since: int | None, until: int | None
    ) -> tuple[int, int]:
        """Offset and size of the pages that may have records of these times: pages are in time order, and
        begin with the time of their first records."""

        def first_after(time: int) -> int:
            return bisect_left(
                range(pages), time, key=lambda n: layout.U64.unpack_from(self.content, at + n * page_size)[0]
            )

        at, pages = extent.offset, extent.size // page_size
        first = 0 if since is None else max(first_after(since) - 1, 0)
        last = pages if until is None else max(first_after(until), first)
        return at + first * page_size, (last - first) * page_size

    def _read(self) -> None:
        file = Cursor(self.content)
        if self.content[: len(layout.MAGIC)] != layout.MAGIC:
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
        elif self._recover:
            begin = copy.copy(file)
            try:
                self._read_v7(file)
            except (struct.error, IndexError, ValueError, OverflowError, TraceError):
                TraceTexts.__init__(self)
                self.buffers.clear()
                self._recover_v7(begin)
        else:
            self._read_v7(file)
        if not self.nr_cpus:
            self.nr_cpus = max((len(buffer.extents) for buffer in self.buffers), default=0)
        if self._recover:
            self.buffers = [self._clipped(buffer) for buffer in self.buffers]
            self._note_unknown()
        for buffer in self.buffers:
            for extent in buffer.extents:
                if extent.offset + extent.size > len(self.content) or extent.size % buffer.page_size:
                    raise self._error(
                        f"cpu {extent.cpu} has {extent.size} bytes at {extent.offset} of a file of "
                        f"{len(self.content)}"
                    )
        self._check_total("pages", sum(extent.size for buffer in self.buffers for extent in buffer.extents))

    def _check_total(self, what: str, size: int) -> None:
        """Parts of a file have no byte in common: else a small one could have records without end, or fill
        memory."""
        if size > len(self.content):
            raise self._error(f"has {size} bytes of {what} in a file of {len(self.content)}")

    def _clipped(self, buffer: layout.Buffer) -> layout.Buffer:
        """Only the complete pages in the file."""
        size = len(self.content)
        extents = []
        for extent in buffer.extents:
            offset = min(extent.offset, size)
            there = min(extent.size, size - offset)
            extents.append(layout.Extent(extent.cpu, offset, there - there % buffer.page_size))
        return attrs.evolve(buffer, extents=tuple(extents))

    def _note_unknown(self) -> None:
        """Note the records of events without a format: a recorder that is killed may not have it yet."""
        unknown: Counter[int] = Counter()
        for buffer in self.buffers if self._compression is None else ():
            for extent in buffer.extents:
                pages = memoryview(self.content)[extent.offset : extent.offset + extent.size]
                unknown.update(unknown_ids(pages, buffer.page_size, self.formats))
        if unknown:
            ids = ", ".join(f"id {number} ({count})" for number, count in unknown.most_common(5))
            ids += f" and {len(unknown) - 5} more ids" * (len(unknown) > 5)
            self.notes.append(f"{self._path}: {unknown.total()} records of events without a format: {ids}")

    # Version 7: sections, found through the options.

    def _read_v7(self, file: Cursor) -> None:
        self._compression = self._compression_of(file.string())
        file.string()
        options_at = file.u64()
        if not options_at:
            raise self._error("was not finished: its writer was killed; --recover reads what it has")
        options = self._options(options_at)
        section_at = {
            layout.SECTIONS_BY_OPTION[number]: layout.U64.unpack(data)[0]
            for number, data in options
            if number in layout.SECTIONS_BY_OPTION
        }
        for section, take_in in self._text_sections().items():
            if section in section_at:
                take_in(Cursor(self._section(section_at[section], section)))
        self._take_options(options)
        buffers = _values(options, layout.OPTION_BUFFER)
        self.buffers += map(self._buffer_v7, buffers)
        if self._compression is not None:
            self._unpack([layout.U64.unpack_from(data)[0] for data in buffers], self._compression)

    def _compression_of(self, name: bytes) -> Compression | None:
        """None: not compressed. TraceError: it cannot be read."""
        if name in layout.COMPRESSIONS:
            return None
        shown = name.decode("ascii", "replace")
        try:
            found = compression_of(shown)
        except ImportError:
            hint = "pip install 'utracefs[zstd]'"
            raise self._error(f"is compressed ({shown}); {hint} makes it readable") from None
        if found is None:
            raise self._error(
                f"is compressed ({shown}); `trace-cmd convert --compression none` makes it readable"
            )
        return found

    def _unpack(self, sections_at: Sequence[int], compression: Compression) -> None:
        """Replace the file by its plain pages."""
        packed = sum(extent.size for buffer in self.buffers for extent in buffer.extents)
        self._check_total("compressed pages", packed)
        cpus: list[Packed] = []
        at = 0
        plain_buffers = []
        for buffer, section_at in zip(self.buffers, sections_at, strict=True):
            _, flags, _, _ = layout.SECTION_HEADER.unpack_from(self.content, section_at)
            if not flags & layout.SECTION_COMPRESSED:
                raise self._error("has plain records in a compressed file")
            extents = []
            for extent in buffer.extents:
                cpus.append(Packed(self.content, extent, buffer.page_size))
                extents.append(layout.Extent(extent.cpu, at, cpus[-1].size))
                at += cpus[-1].size
            plain_buffers.append(attrs.evolve(buffer, extents=tuple(extents)))
        plain = unpacked(compression, cpus, file_size=len(self.content), memory_bytes=self._read_bytes)
        self.close()
        self.content = plain
        self.buffers = plain_buffers

    def _text_sections(self) -> Mapping[layout.Section, Callable[[Cursor], None]]:
        return {
            layout.HEADERS: self.read_headers,
            layout.FTRACE_EVENTS: self.read_ftrace_formats,
            layout.EVENT_FORMATS: self.read_event_formats,
            layout.KALLSYMS: self.read_kallsyms,
            layout.CMDLINES: self.read_cmdlines,
        }

    def _recover_v7(self, file: Cursor) -> None:
        """Read consecutive sections in the order of the file, as far as possible. A NAME.part has its options
        at the beginning; those of other files are lost."""
        if file.string() not in layout.COMPRESSIONS:
            raise self._error("is compressed; nothing can be recovered from it")
        file.string()
        if not file.u64():
            text = "was not finished: records and losses of its last second may be missing"
            self.notes.append(f"{self._path}: {text}")
        read = {section.id: take_in for section, take_in in self._text_sections().items()}
        pages: list[layout.Extent] = []
        while file.left >= layout.SECTION_HEADER.size:
            header = file.take(layout.SECTION_HEADER.size)
            if not any(header):  # killed before it took out this hole
                file.at = self._next_data(file.at)
                continue
            number, _, _, size = layout.SECTION_HEADER.unpack(header)
            at, size = file.at, min(size, file.left)
            if number == layout.PAGES.id and size > layout.U32.size:
                pages.append(self._written_extent(at, at + size))
            elif number == layout.OPTIONS.id:
                with contextlib.suppress(struct.error, ValueError, OverflowError):
                    self._take_options(_options_in(Cursor(self.content[at : at + size]))[0])
            elif number == layout.BUFFER.id and size:
                padding = min(-at % self.page_size, size)
                self.buffers.append(
                    layout.Buffer("", "mono", self.page_size, self._found_extents(at + padding, at + size))
                )
            elif number in read:
                with contextlib.suppress(struct.error, ValueError, OverflowError):
                    read[number](Cursor(self.content[at : at + size]))
            file.at += size
        if pages:
            clock = layout.clock_in_use(self.trace_clock) or "mono"
            self.buffers.append(layout.Buffer("", clock, self.page_size, tuple(pages)))
            self.nr_cpus = max(self.nr_cpus, 1 + max(extent.cpu for extent in pages))
        if not self.formats:
            raise self._error("has no formats of events: nothing can be recovered from it")

    def _next_data(self, at: int) -> int:
        """The end of a hole."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            return os.lseek(file.fileno(), at, os.SEEK_DATA)
        return len(self.content)

    def _written_extent(self, begin: int, end: int) -> layout.Extent:
        """Extent of a section PAGES, without the unwritten pages."""
        (cpu,) = layout.U32.unpack_from(self.content, begin)
        begin += layout.U32.size
        first = min(begin + -begin % self.page_size, end)
        last = end - (end - first) % self.page_size
        written = bisect_left(
            range(first, last, self.page_size),
            True,
            key=lambda at: not any(self.content[at : at + self.page_size]),
        )
        return layout.Extent(min(cpu, layout.MAX_CPUS - 1), first, written * self.page_size)

    def _found_extents(self, begin: int, end: int) -> tuple[layout.Extent, ...]:
        """The pages from `begin` on; where the time goes back a new cpu begins."""
        extents: list[layout.Extent] = []
        first, before = begin, 0
        for at in range(begin, end - self.page_size + 1, self.page_size):
            ts = layout.U64.unpack_from(self.content, at)[0]
            if ts < before:
                extents.append(layout.Extent(len(extents), first, at - first))
                first = at
            before = ts
        whole = (end - first) // self.page_size * self.page_size
        return (*extents, layout.Extent(len(extents), first, whole))

    def _section(self, offset: int, wanted: layout.Section) -> bytes:
        number, flags, _, size = layout.SECTION_HEADER.unpack_from(self.content, offset)
        if number != wanted.id:
            raise self._error(f"section {number} at {offset}, where {wanted.id} should be")
        start = offset + layout.SECTION_HEADER.size
        if start + size > len(self.content):
            raise self._error(f"section {number} is cut off")
        data = self.content[start : start + size]
        if not flags & layout.SECTION_COMPRESSED:
            return data
        if self._compression is None:
            raise self._error(f"section {number} is compressed")
        chunk = Cursor(data)
        packed, plain = layout.CHUNK.unpack(chunk.take(layout.CHUNK.size))
        return self._compression.unpack(chunk.take(packed), plain)

    def _options(self, offset: int) -> list[tuple[int, bytes]]:
        """(id, data) of each option, in all sections chained from this one."""
        options: list[tuple[int, bytes]] = []
        seen: set[int] = set()
        size = 0
        while offset and offset not in seen:
            seen.add(offset)
            section = self._section(offset, layout.OPTIONS)
            size += layout.SECTION_HEADER.unpack_from(self.content, offset)[3]
            self._check_total("options", size)
            found, offset = _options_in(Cursor(section))
            options += found
        return options

    @staticmethod
    def _buffer_v7(data: bytes) -> layout.Buffer:
        option = Cursor(data)
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

    def _read_v6(self, file: Cursor) -> None:
        self.read_headers(file)
        self.read_ftrace_formats(file)
        self.read_event_formats(file)
        self.read_kallsyms(file)
        file.take(file.u32())  # printk
        self.read_cmdlines(file)
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
        instances = _values(options, layout.OPTION_BUFFER)
        self._check_total("places of cpus", (1 + len(instances)) * nr_cpus * layout.EXTENT.size)
        for option in map(Cursor, instances):
            instance = Cursor(self.content, option.u64())
            name = text_of(option.string())
            if instance.take(layout.KIND_SIZE) != layout.KIND_FLYRECORD:
                raise ValueError("instance")
            self.buffers.append(self._buffer_v6(instance, name, nr_cpus))

    def _buffer_v6(self, file: Cursor, name: str, nr_cpus: int) -> layout.Buffer:
        extents = [
            layout.Extent(cpu, *layout.EXTENT.unpack(file.take(layout.EXTENT.size))) for cpu in range(nr_cpus)
        ]
        clock = file.lstr() if self.trace_clock else b"[local]"
        return layout.Buffer(name, layout.clock_in_use(clock), self.page_size, tuple(extents))

    def _take_options(self, options: Sequence[tuple[int, bytes]]) -> None:
        """Parse the options of both versions; of several the last one counts."""
        self.trace_clock = _last(options, layout.OPTION_TRACECLOCK, b"")
        self.uname = text_of(_last(options, layout.OPTION_UNAME, b""))
        dates = _values(options, layout.OPTION_DATE)
        offset_ns = sum(_values(options, layout.OPTION_OFFSET)) + 1000 * sum(dates)
        self.offset_ns = (offset_ns + (1 << 63)) % (1 << 64) - (1 << 63)
        self.nr_cpus = _last(options, layout.OPTION_CPUCOUNT, 0)
        self.producer = text_of(_last(options, layout.OPTION_VERSION, b""))
        self.cpu_stats = [text_of(text) for text in _values(options, layout.OPTION_CPUSTAT)]
        origins = [origin for text in self.cpu_stats if (origin := Origin.of_lines(text)) is not None]
        day = (ClockPair(-self.offset_ns, 0),) if dates else ()
        self.origin = origins[-1] if origins else Origin("".join(self.uname.split(" ")[1:2]), clocks=day)


def _options_in(file: Cursor) -> tuple[list[tuple[int, bytes]], int]:
    """(id, data) of each option of a section, and the offset of the next section; 0: there is none."""
    options: list[tuple[int, bytes]] = []
    while file.left:
        number, size = layout.OPTION_HEADER.unpack(file.take(layout.OPTION_HEADER.size))
        data = file.take(size)
        if number == layout.OPTION_DONE.id:
            return options, layout.OPTION_DONE.type.decode(data) if size == layout.U64.size else 0
        options.append((number, data))
    return options, 0


def _values(options: Sequence[tuple[int, bytes]], wanted: layout.Option[T]) -> list[T]:
    return [wanted.type.decode(data) for number, data in options if number == wanted.id]


def _last(options: Sequence[tuple[int, bytes]], wanted: layout.Option[T], default: T) -> T:
    return next(reversed(_values(options, wanted)), default)
