"""`trace` and `trace_pipe` text: lines seen on a kernel, a slow model for everything else, hostile entries.

The lines under each option are what Linux 6.12.117 printed (trace_clock counter), as in
tests/conformance/6.12.117/09_trace_text.txt. The bodies of events are tested in test_body.py.
"""

import itertools
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.text.text_model import (
    BARE,
    COMMS,
    OPTIONS,
    TGIDS,
    Events,
    entries_of,
    entry,
    model_line,
    one_event,
    renderer,
    text_options,
)
from utracefs_protocol.events.declaration import Field, parse
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.text._text import LINE_LIMIT, TextRenderer


def marker(text: bytes, ip: int = 0xFFFF) -> bytes:
    return entry(5, struct.pack("<Q", ip) + text + b"\0")


COUNT = one_event(b"count u32 n")


def buffer_with(*records: tuple[int, int, bytes], nr_cpus: int = 2, size_kb: int = 64) -> RingBuffer:
    """records: (cpu, ts, entry)."""
    buffer = RingBuffer(nr_cpus, size_kb)
    for cpu, ts, data in records:
        assert buffer.append(cpu, ts, data)
    return buffer


# --- what the kernel printed ----------------------------------------------------------------------


# --- internal records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "options", "body"),
    [
        (marker(b"mk\n"), BARE, b"tracing_mark_write: mk\n"),
        (marker(b"a\nb\n"), BARE, b"tracing_mark_write: a\nb\n"),
        (marker(b"cut\0 off\n"), BARE, b"tracing_mark_write: cut"),
        (marker(b"no NUL")[:-1], BARE, b"tracing_mark_write: no NUL"),
        (entry(5, bytes(7)), BARE, b"tracing_mark_write: <OVERFLOW>\n"),
        (marker(b"mk\n"), BARE | {"fields"}, b"UNKNOWN TYPE 5\n"),
        (marker(b"mk\n", 0xAB), BARE | {"raw"}, b"# ab mk\n"),
        (marker(b"mk\n"), BARE | {"hex"}, b"type: 5\n\n"),
        (marker(b"mk\n"), BARE | {"bin"}, b"type: 5\n"),
        (marker(b"mk\n"), text_options(printk_msg_only=True), b"mk\n"),
        (marker(b"mk\n"), text_options(printk_msg_only=True, hex=True), b"mk\n"),
        (entry(19, bytes.fromhex("34120000 0102ff00")), BARE, b"# 1234 buf: 01 02 ff 00\n"),
        (entry(19, bytes.fromhex("34120000")), BARE, b"# 1234 buf:\n"),
        (entry(19, bytes.fromhex("341200")), BARE, b"# <OVERFLOW>\n"),
        (entry(19, bytes.fromhex("34120000 01")), BARE | {"raw"}, b"# 1234 buf: 01\n"),
        (entry(19, bytes.fromhex("34120000 01")), BARE | {"fields"}, b"UNKNOWN TYPE 19\n"),
        (entry(4, bytes(4)), BARE, b"<stack trace>\n"),
        (entry(4, bytes(4)), BARE | {"raw"}, b"type: 4\n"),
        (entry(60000, bytes(4)), BARE, b"Unknown type 60000\n"),
        (entry(60000, bytes(4)), BARE | {"raw"}, b"60000 ?\n"),
        (entry(60000, bytes(4)), BARE | {"hex"}, b"\n"),
        (entry(60000, bytes(4)), BARE | {"bin"}, b""),
        (b"", BARE, b"Unknown type 0\n"),
        (b"\x11\x04", BARE, b"count: n=<OVERFLOW>\n"),
    ],
)
def test_records_that_are_no_user_events(data: bytes, options: frozenset[str], body: bytes) -> None:
    assert renderer(COUNT, options).render_entry(0, 1, data) == body


# --- the longest line -----------------------------------------------------------------------------


def test_line_too_big() -> None:
    events = one_event(b"big __rel_loc u8[] d")
    context = len(b"          golden-46      [000] .....            1: big: d=\n")
    fits = (LINE_LIMIT - context + 1) // 3
    for length in (fits - 1, fits, fits + 1, 4000, 65535):
        data = entry(1041, struct.pack("<HH", 0, length) + bytes(length))
        line = renderer(events).render_entry(0, 1, data)
        if length <= fits:
            assert len(line) == context + 3 * length - 1 <= LINE_LIMIT
            assert line.endswith(b"d=" + b",".join([b"00"] * length) + b"\n")
        else:
            assert line == b"[LINE TOO BIG]\n"


def test_longest_string_that_fits() -> None:
    events = one_event(b"big __rel_loc char[] s")
    room = LINE_LIMIT - len(b"big: s=\n")
    for length in (room, room + 1):
        data = entry(1041, struct.pack("<HH", 0, length) + b"x" * length)
        line = renderer(events, BARE).render_entry(0, 1, data)
        assert line == (b"big: s=" + b"x" * length + b"\n" if length == room else b"[LINE TOO BIG]\n")


def test_line_too_big_replaces_only_itself() -> None:
    events = {**one_event(b"big __rel_loc u8[] d", 20), **one_event(b"small u8 v", 21)}
    big = entry(20, struct.pack("<HH", 0, 3000) + bytes(3000))
    buffer = buffer_with((0, 1, entry(21, b"\1")), (0, 2, big), (0, 3, entry(21, b"\2")))
    assert renderer(events, BARE).render(buffer.cursor(), 100000) == (
        b"small: v=(1)\n[LINE TOO BIG]\nsmall: v=(2)\n"
    )


# --- render: many records -------------------------------------------------------------------------


def test_render_stops_after_the_record_that_reaches_max_bytes() -> None:
    buffer = buffer_with(*((0, ts, entry(1041, struct.pack("<I", ts))) for ts in range(1, 6)))
    lines = [b"count: n=0x%x (%d)\n" % (n, n) for n in range(1, 6)]
    for consume in (False, True):
        text = renderer(COUNT, BARE)
        cursor = buffer.cursor(consume=consume)
        assert text.render(cursor, 1) == lines[0]
        assert text.render(cursor, len(lines[1])) == lines[1]
        assert text.render(cursor, len(lines[2]) + 1) == lines[2] + lines[3]
        assert text.render(cursor, 1000) == lines[4]
        assert text.render(cursor, 1000) == b""
        assert buffer.entries() == (0 if consume else 5)


def test_consuming_takes_no_more_than_it_prints() -> None:
    for options in (BARE, text_options(latency_format=True)):
        buffer = buffer_with(*((0, ts, entry(1041, bytes(4))) for ts in range(1, 6)))
        renderer(COUNT, options).render(buffer.cursor(consume=True), 1)
        assert buffer.entries() == 4


def overwritten_buffer() -> tuple[RingBuffer, int]:
    """cpu 1 holds two old records, cpu 0 the newest of 600; and how many cpu 0 lost."""
    buffer = buffer_with((1, 1, entry(1041, bytes(4))), (1, 2, entry(1041, bytes(4))), size_kb=8)
    for ts in range(3, 603):
        buffer.append(0, ts, entry(1041, bytes(60)))
    lost = buffer.overruns(0)
    assert lost > 0
    return buffer, lost


def test_lost_line_of_consuming_readers() -> None:
    buffer, lost = overwritten_buffer()
    text = renderer(COUNT, BARE).render(buffer.cursor(consume=True), 100000)
    lines = text.splitlines(keepends=True)
    assert lines[:4] == [b"count: n=0x0 (0)\n"] * 2 + [
        b"CPU:0 [LOST %d EVENTS]\n" % lost,
        b"count: n=0x0 (0)\n",
    ]
    assert sum(b"LOST" in line for line in lines) == 1
    assert b"#####" not in text


def test_buffer_started_lines() -> None:
    buffer, _ = overwritten_buffer()
    text = renderer(COUNT, BARE)
    cursor = buffer.cursor()
    assert text.render(cursor, 30) == b"count: n=0x0 (0)\n" * 2
    rest = text.render(cursor, 100000)
    assert rest.startswith(b"##### CPU 0 buffer started ####\ncount: n=0x0 (0)\n")
    assert rest.count(b"buffer started") == 1
    assert b"LOST" not in rest


@pytest.mark.parametrize(
    "options",
    [
        BARE - {"annotate"},
        BARE | {"raw"},
        BARE | {"hex"},
        BARE | {"bin"},
    ],
)
def test_no_buffer_started_lines_with(options: frozenset[str]) -> None:
    buffer, _ = overwritten_buffer()
    assert b"#####" not in renderer(COUNT, options).render(buffer.cursor(), 100000)


def test_no_buffer_started_lines_while_nothing_was_overwritten() -> None:
    buffer = buffer_with((0, 1, entry(1041, bytes(4))), (1, 2, entry(1041, bytes(4))))
    assert b"#####" not in renderer(COUNT).render(buffer.cursor(), 100000)


def test_a_reader_that_was_overtaken_says_so_without_a_count() -> None:
    buffer = buffer_with(*((0, ts, entry(1041, bytes(60))) for ts in range(1, 40)), nr_cpus=1, size_kb=8)
    text = renderer(COUNT, BARE - {"annotate"})
    cursor = buffer.cursor()
    assert text.render(cursor, 1) == b"count: n=0x0 (0)\n"
    for ts in range(40, 700):
        buffer.append(0, ts, entry(1041, bytes(60)))
    rest = text.render(cursor, 100000)
    assert rest.count(b"CPU:0 [LOST EVENTS]\n") == 1
    assert rest.replace(b"CPU:0 [LOST EVENTS]\n", b"").replace(b"count: n=0x0 (0)\n", b"") == b""


GAPS_NS = [5_000, 10_999, 11_000, 101_000, 1_001_000, 10_001_000, 100_001_000, 1_000_001_000, 0]


def test_latency_format_marks_the_gap_to_the_next_record() -> None:
    times = list(itertools.accumulate(GAPS_NS, initial=2_000_000))[:-1]
    for consume in (False, True):
        buffer = buffer_with(*((0, ts, entry(1041, bytes(4), 54)) for ts in times))
        text = TextRenderer(
            COUNT, COMMS.__getitem__, TGIDS.get, text_options(latency_format=True), True, time_start=1_000_000
        )
        cursor = buffer.cursor(consume=consume)
        pieces = list(iter(lambda: text.render(cursor, 60), b""))  # noqa: B023
        assert b"".join(pieces) == b"".join(
            b" python3-54        0..... %4dus%c: count: n=0x0 (0)\n" % ((ts - 1_000_000) // 1000, mark)
            for ts, mark in zip(times, b"  +!#*@$ ", strict=True)
        )


def test_latency_format_with_verbose() -> None:
    buffer = buffer_with(
        (0, 15_370_606_000, entry(1041, bytes(4), 54)), (1, 15_371_040_000, entry(1041, bytes(4), 54))
    )
    options = text_options(latency_format=True, verbose=True)
    text = TextRenderer(COUNT, COMMS.__getitem__, TGIDS.get, options, True, time_start=15_352_098_000)
    assert text.render(buffer.cursor(), 10000) == (
        b"         python3      54   0 0 00000000 00000000 [00ea896e] 18.508ms (+0.434ms): count: n=0x0 (0)\n"
        b"         python3      54   1 0 00000000 00000001 [00ea8b20] 18.942ms (+0.000ms): count: n=0x0 (0)\n"
    )


def test_latency_format_of_other_clocks() -> None:
    options = text_options(latency_format=True)
    buffer = buffer_with((0, 3, entry(1041, bytes(4))), (0, 50000, entry(1041, bytes(4))))
    text = TextRenderer(COUNT, COMMS.__getitem__, TGIDS.get, options, False, time_start=1)
    assert text.render(buffer.cursor(), 10000) == (
        b"  golden-46        0.....    2: count: n=0x0 (0)\n"
        b"  golden-46        0..... 49999: count: n=0x0 (0)\n"
    )


def test_latency_format_with_a_clock_that_went_back() -> None:
    options = text_options(latency_format=True)
    text = TextRenderer(COUNT, COMMS.__getitem__, TGIDS.get, options, True, time_start=10**9)
    assert b"    0us : " in text.render_entry(0, 5, entry(1041, bytes(4)))


# --- calls of comm, tgid and the event table -----------------------------------------------------------


def test_names_are_looked_up_once_per_call_and_again_in_the_next() -> None:
    comms = {46: b"before"}
    asked: list[tuple[str, int]] = []

    def event(event_id: int) -> tuple[bytes, tuple[Field, ...]]:
        asked.append(("event", event_id))
        return b"count", parse(b"count u32 n").fields

    def comm(pid: int) -> bytes:
        asked.append(("comm", pid))
        return comms[pid]

    buffer = buffer_with(*((0, ts, entry(1041, bytes(4))) for ts in range(10)))
    text = TextRenderer(event, comm, TGIDS.get, text_options(), True)
    cursor = buffer.cursor()
    assert text.render(cursor, 300).count(b"before-46") == 5
    assert sorted(asked) == [("comm", 46), ("event", 1041)]
    comms[46] = b"after"
    assert text.render(cursor, 10000).count(b"after-46") == 5
    assert len(asked) == 4


def test_many_ids_and_pids_at_once() -> None:
    events = {event_id: (b"e%d" % event_id, parse(b"e u16 v").fields) for event_id in range(20, 820)}
    buffer = RingBuffer(1, 256)
    expected = []
    for ts in range(1600):
        event_id, pid = 20 + ts % 800, 100 + ts % 170
        buffer.append(0, ts, entry(event_id, struct.pack("<H", ts), pid))
        task = b"%16s-%-7d " % (b"t%d" % pid, pid)
        expected.append(task + b"[000] ..... %12d: e%d: v=0x%x (%d)\n" % (ts, event_id, ts, ts))
    text = TextRenderer(events, lambda pid: b"t%d" % pid, TGIDS.get, text_options(), False)
    assert text.render(buffer.cursor(), 10**6) == b"".join(expected)


def test_a_callbacks_exception_is_raised_and_the_renderer_continues() -> None:
    def comm(pid: int) -> bytes:
        if pid == 13:
            raise RuntimeError("no name")
        return b"fine"

    buffer = buffer_with((0, 1, entry(1041, bytes(4), 13)), (0, 2, entry(1041, bytes(4), 14)))
    text = TextRenderer(COUNT, comm, TGIDS.get, text_options(), False)
    cursor = buffer.cursor()
    with pytest.raises(RuntimeError, match="no name"):
        text.render(cursor, 1000)
    assert (
        text.render(cursor, 1000) == b"            fine-14      [000] .....            2: count: n=0x0 (0)\n"
    )


# --- against the model ----------------------------------------------------------------------------


@settings(max_examples=400)
@given(
    entries_of(),
    OPTIONS,
    st.booleans(),
    st.integers(0, 8191),
    st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 10**10)),
)
def test_renderer_against_model(
    made: tuple[Events, bytes], options: frozenset[str], clock_is_ns: bool, cpu: int, ts: int
) -> None:
    events, data = made
    expected = model_line(events, options, clock_is_ns, cpu, ts, data)
    assert renderer(events, options, clock_is_ns=clock_is_ns).render_entry(cpu, ts, data) == expected


@settings(max_examples=100)
@given(st.lists(entries_of(), max_size=8), OPTIONS, st.integers(1, 500), st.booleans(), st.data())
def test_render_is_the_entries_one_after_the_other(
    made: list[tuple[Events, bytes]],
    options: frozenset[str],
    max_bytes: int,
    consume: bool,
    data: st.DataObject,
) -> None:
    """Through a real ring buffer, in pieces of any size: entries are padded, but the text is the model's."""
    events: dict[int, tuple[bytes, Sequence[Field]]] = {}
    buffer = RingBuffer(2, 64)
    expected = []
    for ts, (event, raw) in enumerate(made):
        (event_id,) = event
        if event_id in events or len(raw) > buffer.max_entry_size:
            continue
        events.update(event)
        cpu = data.draw(st.integers(0, 1))
        assert buffer.append(cpu, ts, raw)
        expected.append((cpu, ts))
    text = renderer(events, options)
    cursor = buffer.cursor(consume=consume)
    stored = [record[2] for record in buffer.cursor()]
    pieces = list(iter(lambda: text.render(cursor, max_bytes), b""))
    assert b"".join(pieces) == b"".join(
        model_line(events, options, False, cpu, ts, as_stored)
        for (cpu, ts), as_stored in zip(expected, stored, strict=True)
    )


@settings(max_examples=200)
@given(st.binary(max_size=80), OPTIONS, st.booleans(), st.booleans())
def test_any_bytes_make_some_text(
    data: bytes, options: frozenset[str], latency: bool, clock_is_ns: bool
) -> None:
    events = {
        event_id: (b"e", parse(b"e u16 a; __data_loc char[] s; __rel_loc u8[] d").fields)
        for event_id in range(256)
    }
    text = renderer(
        events,
        options | ({"latency-format"} if latency else set()),
        clock_is_ns=clock_is_ns,
    )
    for event_id in (None, 4, 5, 19, 30):
        hostile = data if event_id is None else struct.pack("<H", event_id) + data[2:]
        assert len(text.render_entry(0, 1, hostile)) <= LINE_LIMIT
