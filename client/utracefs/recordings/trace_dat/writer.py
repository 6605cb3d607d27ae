"""Writes a trace.dat, version 7.

While a recording runs all of it is in NAME.part (`part`), which `--recover` reads after a kill. `finish`
completes it where the file system allows, else writes the file beside it; then it is renamed. Space for all
but the pages is reserved from the beginning; the pages are moved. On a full disk pages without space are lost
and counted.

NAME.part is never compressed, so a kill costs nothing: `finish` compresses a step of pages at a time. If the
disk has no space for both files, the file is written uncompressed.

A recorder that reads often gets pages with few records. They are joined: the records of a short page are
appended to those of the page before it, with a time extend between them.
"""

import contextlib
import functools
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, BinaryIO, Final

import attrs

import utracefs.recordings.trace_dat.format as layout
from utracefs.recordings.origin import Origin
from utracefs.recordings.partial_files import NO_ROOM, Reserve, errors_about, name_beside, target_of
from utracefs.recordings.trace_dat.compression import Compression
from utracefs.recordings.trace_dat.part import STEP, Part
from utracefs.tree.closing import Closing
from utracefs_protocol.limits import SUBBUF_SIZE
from utracefs_protocol.text import bytes_of

__all__ = ["Contents", "TraceDatWriter"]

_RESERVE: Final = 2 * STEP
"""Bytes reserved for the end of a file besides its texts: a step of moving, the options, and formats that
appear when the disk is full already."""


@attrs.frozen(kw_only=True)
class Contents:
    """The content of a trace.dat besides the pages. Texts are the tracefs files of that name, whole."""

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
    event_stats: Callable[[int], bytes] | None = None
    """Returns the account of all events' records; lines like `cpu_stats`. It gets the number of records
    without space in the file."""
    uname: str = ""
    version: str = ""
    trace_id: int = 0
    """An arbitrary number that identifies a recording; 0 leaves it out."""
    origin: Origin | None = None
    """Its origin; None: unknown."""
    offset_ns: int | None = None
    """Added to all time stamps on reading, for wall-clock times."""


class TraceDatWriter(Closing):
    """Writes one trace.dat: `add_page` and `add_texts` while recording, then `finish`. A context manager:
    leaving it without `finish` or `leave` removes the file.

    OSError from the file system, with the path: the folder is missing or not writable, the disk is full at
    the beginning; IsADirectoryError; and EINVAL when `path` is not a regular file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        nr_cpus: int,
        page_size: int = SUBBUF_SIZE,
        compression: Compression | None = None,
    ) -> None:
        self._shown = os.fspath(path)
        self.path: Final = target_of(self._shown)
        self._compression = compression
        self._page_size = page_size
        self._nr_cpus = nr_cpus
        with errors_about(self._shown):
            self._reserve = Reserve(os.path.dirname(self.path), _RESERVE)
            try:
                step = self._reserve.size // (_RESERVE // STEP)
                self.part = Part(self.path, nr_cpus=nr_cpus, page_size=page_size, step=step)
            except BaseException:
                self._reserve.free()
                raise
        self._noted: set[tuple[bytes, bytes]] = set()
        """Texts already in NAME.part."""
        self._text_bytes = 0
        """Bytes of them."""

    @property
    def given_up(self) -> int:
        """Records of events lost because the disk was full. After `finish` the number is final."""
        return self.part.given_up

    @property
    def size(self) -> int:
        """Bytes of the file so far, before compression."""
        return self.part.size + self._text_bytes

    @property
    def error(self) -> OSError | None:
        """The error of the lost records."""
        return self.part.error

    def close(self) -> None:
        """Remove an unfinished file."""
        self._reserve.free()
        self.part.remove()

    def leave(self) -> str:
        """Keep NAME.part unchanged; returns its name."""
        self._reserve.free()
        self.part.sync(is_end=True)
        self.part.leave()
        return self.part.name

    def add_page(self, cpu: int, page: bytes) -> None:
        """Add a cpu's next sub-buffer, as read from `trace_pipe_raw`."""
        if len(page) != self._page_size:
            raise ValueError(f"page of {len(page)} bytes; this file's have {self._page_size}")
        with errors_about(self._shown):
            self.part.add_page(cpu, page)

    def add_pages(self, cpu: int, pages: memoryview, *, is_direct: bool = False) -> None:
        """Add a cpu's next sub-buffers, which are not joined with others. is_direct: past the page cache, if
        the file system can do that; their address is a multiple of a page's size then."""
        with errors_about(self._shown):
            self.part.add_pages(cpu, pages, is_direct=is_direct)

    def sync(self) -> None:
        """Write the collected pages."""
        with errors_about(self._shown):
            self.part.sync()

    def add_texts(self, contents: Contents) -> None:
        """Write the present texts, for a reader of NAME.part; `finish` gets all of them again. Also writes
        the collected pages."""
        with errors_about(self._shown):
            for key, make in _texts(contents, self._nr_cpus, self._page_size, self.given_up):
                if key not in self._noted:
                    text = make()
                    if not self.part.add_text(text):
                        break
                    self._noted.add(key)
                    self._text_bytes += len(text)
            with contextlib.suppress(OSError):  # then less is guaranteed
                self._reserve.grow(_RESERVE + self._text_bytes)
            self.part.sync()

    def finish(self, contents: Contents, name: Callable[[], str] | None = None) -> int:
        """Write the file and rename it; returns its size in bytes. After an OSError the recording is in
        NAME.part, and in NAME.part.end if that exists. name: returns another path for it, at the end."""
        try:
            self.part.sync(is_end=True)
            self._reserve.free()
            temporary = f"{self.part.name}.end"
            if os.path.lexists(temporary):  # also from a killed recorder
                temporary = name_beside(self.path)
            size = self._finish_compressed(temporary, contents)
            if size is None and (size := self._finish_in_place(contents)) is not None:
                temporary = self.part.name
            while size is None:
                size = self._finish(temporary, contents)
            os.rename(temporary, self.path if name is None else name())
        except OSError as error:
            self.part.leave()
            reason = f"{error.strerror}; {self.part.name} has the records until then, for --recover"
            raise OSError(error.errno, reason, self._shown) from None
        if temporary == self.part.name:
            self.part.leave()
        else:
            self.part.remove()
        return size

    def _finish_in_place(self, contents: Contents) -> int | None:
        """Write the rest behind the pages; returns the size. None: they are not in one piece, or there is no
        space."""
        found = self.part.places()
        if found is None:
            return None
        places, end = found
        rest = io.BytesIO()
        _, options_at = self._add_sections(_Sections(rest, None, end), contents, lambda: places)
        before = self.part.error
        if not self.part.add_text(rest.getvalue()):
            self.part.error = before
            return None
        self.part.squeeze(_head(self._page_size, options_at))
        return end + len(rest.getvalue())

    def _finish_compressed(self, temporary: str, contents: Contents) -> int | None:
        """Its size; None: it is not to be compressed, or has no space for that."""
        if self._compression is None:
            return None
        try:
            with open(temporary, "xb") as file:
                return self._write(file, contents, self._compression)[1]
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                return None
            raise

    def _finish(self, temporary: str, contents: Contents) -> int | None:
        """Its size; None: no space, which may have been freed now."""
        try:
            with open(temporary, "xb") as file:
                offsets, size = self._write(file, contents)
                file.flush()
                self.part.move(file, offsets)
        except BaseException as error:
            if not self.part.is_moved:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                if isinstance(error, OSError) and error.errno in NO_ROOM and self.part.give_up_last():
                    return None
            raise
        return size

    def _write(
        self, file: BinaryIO, contents: Contents, compression: Compression | None = None
    ) -> tuple[list[int], int]:
        """Write all, without compression all but the pages; returns the offsets of each cpu's pages, and the
        size of the file."""
        file.write(_head(self._page_size, 0, compression))
        sections = _Sections(file, compression)
        extents, options_at = self._add_sections(
            sections,
            contents,
            lambda: self._compress(sections, file) if compression else self._make_room(sections, file),
        )
        end = file.tell()
        file.seek(0)
        file.write(_head(self._page_size, options_at, compression))
        return [extent.offset for extent in extents], end

    def _add_sections(
        self, sections: "_Sections", contents: Contents, add_pages: Callable[[], list[layout.Extent]]
    ) -> tuple[list[layout.Extent], int]:
        """Add all; returns the places of each cpu's pages, and the offset of the options. add_pages: begins
        the section of the pages, unless they are in sections of NAME.part."""
        for section, body in bodies(contents):
            sections.add(section, body)
        extents = add_pages()
        if layout.BUFFER not in sections.offsets:
            sections.begin(layout.BUFFER, 0)
        options = _options(contents, self._nr_cpus, self.part.given_up)
        options += [
            layout.section_option(section).pack(offset)
            for section, offset in sections.offsets.items()
            if section.by_option
        ]
        buffer = self._buffer(contents, sections.offsets[layout.BUFFER], extents)
        options.append(layout.OPTION_BUFFER.pack(buffer))
        sections.add(layout.OPTIONS, _pack_options(options))
        sections.end()
        return extents, sections.offsets[layout.OPTIONS]

    def _make_room(self, sections: "_Sections", file: BinaryIO) -> list[layout.Extent]:
        """Begin the section of the pages and skip it."""
        sizes = self.part.sizes
        padding = -(file.tell() + layout.SECTION_HEADER.size) % self._page_size
        sections.begin(layout.BUFFER, padding + sum(sizes))
        at = file.tell() + padding
        extents = []
        for cpu, size in enumerate(sizes):
            extents.append(layout.Extent(cpu, at, size))
            at += size
        file.seek(at)
        return extents

    def _compress(self, sections: "_Sections", file: BinaryIO) -> list[layout.Extent]:
        """Write the section of the pages. Sizes in front are written at the end."""
        assert self._compression is not None
        sections.begin(layout.BUFFER, 0, is_compressed=True)
        begin = file.tell()
        extents = []
        for cpu in range(self._nr_cpus):
            at, count = file.tell(), 0
            file.write(layout.U32.pack(0))
            for pages in self.part.pages_of(cpu):
                file.write(self._compression.packed(pages))
                count += 1
            end = file.tell()
            _patch(file, at, layout.U32.pack(count))
            extents.append(layout.Extent(cpu, at, end - at - layout.U32.size))
        _patch(file, begin - layout.U64.size, layout.U64.pack(file.tell() - begin))
        return extents

    def _buffer(self, contents: Contents, section_at: int, extents: Sequence[layout.Extent]) -> bytes:
        """Data of OPTION_BUFFER."""
        clock = layout.clock_in_use(contents.trace_clock)
        buffer = layout.U64.pack(section_at) + b"\0" + clock.encode() + b"\0"
        buffer += layout.U32.pack(self._page_size) + layout.U32.pack(len(extents))
        return buffer + b"".join(layout.CPU_EXTENT.pack(one.cpu, one.offset, one.size) for one in extents)


def _patch(file: BinaryIO, at: int, data: bytes) -> None:
    """Overwrite, and return to the end."""
    file.seek(at)
    file.write(data)
    file.seek(0, os.SEEK_END)


def _head(page_size: int, options_at: int, compression: Compression | None = None) -> bytes:
    return (
        layout.MAGIC
        + b"7\0"
        + layout.LITTLE_ENDIAN
        + layout.LONG_SIZE
        + layout.U32.pack(page_size)
        + (b"%b\0%b\0" % ((layout.COMPRESSIONS[0], b"") if compression is None else compression.strings))
        + layout.U64.pack(options_at)
    )


def _options(contents: Contents, nr_cpus: int, given_up: int) -> list[tuple[int, bytes]]:
    """(id, data) of each option that is not an offset. given_up: lost records."""
    options = [
        layout.OPTION_TRACECLOCK.pack(contents.trace_clock.rstrip(b"\n")),
        layout.OPTION_CPUCOUNT.pack(nr_cpus),
    ]
    options += [
        layout.OPTION_CPUSTAT.pack(b"CPU: %d\n" % cpu + text.rstrip(b"\n") + b"\n")
        for cpu, text in sorted(contents.cpu_stats.items())
    ]
    if contents.event_stats is not None:
        options.append(layout.OPTION_CPUSTAT.pack(contents.event_stats(given_up)))
    if contents.origin is not None:
        options.append(layout.OPTION_CPUSTAT.pack(bytes_of(contents.origin.lines())))
    if contents.uname:
        options.append(layout.OPTION_UNAME.pack(contents.uname.encode()))
    if contents.version:
        options.append(layout.OPTION_VERSION.pack(contents.version.encode()))
    if contents.trace_id:
        options.append(layout.OPTION_TRACEID.pack(contents.trace_id))
    if contents.offset_ns is not None:
        options.append(layout.OPTION_OFFSET.pack(contents.offset_ns))
    return options


class _Sections:
    """Writes consecutive sections, and notes their offsets and names."""

    def __init__(self, file: IO[bytes], compression: Compression | None, at: int = 0) -> None:
        """compression: of texts. at: offset of this part of a file."""
        self._file = file
        self._at = at
        self._compression = compression
        self._strings = bytearray()
        self.offsets: Final[dict[layout.Section, int]] = {}
        """Offset in the file."""

    def begin(self, section: layout.Section, size: int, *, is_compressed: bool = False) -> None:
        """Write the header; the caller writes the `size` bytes of the section."""
        self.offsets[section] = self._at + self._file.tell()
        flags = layout.SECTION_COMPRESSED if is_compressed else 0
        self._file.write(layout.SECTION_HEADER.pack(section.id, flags, len(self._strings), size))
        self._strings += section.name + b"\0"

    def add(self, section: layout.Section, body: bytes) -> None:
        is_compressed = self._compression is not None and section.by_option
        if self._compression is not None and is_compressed:
            body = self._compression.packed(body)
        self.begin(section, len(body), is_compressed=is_compressed)
        self._file.write(body)

    def end(self) -> None:
        """The strings, their own name included."""
        self.begin(layout.STRINGS, len(self._strings) + len(layout.STRINGS.name) + 1)
        self._file.write(self._strings)


def bodies(contents: Contents) -> list[tuple[layout.Section, bytes]]:
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


def _texts(
    contents: Contents, nr_cpus: int, page_size: int, given_up: int
) -> Iterator[tuple[tuple[bytes, bytes], Callable[[], bytes]]]:
    """Parts of a NAME.part besides pages: a name, and a function for the bytes. Each format and each name of
    a thread is a section, so that new ones can be appended later; so is each new account of losses, with all
    options."""

    def options() -> bytes:
        return _section(layout.OPTIONS, _pack_options(_options(contents, nr_cpus, given_up)))

    yield (b"", b""), lambda: _head(page_size, 0) + options()
    if contents.event_stats is not None:
        yield (layout.OPTIONS.name, contents.event_stats(given_up)), options
    for section, body in bodies(attrs.evolve(contents, formats={}, cmdlines=b"")):
        if section not in (layout.EVENT_FORMATS, layout.CMDLINES):
            yield (section.name, b""), functools.partial(_section, section, body)
    for system, texts in contents.formats.items():
        for text in texts:
            yield (system, text), functools.partial(_format_section, system, text)
    for line in contents.cmdlines.splitlines(keepends=True):
        yield (layout.CMDLINES.name, line), functools.partial(_section, layout.CMDLINES, _lstr(line))


def _format_section(system: bytes, text: bytes) -> bytes:
    one = layout.U32.pack(1)
    return _section(layout.EVENT_FORMATS, one + system + b"\0" + _lstrs([text]))


def _section(section: layout.Section, body: bytes) -> bytes:
    """A section of a NAME.part, which has no names of sections."""
    return layout.SECTION_HEADER.pack(section.id, 0, 0, len(body)) + body


def _lstr(text: bytes) -> bytes:
    return layout.U64.pack(len(text)) + text


def _lstrs(texts: Sequence[bytes]) -> bytes:
    """u32 number, and an lstr each."""
    return layout.U32.pack(len(texts)) + b"".join(map(_lstr, texts))


def _pack_options(options: Sequence[tuple[int, bytes]]) -> bytes:
    return b"".join(
        layout.OPTION_HEADER.pack(number, len(data)) + data
        for number, data in (*options, layout.OPTION_DONE.pack(0))
    )
