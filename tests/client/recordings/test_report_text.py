"""Lines in pieces, lines of any length, many threads and events."""

import struct

import pytest

from tests.protocol.pages import page_writer
from utracefs.recordings._records import EventDecoder, Records
from utracefs.recordings._report_text import ReportText
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs_protocol.events._event_printer import EventPrinter
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.events.event_format import EventFormat

TEXT = Field(b"char[]", b"t", 8, 0, True, FieldKind.CHAR_ARRAY)


def entry(number: int, event_id: int = 1, pid: int = 7, text: bytes = b"") -> bytes:
    return struct.pack("<HBBi", event_id, 0, 0, pid) + (text or b"%d" % number)


class Report:
    """A ReportText, and what it asked."""

    def __init__(
        self,
        entries: list[bytes],
        *,
        page_size: int = 1 << 17,
        broken: bool = False,
        in_ns: bool = True,
        offset_ns: int = 0,
        full_ns: bool = False,
    ):
        writer = page_writer.PageWriter(page_size)
        for n, row in enumerate(entries):
            assert writer.add(n * 1000 + 499, row)
        data = page_writer.broken(writer.page()) if broken else writer.page()
        self.asked: list[int] = []
        self.printer = EventPrinter(EventFormat(b"ev", 1, (TEXT,), b'"%s", REC->t'))
        self.text = ReportText(
            Records(
                MergedPages(data, [(0, 3, 0, page_size, page_size)], offset_ns=offset_ns),
                lambda event_id: None if event_id == 666 else EventDecoder("", f"ev{event_id}", ()),
            ),
            [b"box: "],
            [in_ns],
            self._printer,
            lambda _number, pid: b"task-%d [" % pid,
            full_ns=full_ns,
        )

    def _printer(self, event_id: int) -> tuple[bytes, EventPrinter]:
        self.asked.append(event_id)
        return b"ev%d: " % event_id, self.printer

    def lines(self, max_bytes: int = 1 << 16) -> list[bytes]:
        pieces = []
        while piece := self.text.read(max_bytes):
            assert piece.endswith(b"\n")
            pieces.append(piece)
        return b"".join(pieces).split(b"\n")[:-1]


def test_lines_in_pieces() -> None:
    entries = [entry(n) for n in range(50)]
    expected = [b"box: task-7 [003]     0.%06d: ev1: %d" % (n, n) for n in range(50)]
    for max_bytes in (1, 100, 1 << 16):
        assert Report(entries).lines(max_bytes) == expected
    assert Report(entries).text.read(1).count(b"\n") == 1
    assert Report([]).text.read(1) == b""


def test_times() -> None:
    entries = [entry(0), entry(1)]
    assert [line.split(b": ")[1] for line in Report(entries, full_ns=True).lines()] == [
        b"task-7 [003]     0.000000499",
        b"task-7 [003]     0.000001499",
    ]
    assert b"]         499: " in Report(entries, in_ns=False).lines()[0]
    assert b"] 1795227563.000001: " in Report(entries, offset_ns=1795227563 * 10**9 + 1).lines()[0]
    assert b"]     0.000001: " in Report(entries, offset_ns=-499).lines()[1]


def test_lines_of_any_length() -> None:
    long = [b"x" * size for size in (4000, 4096, 4200, 70_000, 5, 100_000)]
    report = Report([entry(0, text=text) for text in long], page_size=1 << 20)
    assert [line.rsplit(b": ", 1)[1] for line in report.lines()] == long


def test_a_line_that_would_take_all_memory() -> None:
    """A thousand fields that all lead to the same bytes."""
    fields = tuple(Field(b"char[]", b"f", 8, 0, True, FieldKind.CHAR_ARRAY) for _ in range(1000))
    report = Report([entry(0, text=b"x" * 100_000), entry(1)])
    report.printer = EventPrinter(EventFormat(b"ev", 1, fields, b""))
    assert report.lines()[0] == b"[LINE TOO BIG]"
    assert report.text.read(1) == b""


def test_threads_and_events_are_distinguished() -> None:
    """Also threads and events that share a slot."""
    rows = [
        (event_id, pid) for event_id in (1, 257, 513, 0xFFFF, 1) for pid in (0, 256, -256, 2**31 - 1, -1, 0)
    ]
    report = Report([entry(n, event_id, pid) for n, (event_id, pid) in enumerate(rows)])
    for n, (line, (event_id, pid)) in enumerate(zip(report.lines(), rows, strict=True)):
        assert b"task-%d [003]" % pid in line
        assert line.endswith(b"ev%d: %d" % (event_id, n))
    assert sorted(report.asked) == [1, 257, 513, 0xFFFF], "once each"


def test_events_that_were_not_selected() -> None:
    report = Report([entry(0, 666), entry(1), entry(2, 666)])
    assert [line.rsplit(b": ")[-1] for line in report.lines()] == [b"1"]


def test_entries_without_the_common_fields_are_passed_over() -> None:
    assert len(Report([b"", b"abcd", entry(1)]).lines()) == 1


def test_what_came_before_a_broken_record_is_printed() -> None:
    report = Report([entry(n) for n in range(5)], broken=True)
    assert report.text.read(1 << 16).count(b"\n") == 5
    for _ in range(2):
        with pytest.raises(ValueError, match="has 112 bytes of data"):
            report.text.read(1 << 16)


def test_an_error_of_a_lookup_comes_out() -> None:
    report = Report([entry(1)])
    report.asked = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        report.text.read(1)
