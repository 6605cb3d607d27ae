"""Shared parts of the tests of EventHeader: records made by hand from the description of the format, and
recordings with them.

The numbers are those of eventheader.h (microsoft/LinuxTracepoints, MIT license): flags 1 pointers of 64 bits,
2 little-endian, 4 an extension; extensions 1 metadata, 2 activity; the rest is in CASES.
"""

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text

FIELDS = b"u8 eventheader_flags; u8 version; u16 id; u16 tag; u8 opcode; u8 level"
TRACEPOINT = 2001
NAME = b"Shop_L4K1f"
ACTIVITY = bytes(range(16))
RELATED = bytes(range(16, 32))
CONSTANT, VARIABLE = 0x20, 0x40


def field(
    name: bytes, encoding: int, format: int = 0, *, tag: int = 0, count: int = 0, big: bool = False
) -> bytes:
    """The metadata of a field. count: for CONSTANT."""
    order = ">" if big else "<"
    made = name + b"\0"
    if tag:
        made += struct.pack(order + "BBH", encoding | 0x80, format | 0x80, tag)
    else:
        made += bytes([encoding | 0x80, format]) if format else bytes([encoding])
    return made + (struct.pack(order + "H", count) if encoding & CONSTANT else b"")


def payload(
    name: bytes,
    fields: Iterable[bytes] = (),
    values: bytes = b"",
    *,
    opcode: int = 0,
    id: int = 0,
    version: int = 0,
    tag: int = 0,
    level: int = 4,
    activity: bytes = b"",
    big: bool = False,
    others: Sequence[tuple[int, bytes]] = (),
) -> bytes:
    """A record's bytes behind the common fields. others: more extensions."""
    order = ">" if big else "<"
    flags = 5 if big else 7
    made = struct.pack(order + "BBHHBB", flags, version, id, tag, opcode, level)
    extensions = [*others, *([(2, activity)] if activity else []), (1, name + b"\0" + b"".join(fields))]
    for number, (kind, data) in enumerate(extensions):
        more = 0x8000 if number + 1 < len(extensions) else 0
        made += struct.pack(order + "HH", len(data), kind | more) + data
    return made + values


def entry(data: bytes, event_id: int = TRACEPOINT, tid: int = 7) -> bytes:
    return struct.pack("<HBBi", event_id, 0, 0, tid) + data


def write(path: Path, records: Iterable[bytes], *, name: bytes = NAME) -> Path:
    """A trace.dat with these payloads, a millisecond apart, the first one at 1 ms, and before that a
    record of another event."""
    page = PageWriter(1 << 17)
    assert page.add(0, struct.pack("<HBBiI", 11, 0, 0, 7, 5))
    for number, data in enumerate(records, 1):
        assert page.add(number * 1_000_000, entry(data))
    declared = [(TRACEPOINT, parse(name + b" " + FIELDS)), (11, parse(b"plain u32 n"))]
    with TraceDatWriter(path, nr_cpus=1, page_size=1 << 17) as writer:
        writer.add_page(0, page.page())
        writer.finish(
            Contents(
                header_page=header_page_text(1 << 17),
                header_event=HEADER_EVENT_TEXT,
                formats={b"user_events": [format_text(d.name, number, d.fields) for number, d in declared]},
                cmdlines=b"7 alpha\n",
                trace_clock=b"[mono]",
            )
        )
    return path
