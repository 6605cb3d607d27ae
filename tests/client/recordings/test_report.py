"""The report and the same as JSON; trace-cmd as judge."""

import struct
from pathlib import Path
from typing import Any

import pytest

import utracefs
import utracefs.recordings.trace_dat.format as layout
from tests.client.recordings.events import Events, trace_cmd
from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings.report import report_text
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text
from utracefs_protocol.text import text_of

EVENTS = Events(
    100,
    b"ints s8 a; u8 b; s16 c; u16 d; s32 e; u32 f; s64 g; u64 h",
    b"text char[8] fixed; unsigned char[4] raw; __data_loc char[] data; __rel_loc char[] rel",
    b"odd struct foo three 3; struct foo four 4; __rel_loc u8[] bytes; char c",
    b"empty",
    b"a_name_that_is_longer_than_its_column u32 n",
)

COMMON = (
    b"\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n"
    b"\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;\n"
    b"\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;\n"
    b"\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n"
)
PRINT = (
    b"name: print\nID: 5\nformat:\n" + COMMON + b"\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n"
    b"\tfield:char buf[];\toffset:16;\tsize:0;\tsigned:1;\n\n"
    b'print fmt: "%ps: %s", (void *)REC->ip, REC->buf\n'
)
RAW_DATA = (
    b"name: raw_data\nID: 19\nformat:\n"
    + COMMON
    + b"\tfield:unsigned int id;\toffset:8;\tsize:4;\tsigned:0;\n"
    b"\tfield:char buf[];\toffset:12;\tsize:0;\tsigned:1;\n\n"
    b'print fmt: "id:%04x %08x", REC->id, (int)REC->buf[0]\n'
)
MARKER_IP = 0xFFFF_FFFF_8100_0000

ENTRIES = [
    EVENTS.entry(100, 11, 1, 2, 3, 4, -5, 6, -7, 2**64 - 1),
    EVENTS.entry(101, 11, "12345678", b"ab", "größer", ""),
    EVENTS.entry(101, 11, "", b"\xff\x01\n", b"not \xfc utf-8", 'quote " and\ttab'),
    EVENTS.entry(103, 12),
    EVENTS.entry(104, 0, 4_000_000_000),
    EVENTS.entry(104, 4_000_000, 1),
    struct.pack("<HBBiQ", 5, 0, 0, 11, MARKER_IP) + b"a marker\n\0",
    struct.pack("<HBBiQ", 5, 0, 0, 11, MARKER_IP) + b"two\nlines\n\0",
    struct.pack("<HBBiQ", 5, 0, 0, 11, 0x1234) + b"no symbol\n\0",
    struct.pack("<HBBiI", 19, 0, 0, 11, 0x1234) + b"raw",
]


def write(path: Path, entries: list[bytes], *, clock: bytes = b"[mono]", **more: int) -> Path:
    page = PageWriter()
    ts = 3
    for entry in entries:
        ts = ts * 10 + 501
        assert page.add(ts, entry)
    with TraceDatWriter(path, nr_cpus=2) as writer:
        writer.add_page(1, page.page(42))
        writer.finish(
            Contents(
                header_page=header_page_text(),
                header_event=HEADER_EVENT_TEXT,
                ftrace_formats=[PRINT, RAW_DATA],
                formats={b"user_events": EVENTS.formats()},
                kallsyms=b"ffffffff81000000 t tracing_mark_write\n",
                cmdlines=b"11 alpha\n12 a name longer than the column\n",
                trace_clock=clock,
                offset_ns=more.get("offset_ns"),
            )
        )
    return path


def lines(path: Path, *, full_ns: bool = False, **selection: Any) -> list[str]:
    with utracefs.open(path, **selection) as recording:
        text = text_of(b"".join(report_text(recording, full_ns=full_ns)))
    return text.removesuffix("\n").split("\n")


@pytest.mark.parametrize("full_ns", [False, True])
@pytest.mark.parametrize("clock", ["mono", "local", "tai", "uptime", "boot", "counter", "x86-tsc"])
def test_the_same_as_trace_cmd(tmp_path: Path, clock: str, full_ns: bool) -> None:
    path = write(tmp_path / "trace.dat", ENTRIES, clock=f"[{clock}]".encode())
    words = ["-t"] if full_ns else []
    ours = "\n".join(lines(path, full_ns=full_ns)) + "\n"
    assert ours == trace_cmd("report", *words, "-i", str(path))


def test_the_same_as_trace_cmd_in_wall_clock_time(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", ENTRIES, offset_ns=1795227563238091000)
    assert "\n".join(lines(path)) + "\n" == trace_cmd("report", "-i", str(path))


def test_the_same_as_trace_cmd_with_a_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`trace-cmd record --date` stores microseconds, in another option."""
    with monkeypatch.context() as patch:
        patch.setattr(layout, "OPTION_OFFSET", layout.OPTION_DATE)
        path = write(tmp_path / "trace.dat", ENTRIES, offset_ns=1795227563238091)
    assert "\n".join(lines(path)) + "\n" == trace_cmd("report", "-i", str(path))
    with utracefs.open(path) as recording:
        assert recording.unix_offset_ns == 0


def test_an_unknown_event_is_named_by_its_id(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.dat", [struct.pack("<HBBi", 999, 0, 0, 11)])
    assert lines(path)[2].endswith("[UNKNOWN EVENT]:      id 999")
