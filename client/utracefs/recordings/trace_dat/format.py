"""The layout of a trace.dat, shared by writer and reader.

Version 7:

    +-------------------+  MAGIC, version, byte order, size of long, page size, compression,
    | file header       |  offset of the options
    +-------------------+
    | 16 headers        |  header_page, header_event
    | 17 ftrace events  |  formats of the records of ftrace itself (print, raw_data)
    | 18 events format  |  per system the `format` of each event
    | 19 kallsyms       |  one line, for the ip of trace_marker records
    | 20 printk         |
    | 21 command lines  |  saved_cmdlines
    |  3 buffer         |  zeros up to a page boundary, then the pages of cpu 0, cpu 1, ...
    |  0 options        |  offsets of the above, the clock, the number of cpus, ...
    | 15 strings        |  names of the sections
    +-------------------+

Every section begins with a SECTION_HEADER, and the next one follows without a gap. Sections are found through
the options; options of the same id may occur several times.

While a recording runs, its file NAME.part has the same head, without an offset of options, and then sections
in the order of writing: 16, 17, 19 and options at the beginning; new formats of events and command lines;
PAGES, of one cpu each. The unwritten rest of a cpu's last PAGES is zeros (a hole), or missing at the end.
Where file systems can take out holes the file begins with these sections, the options refer to the pages in
PAGES, and 3 is empty.

Version 6 has the same parts in a fixed order and without section headers: file header up to the page size,
16 to 21, u32 number of cpus, then KIND_OPTIONS and the options (each OPTION_ID, u32 size, data; id 0 ends
them), then KIND_FLYRECORD, an EXTENT per cpu, the clock as lstr if OPTION_TRACECLOCK is there, and the pages.

| type | bytes |
|---|---|
| u16, u32, u64 | little-endian |
| string0 | text and a NUL |
| lstr | u64 length, text |

Sources: trace-cmd.dat.v7(5), trace-cmd.dat.v6(5), both of trace-cmd.
"""

import struct
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import attrs

from utracefs_protocol.limits import SUBBUF_HEADER_SIZE

MAGIC: Final = b"\x17\x08\x44tracing"
VERSIONS: Final = {b"6": 6, b"7": 7}
"""Supported versions; 7 is written."""
LITTLE_ENDIAN: Final = b"\0"
LONG_SIZE: Final = b"\x08"
"""Bytes of a `long`: that of header_page's `commit`."""
COMPRESSIONS: Final = (b"none", b"")
"""Names for no compression; the first is written."""
SECTION_COMPRESSED: Final = 0x1
"""Flag of a section."""

KIND_SIZE: Final = 10
KIND_OPTIONS: Final = b"options  \0"
KIND_FLYRECORD: Final = b"flyrecord\0"
"""Markers in a file of version 6."""

U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
SECTION_HEADER: Final = struct.Struct("<HHIQ")
"""Section id, flags, offset of its name in the strings, size of the rest."""
OPTION_HEADER: Final = struct.Struct("<HI")
"""Option id, size of the rest."""
OPTION_ID: Final = struct.Struct("<H")
"""Option id of version 6: an id of 0 has no size behind it."""
CHUNK: Final = struct.Struct("<II")
"""Compressed and plain size of the data behind it."""
EXTENT: Final = struct.Struct("<QQ")
"""File offset and bytes of a cpu's pages: version 6, the cpus in order."""
CPU_EXTENT: Final = struct.Struct("<IQQ")
"""cpu, file offset, bytes: version 7."""

MAX_CPUS: Final = 1 << 16
"""Limit of cpus, since the number is that of entries to read."""
_MAX_PAGE_SIZE: Final = 1 << 27
"""Limit of page sizes: a page's commit word has 27 bits for its bytes."""

CLOCKS_IN_NS: Final = frozenset({"local", "global", "uptime", "perf", "mono", "mono_raw", "tai"})
"""Clocks whose stamps trace-cmd prints as seconds; it prints all others, `boot` too, as bare numbers."""


# Sections.


@attrs.frozen
class Section:
    id: int
    name: bytes
    """trace-cmd's name in the strings section."""
    by_option: bool = True
    """An option with the section's id holds its file offset."""


HEADERS: Final = Section(16, b"headers")
"""string0 `header_page`, lstr, string0 `header_event`, lstr."""
FTRACE_EVENTS: Final = Section(17, b"ftrace events")
"""u32 number of formats, an lstr each."""
EVENT_FORMATS: Final = Section(18, b"events format")
"""u32 number of systems; each: string0 name, u32 number of formats, an lstr each."""
KALLSYMS: Final = Section(19, b"kallsyms")
"""u32 size, text: lines `ADDRESS TYPE NAME`."""
PRINTK: Final = Section(20, b"printk")
"""u32 size, text."""
CMDLINES: Final = Section(21, b"command lines")
"""lstr: lines `TID COMM`."""
BUFFER: Final = Section(3, b"buffer flyrecord", by_option=False)
"""Zeros up to a page boundary, then pages. OPTION_BUFFER has the place, so there may be several."""
OPTIONS: Final = Section(0, b"options", by_option=False)
"""Each: OPTION_HEADER, data. OPTION_DONE is the last. The file header has the offset."""
STRINGS: Final = Section(15, b"strings", by_option=False)
"""string0 each: the names of the sections."""

PAGES: Final = Section(0x8000, b"", by_option=False)
"""Only in a NAME.part: u32 cpu, zeros up to a page boundary, pages of that cpu."""

SECTIONS: Final = (
    HEADERS,
    FTRACE_EVENTS,
    EVENT_FORMATS,
    KALLSYMS,
    PRINTK,
    CMDLINES,
    BUFFER,
    OPTIONS,
    STRINGS,
)
"""In the order of writing."""

SECTIONS_BY_OPTION: Final = {section.id: section for section in SECTIONS if section.by_option}


# Options.

T = TypeVar("T")


@attrs.frozen
class OptionType(Generic[T]):
    """Encoding of an option's data."""

    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    """struct.error or ValueError for data that is not of this type."""


def _text(data: bytes) -> bytes:
    return data.rstrip(b"\0")


def _number(layout: struct.Struct) -> OptionType[int]:
    def decode(data: bytes) -> int:
        value: int = layout.unpack(data)[0]
        return value

    return OptionType(layout.pack, decode)


TEXT: Final = OptionType[bytes](lambda text: text + b"\0", _text)
"""string0."""
DECIMAL: Final = OptionType[int](lambda value: b"%d\0" % value, lambda data: int(_text(data), 0))
"""string0 of a number."""
BYTES: Final = OptionType[bytes](bytes, bytes)
"""Raw bytes: the option has its own layout."""
NUMBER_U32: Final = _number(U32)
NUMBER_U64: Final = _number(U64)


@attrs.frozen
class Option(Generic[T]):
    id: int
    type: OptionType[T]

    def pack(self, value: T) -> tuple[int, bytes]:
        """(id, data)."""
        return self.id, self.type.encode(value)


OPTION_DATE: Final = Option(1, DECIMAL)
"""Microseconds from time stamps to times of day: `trace-cmd record --date`."""
OPTION_DONE: Final = Option(0, NUMBER_U64)
"""File offset of the next options section, 0 when there is none."""
OPTION_CPUSTAT: Final = Option(2, TEXT)
"""per_cpu/cpuN/stats, `CPU: N` in front of it; from utracefs also the lines of an Origin. trace-cmd
overwrites the last byte, so the NUL is needed."""
OPTION_BUFFER: Final = Option(3, BYTES)
"""One per instance. Version 7: u64 file offset of its BUFFER section, string0 instance, string0 clock, u32
page size, u32 number of cpus, a CPU_EXTENT each. Version 6, and not for the top instance: u64 file offset of
its KIND_FLYRECORD, string0 instance."""
OPTION_TRACECLOCK: Final = Option(4, TEXT)
"""trace_clock: the clocks, the one in use in brackets."""
OPTION_UNAME: Final = Option(5, TEXT)
OPTION_OFFSET: Final = Option(7, DECIMAL)
"""Nanoseconds to add to all time stamps."""
OPTION_CPUCOUNT: Final = Option(8, NUMBER_U32)
OPTION_VERSION: Final = Option(9, TEXT)
"""Name and version of the producer."""
OPTION_TRACEID: Final = Option(11, NUMBER_U64)
"""Any number that tells recordings apart."""


def section_option(section: Section) -> Option[int]:
    """The option with a section's file offset."""
    return Option(section.id, NUMBER_U64)


# Contents of both versions.


@attrs.frozen
class Extent:
    cpu: int
    offset: int
    """Offset in the file."""
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


def check_page_size(size: int) -> None:
    """ValueError for an invalid page size."""
    if size < SUBBUF_HEADER_SIZE + 8 or size > _MAX_PAGE_SIZE:
        raise ValueError("page size")


def clock_in_use(trace_clock: bytes) -> str:
    """`mono` of `local [mono] boot`; the text itself if it has no brackets."""
    _, bracket, rest = trace_clock.partition(b"[")
    name = rest.partition(b"]")[0] if bracket else trace_clock.strip()
    return name.decode("ascii", "replace")
