"""The getters beside the plain Layout; selection; what was lost."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.events.plain_layout import Layout
from tests.protocol.pages import page_writer
from utracefs.recordings._records import EventDecoder, Record, Records
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs_protocol.events.declaration import parse

DECLARED = parse(
    b"ev s8 a; u8 b; s16 c; u16 d; s32 e; u32 f; s64 g; u64 h; char[8] i; unsigned char[4] j; "
    b"struct foo k 3; __data_loc char[] l; __rel_loc u8[] m; __rel_loc char[] n; "
    b"struct double o 8; struct float p 4; struct bool q 1; struct double r 4"
)
LAYOUT = Layout(DECLARED.fields)


def entry(payload: bytes, event_id: int = 1, tid: int = 7) -> bytes:
    return struct.pack("<HBBi", event_id, 0, 0, tid) + payload


def merge(
    *cpus: list[tuple[int, bytes]], lost: int = 0, broken: bool = False, offset_ns: int = 0
) -> MergedPages:
    pages = []
    for records in cpus:
        writer = page_writer.PageWriter(1 << 17)
        for time, data in records:
            assert writer.add(time, data)
        pages.append(writer.page(lost))
    if broken:
        pages[0] = page_writer.broken(pages[0])
    size = 1 << 17
    extents = [(0, cpu, cpu * size, size, size) for cpu in range(len(pages))]
    return MergedPages(b"".join(pages), extents, offset_ns=offset_ns)


def records(of: MergedPages, **selection: Any) -> Records:
    decoders = {1: EventDecoder("user_events", "ev", DECLARED.fields), 2: EventDecoder("s", "empty", ())}
    return Records(of, decoders.get, **selection)


def fields(payload: bytes) -> dict[str, Any]:
    (found,) = records(merge([(1, entry(payload))]))
    return found.fields


@given(st.data())
def test_the_same_as_layout(data: st.DataObject) -> None:
    numbers = [
        data.draw(
            st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
        )
        for bits in (8, 16, 32, 64)
        for signed in (True, False)
    ]
    binary = st.binary(max_size=40)
    values = [
        *numbers,
        data.draw(st.binary(max_size=8)),
        data.draw(st.binary(min_size=4, max_size=4)),
        data.draw(st.binary(min_size=3, max_size=3)),
        *(data.draw(binary) for _ in range(3)),
        data.draw(st.floats(allow_nan=False)),
        data.draw(st.floats(width=32, allow_nan=False)),
        data.draw(st.booleans()),
        data.draw(st.binary(min_size=4, max_size=4)),
    ]
    payload = LAYOUT.pack(*values)
    # A page holds multiples of 4 bytes: what pads the record belongs to it.
    assert fields(payload) == LAYOUT.unpack(payload)


@given(st.binary(max_size=120))
def test_any_bytes_are_decoded_or_refused(payload: bytes) -> None:
    payload += bytes(-len(payload) % 4)
    try:
        expected = LAYOUT.unpack(payload)
    except ValueError:
        expected = {}
    found = fields(payload)
    # A __data_loc may lead into the common header here, as in all that prints records.
    # (In repr a NaN equals itself.)
    assert repr(found) == repr(expected) or (found and not expected)


def test_what_a_record_says() -> None:
    source = merge([(5, entry(b"", 2, 9)), (6, entry(b"", 2, 0)), (7, entry(b"", 2, 4))], offset_ns=100)
    source.comms = {9: "nine"}
    found = list(Records(source, lambda _: EventDecoder("s", "empty", ()), instances=["box"]))
    assert [(r.time_ns, r.cpu, r.pid, r.tid, r.comm) for r in found] == [
        (105, 0, 9, 9, "nine"),
        (106, 0, 0, 0, "<idle>"),
        (107, 0, 4, 4, "<...>"),
    ]
    assert (found[0].system, found[0].name, found[0].instance, found[0].fields) == ("s", "empty", "box", {})
    assert repr(found[0]) == "<Record 105 ns, cpu 0, nine-9: s:empty {}>"
    with pytest.raises(AttributeError):
        found[0].cpu = 3
    assert isinstance(found[0], Record)


MANY = [[(10 * n + cpu, entry(b"", 2 + n % 2, 100 + n)) for n in range(10)] for cpu in range(2)]


@pytest.mark.parametrize(
    ("selection", "times"),
    [
        ({}, [0, 1, 20, 21, 40, 41, 60, 61, 80, 81]),
        ({"cpus": {1}}, [1, 21, 41, 61, 81]),
        ({"pids": {102, 104, 105}}, [20, 21, 40, 41]),
        ({"since_ns": 41}, [41, 60, 61, 80, 81]),
        ({"until_ns": 41}, [0, 1, 20, 21, 40]),
        ({"since_ns": 21, "until_ns": 41, "cpus": {0}}, [40]),
        ({"since_ns": -5, "until_ns": 2**70}, [0, 1, 20, 21, 40, 41, 60, 61, 80, 81]),
        ({"until_ns": 0}, []),
    ],
)
def test_selection(selection: dict[str, Any], times: list[int]) -> None:
    assert [record.time_ns for record in records(merge(*MANY), **selection)] == times


def test_lost_records_are_reported_with_the_next_selected_one() -> None:
    first = [(1, entry(b"", 9)), (5, entry(b"", 2))]
    found = records(merge(first, [(2, entry(b"", 9)), (3, entry(b"", 2))], lost=4))
    assert [(r.time_ns, r.lost) for r in found] == [(3, 8), (5, 0)]
    assert (found.lost, found.lost_uncounted, found.count) == (8, False, 2)
    found = records(merge(first, lost=-1))
    assert [(r.time_ns, r.lost) for r in found] == [(5, -1)]
    assert (found.lost, found.lost_uncounted) == (0, True)


def test_a_broken_page_ends_it() -> None:
    found = records(merge([(1, entry(b"", 2))], broken=True))
    assert next(found).time_ns == 1
    with pytest.raises(ValueError, match="cpu 0, page at 0"):
        next(found)


def test_events_are_those_that_have_records() -> None:
    assert [event.name for event in records(merge(*MANY)).events()] == ["empty"]
    assert records(merge([])).events() == []
    assert [event.name for event in records(merge([(1, entry(b"", 2))], broken=True)).events()] == ["empty"]


def test_an_entry_that_is_too_short_is_left_out() -> None:
    assert list(records(merge([(1, b"1234")]))) == []
