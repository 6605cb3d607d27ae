"""A recording as a file: events, records of two cpus, what a report of them reads like."""

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import utracefs
from tests.client.recordings.events import Events
from tests.protocol.pages import subbuf_model
from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings._records import EventDecoder, Records
from utracefs.recordings.report import report_text
from utracefs.recordings.trace_dat.format import Extent
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text
from utracefs_protocol.text import text_of

CLOCKS = b"local global counter uptime perf [mono] mono_raw boot tai\n"
assert len(CLOCKS) == 58

EVENTS = Events(
    2001,
    b"test u32 count",
    b"rpc __rel_loc char[] method; u64 latency_ns; int status",
    b"blob unsigned char[16] digest; char[8] tag",
)

Record = tuple[int, bytes]


def contents(**more: object) -> Contents:
    known: dict[str, object] = {
        "header_page": header_page_text(),
        "header_event": HEADER_EVENT_TEXT,
        "formats": {b"user_events": EVENTS.formats()},
        "cmdlines": b"11 alpha\n12 beta task\n",
        "trace_clock": CLOCKS,
    }
    return Contents(**{**known, **more})  # type: ignore[arg-type]


def pages(records: Sequence[Record], *, lost: int = 0) -> list[bytes]:
    """Full pages, as a reader that comes late gets them."""
    made = []
    writer = PageWriter()
    for ts, data in records:
        if not writer.add(ts, data):
            made.append(writer.page(lost))
            lost = 0
            writer = PageWriter()
            assert writer.add(ts, data)
    made.append(writer.page(lost))
    return made


def write(path: Path, cpus: Sequence[Sequence[bytes]], **more: object) -> Path:
    with TraceDatWriter(path, nr_cpus=len(cpus)) as writer:
        for cpu, its_pages in enumerate(cpus):
            for page in its_pages:
                writer.add_page(cpu, page)
        size = writer.finish(contents(**more))
    assert size == path.stat().st_size
    return path


def write_app(path: Path, events: Events, records: Sequence[Record]) -> Path:
    """Records (time, entry) of one cpu and of thread 7, app."""
    return write(
        path,
        [pages(records)],
        formats={b"user_events": events.formats()},
        cmdlines=b"7 app\n",
        trace_clock=b"[mono]",
    )


def report(path: Path, *, full_ns: bool = True) -> list[str]:
    with utracefs.open(path) as recording:
        return text_of(b"".join(report_text(recording, full_ns=full_ns))).splitlines()


def records_in(reader: TraceDatReader, since_ns: int | None = None) -> Records:
    """The records of all events, without their fields."""
    return Records(reader.source(since_ns=since_ns)[0], lambda _: EventDecoder("s", "ev", []))


def read_records(reader: TraceDatReader) -> list[tuple[int, int, bytes, int]]:
    """Time, cpu, entry, lost."""

    def entries(extent: Extent, page_size: int) -> Iterator[tuple[int, bytes]]:
        for begin in range(extent.offset, extent.offset + extent.size, page_size):
            page = reader.content[begin : begin + page_size]
            for ts, at, length in subbuf_model.records(page):
                yield ts, page[at : at + length]

    streams = [entries(extent, buffer.page_size) for buffer in reader.buffers for extent in buffer.extents]
    expected = heapq.merge(*streams, key=lambda found: found[0])
    return [
        (ts, record.cpu, entry, record.lost)
        for record, (ts, entry) in zip(records_in(reader), expected, strict=True)
        if record.time_ns == ts + reader.offset_ns
    ]


def records_of(path: Path) -> list[tuple[int, int, bytes, int]]:
    with TraceDatReader(path) as reader:
        return read_records(reader)


CPU0 = [
    (100000000001, EVENTS.entry(2001, 11, 7)),
    (100000000351, EVENTS.entry(2002, 12, "Get", 1500, -2)),
    (101000000000, EVENTS.entry(2001, 11, 8)),
]
CPU1 = [(100500000000, EVENTS.entry(2003, 11, b"0123456789abcdef", b"t1"))]

EXPECTED = """\
cpus=2
           alpha-11    [000]   100.000000001: test:                 count=7
       beta task-12    [000]   100.000000351: rpc:                  method=Get latency_ns=1500 status=-2
           alpha-11    [001]   100.500000000: blob:                 digest=0123456789abcdef tag=t1
           alpha-11    [000]   101.000000000: test:                 count=8
"""


def many_records(seed: int, count: int) -> list[Record]:
    """Gaps from nanoseconds to hours, entries from none to thousands of bytes."""
    chance = Random(seed)
    ts = 10**9
    made = []
    for n in range(count):
        ts += chance.choice([0, 1, 350, 10**5, (1 << 27) - 1, 1 << 27, 7 * 10**9, 3600 * 10**9 + 1])
        method = "x" * chance.choice([0, 1, 5, 70, 90, 400, 3000])
        made.append((ts, EVENTS.entry(2002, 11, method, n, -n)))
    return made
