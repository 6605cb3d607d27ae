"""A recording with everything that formats stumble over."""

from pathlib import Path

from tests.client.recordings.events import Events
from tests.protocol.pages.page_writer import PageWriter
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text

EVENTS = Events(
    100,
    b"ints s8 a; u8 b; s16 c; u16 d; s32 e; u32 f; s64 g; u64 h",
    b"text char[8] fixed; unsigned char[4] raw; __data_loc char[] data; __rel_loc char[] rel",
    b"select u32 cpu; u64 time_ns; struct foo three 3; __rel_loc u8[] from",
    b"empty",
    b"begin u32 key; u64 size",
    b"done u32 key; u32 usec",
)

TEXTS = [
    'quote " and \\ and, comma; semi',
    "line\nfeed \r\n and\rreturn\tand tab",
    "</script><!-- &amp; ' \x01\x1f\x7f",
    "größer 漢字 \U0001f600 \u2028",
    "not \udcff utf-8 \udced\udca0\udc80",
    "=1+1",
    "",
    " spaces ",
]

ROWS: list[tuple[int, int, int, dict[str, object]]] = [
    (11, 100, 1, {"a": -128, "b": 255, "c": -2, "d": 65535, "e": -5, "f": 6, "g": -(2**63), "h": 2**64 - 1}),
    (11, 100, 2, {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 2**63 - 1, "h": 2**63}),
    *[
        (12, 101, 10 + n, dict[str, object](fixed="12345678", raw=b"\0\xff\n'", data=text, rel=text[::-1]))
        for n, text in enumerate(TEXTS)
    ],
    (12, 102, 30, {"cpu": 7, "time_ns": 2**53 + 1, "three": b"\1\2\3", "from": b""}),
    (13, 103, 40, {}),
    (0, 104, 1_000_000_351, {"key": 7, "size": 100}),
    (-1, 104, 2_000_000_000, {"key": 8, "size": 2**63}),
    (13, 105, 3_000_000_999, {"key": 7, "usec": 1500}),
]
"""tid, event id, time, fields."""

COMMS = {11: "alpha", 12: 'b"e\\ta, <x>', 13: "gr\udcff\u00f6\u00df"}


def write(path: Path, *, lost: int = 0) -> Path:
    pages = [PageWriter(), PageWriter()]
    for number, (tid, event_id, time, values) in enumerate(ROWS):
        assert pages[number % 2].add(time, EVENTS.entry(event_id, tid, *values.values()))
    with TraceDatWriter(path, nr_cpus=2) as writer:
        for cpu, page in enumerate(pages):
            writer.add_page(cpu, page.page(lost if cpu else 0))
        writer.finish(
            Contents(
                header_page=header_page_text(),
                header_event=HEADER_EVENT_TEXT,
                formats={b"user_events": EVENTS.formats()},
                cmdlines=b"".join(
                    b"%d %s\n" % (tid, comm.encode("utf-8", "surrogateescape")) for tid, comm in COMMS.items()
                ),
                trace_clock=b"[mono]",
            )
        )
    return path


def shown(value: object) -> object:
    """As all formats have it: bytes in hex, U+FFFD for what is not UTF-8."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value


def comm(tid: int) -> object:
    return shown(COMMS.get(tid, "<...>" if tid else "<idle>"))


def name(event_id: int) -> str:
    return EVENTS.declared[event_id].name.decode()
