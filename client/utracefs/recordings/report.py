"""The text of a trace.dat, in the format of `trace-cmd report`.

    cpus=2
               alpha-11    [000]   100.000000: test:                 count=7
    CPU:0 [1234 EVENTS DROPPED]
           beta task-12    [000]   100.000351: rpc:                  method=Get latency_ns=1500 status=-2

The fields of a record are printed by the event's own print fmt (`EventPrinter` of the protocol, compiled,
like the lines: `_report_text`).

The text is that of trace-cmd 3.1.6 (libtraceevent 1.7.1), line by line (the command line sets `one_line`),
except where trace-cmd is wrong:

| field | trace-cmd | here |
|---|---|---|
| s8, s16, char below zero | as unsigned: 248, except in files of `utracefs record` | -8 |
| struct of a size other than 1, 2, 4, 8 | 0 | its bytes in hex |
| dynamic array other than a string | the location word | its bytes in hex |
| record of an unknown event | [UNKNOWN EVENT] three times | once, with its id |
"""

from collections.abc import Iterator
from typing import Final

from utracefs.recordings._report_text import ReportText
from utracefs.recordings.recording import Recording
from utracefs.recordings.trace_dat.format import CLOCKS_IN_NS
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs_protocol.events._event_printer import EventPrinter
from utracefs_protocol.terminal import in_one_line
from utracefs_protocol.text import bytes_of, clean

_NAME_WIDTH: Final = 20
"""trace-cmd pads `NAME: ` to align the fields."""

_PIECE_BYTES: Final = 64 << 10
"""Bytes of text at a time: it stays in the cache, and `| head` need not wait."""


def report_text(recording: Recording, *, full_ns: bool = False, one_line: bool = False) -> Iterator[bytes]:
    """Yields the report of a trace.dat, many whole lines at a time; of several, lines begin with the host or
    file. full_ns: all nine digits of the time. one_line: `?` for LF and CR in strings and names;
    trace-cmd prints them. TraceError at an invalid page, after the lines before it."""
    readers = [one.reader for one in recording.files if isinstance(one.reader, TraceDatReader)]
    assert len(readers) == len(recording.files)
    shown = in_one_line if one_line else str
    labels = [shown(clean(label)) for label in recording.labels]
    label_width = max(map(len, labels), default=0)
    heads = [f"{label}: ".ljust(label_width + 2) if label else "" for label in labels]
    names = [shown(buffer.name) for reader in readers for buffer in reader.buffers]
    width = max(map(len, names), default=0)
    prefixes = [(f"{name:>{width}}: " if name else " " * (width + 2)) if width else "" for name in names]
    of_buffer = [head for head, reader in zip(heads, readers, strict=True) for _ in reader.buffers]

    def printer(event_id: int) -> tuple[bytes, EventPrinter]:
        event = recording.format_of(event_id)
        reader = readers[event_id >> 16]
        system = reader.systems.get(event_id & 0xFFFF, "")
        made = EventPrinter(event, system=system, symbols=reader.kallsyms, one_line=one_line)
        return bytes_of(f"{shown(recording.label(event_id))}: ".ljust(_NAME_WIDTH + 2)), made

    reading = recording.reading()
    text = ReportText(
        reading.records,
        [bytes_of(head + prefix) for head, prefix in zip(of_buffer, prefixes, strict=True)],
        [
            recording.is_merged or buffer.clock in CLOCKS_IN_NS
            for reader in readers
            for buffer in reader.buffers
        ],
        printer,
        lambda number, pid: bytes_of(f"{shown(readers[number].comm(pid)):>16}-{pid:<5} ["),
        full_ns=full_ns,
    )
    for head, reader in zip(heads, readers, strict=True):
        yield bytes_of(f"{head}cpus={reader.nr_cpus}\n")
    try:
        while piece := text.read(_PIECE_BYTES):
            yield piece
    except ValueError as error:
        raise reading.broken(error) from None
