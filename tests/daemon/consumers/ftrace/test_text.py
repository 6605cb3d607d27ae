"""`trace` and `trace_pipe` text: rows seen on a kernel, a slow model for everything else, hostile entries.

GOLDEN holds what Linux 6.12.117 printed (trace_clock counter) for payloads it had accepted, as in
tests/conformance/scripts/09_trace_text.txt. The model renders one entry from the kernel's rules alone and
shares nothing with the compiled renderer.
"""

import itertools
import struct
from collections.abc import Mapping, Sequence

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utracefs_protocol.declaration import Field, FieldKind, parse
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace._text import LINE_LIMIT, TextRenderer
from utracefsd.consumers.ftrace.text import (
    TextOptions,
    header,
    stats_text,
    timestamp_text,
)

Events = Mapping[int, tuple[bytes, Sequence[Field]]]

COMMS = {46: b"golden", 54: b"python3", 7: b"sixteen-bytes-ab"}
TGIDS = {46: 40, 54: None, 7: 0}


def entry(event_id: int, payload: bytes, pid: int = 46, flags: int = 0, preempt_count: int = 0) -> bytes:
    return struct.pack("<HBBi", event_id, flags, preempt_count, pid) + payload


def marker(text: bytes, ip: int = 0xFFFF) -> bytes:
    return entry(5, struct.pack("<Q", ip) + text + b"\0")


def renderer(
    events: Events, options: TextOptions | None = None, *, clock_is_ns: bool = False
) -> TextRenderer:
    return TextRenderer(
        events, lambda pid: COMMS.get(pid, b"<...>"), TGIDS.get, options or TextOptions(), clock_is_ns
    )


def one_event(declaration: bytes, event_id: int = 1041) -> Events:
    parsed = parse(declaration)
    return {event_id: (parsed.name, parsed.fields)}


COUNT = one_event(b"count u32 n")


def buffer_with(*records: tuple[int, int, bytes], nr_cpus: int = 2, size_kb: int = 64) -> RingBuffer:
    """records: (cpu, ts, entry)."""
    buffer = RingBuffer(nr_cpus, size_kb)
    for cpu, ts, data in records:
        assert buffer.append(cpu, ts, data)
    return buffer


# --- what the kernel printed ----------------------------------------------------------------------

GOLDEN = [
    # declaration without the name, payload, text after the name
    (b"s8 v", "00", b": v=(0)"),
    (b"s8 v", "01", b": v=(1)"),
    (b"s8 v", "ff", b": v='\xff'(255)"),
    (b"s8 v", "80", b": v=(128)"),
    (b"s8 v", "7f", b": v=(127)"),
    (b"u8 v", "00", b": v=(0)"),
    (b"u8 v", "ff", b": v='\xff'(255)"),
    (b"s16 v", "ffff", b": v=0xffff (65535)"),
    (b"s16 v", "0080", b": v=0x8000 (32768)"),
    (b"s16 v", "ff7f", b": v=0x7fff (32767)"),
    (b"u16 v", "ffff", b": v=0xffff (65535)"),
    (b"u16 v", "0700", b": v=0x7 (7)"),
    (b"s32 v", "ffffffff", b": v=0xffffffff (-1)"),
    (b"s32 v", "00000080", b": v=0x80000000 (-2147483648)"),
    (b"s32 v", "ffffff7f", b": v=0x7fffffff (2147483647)"),
    (b"s32 v", "00000000", b": v=0x0 (0)"),
    (b"u32 v", "ffffffff", b": v=0xffffffff (-1)"),
    (b"u32 v", "0a000000", b": v=0xa (10)"),
    (b"s64 v", "ffffffffffffffff", b": v=0xffffffffffffffff (-1)"),
    (b"s64 v", "0000000000000080", b": v=0x8000000000000000 (-9223372036854775808)"),
    (b"s64 v", "ffffffffffffff7f", b": v=0x7fffffffffffffff (9223372036854775807)"),
    (b"u64 v", "ffffffffffffffff", b": v=0xffffffffffffffff (-1)"),
    (b"u64 v", "0100000000000000", b": v=0x1 (1)"),
    (b"char v", "41", b": v='A'(65)"),
    (b"char v", "ff", b": v='\xff'(255)"),
    (b"char v", "00", b": v=(0)"),
    (b"unsigned char v", "41", b": v='A'(65)"),
    (b"unsigned char v", "ff", b": v='\xff'(255)"),
    (b"short v", "feff", b": v=0xfffe (65534)"),
    (b"unsigned short v", "feff", b": v=0xfffe (65534)"),
    (b"int v", "fdffffff", b": v=0xfffffffd (-3)"),
    (b"unsigned int v", "fdffffff", b": v=0xfffffffd (-3)"),
    (b"char[8] v", "6162630000000000", b": v=abc"),
    (b"char[8] v", "6162636465666768", b": v=abcdefgh"),
    (b"char[8] v", "0062636465666768", b": v="),
    (b"char[8] v", "610162ff63000000", b": v=a\x01b\xffc"),
    (b"char[8] v", "6122625c6325640a", b': v=a"b\\c%d\n'),
    (b"unsigned char[8] v", "6162630000000000", b": v=abc"),
    (b"unsigned char[8] v", "6162636465666768", b": v=abcdefgh"),
    (b"unsigned char[8] v", "0102030405060708", b": v=\x01\x02\x03\x04\x05\x06\x07\x08"),
    (b"char[1] v", "5a", b": v=Z"),
    (b"char[1] v", "00", b": v="),
    (b"struct foo v 8", "0102030405060708", b": v=0x807060504030201 (578437695752307201)"),
    (b"struct foo v 8", "0000000000000000", b": v=0x0 (0)"),
    (b"struct foo v 3", "010203", b": v=<INVALID-SIZE>"),
    (b"struct foo v 20", "0102030405060708090a0b0c0d0e0f1011121314", b": v=<INVALID-SIZE>"),
    (b"struct foo v 20", "6162636465666768696a6b6c6d6e6f7071727374", b": v=<INVALID-SIZE>"),
    (b"__data_loc char[] v", "0c00060068656c6c6f00", b": v=hello"),
    (b"__data_loc char[] v", "0c00010000", b": v="),
    (b"__data_loc char[] v", "00000000", b": v="),
    (b"__data_loc char[] v", "0c0008007409620a6e6cc300", b": v=t\tb\nnl\xc3"),
    (b"__rel_loc char[] v", "0000060068656c6c6f00", b": v=hello"),
    (b"__rel_loc char[] v", "0000010000", b": v="),
    (b"__rel_loc char[] v", "00000000", b": v="),
    (b"__rel_loc char[] v", "040006000000000068656c6c6f00", b": v=hello"),
    (b"__rel_loc char[] v", "000008007409620a6e6cc300", b": v=t\tb\nnl\xc3"),
    (b"__data_loc u8[] v", "0c00040001020304", b": v=01,02,03,04"),
    (b"__data_loc u8[] v", "00000000", b": v="),
    (
        b"__data_loc u8[] v",
        "0c001400000102030405060708090a0b0c0d0e0f10111213",
        b": v=00,01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f,10,11,12,13",
    ),
    (b"__data_loc u8[] v", "0c0005007465787400", b": v=74,65,78,74,00"),
    (b"__rel_loc u8[] v", "0000040001020304", b": v=01,02,03,04"),
    (b"__rel_loc u8[] v", "00000000", b": v="),
    (
        b"__rel_loc u8[] v",
        "00001400000102030405060708090a0b0c0d0e0f10111213",
        b": v=00,01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f,10,11,12,13",
    ),
    (b"__rel_loc u8[] v", "000005007465787400", b": v=74,65,78,74,00"),
    (b"__data_loc unsigned char[] v", "0c00040061626300", b": v=abc"),
    (b"__rel_loc unsigned char[] v", "0000040061626300", b": v=abc"),
    (b"__rel_loc u32[] v", "000008000100000002000000", b": v=01,00,00,00,02,00,00,00"),
    (b"__rel_loc u32[] v", "00000300010203", b": v=01,02,03"),
    (b"__rel_loc s16[] v", "00000400ffff0200", b": v=ff,ff,02,00"),
    (b"", "", b":No fields found"),
    (
        b"u32 a; s8 b; __rel_loc char[] s; u16 c; struct foo d 5; char[4] e; u64 f",
        "07000000f9130006000900010203040561626364630000000000000068656c6c6f00",
        b": a=0x7 (7) b='\xf9'(249) s=hello c=0x9 (9) d=<INVALID-SIZE> e=abcd f=0x63 (99)",
    ),
    (
        b"u32 a; s8 b; __rel_loc char[] s; u16 c; struct foo d 5; char[4] e; u64 f",
        "07000000f9130006000900010203040561620064630000000000000068656c6c6f00747261696c696e67",
        b": a=0x7 (7) b='\xf9'(249) s=hello c=0x9 (9) d=<INVALID-SIZE> e=ab f=0x63 (99)",
    ),
    (
        b"u32 common_pid; u32 a-b; u32 a.b",
        "010000000200000003000000",
        b": common_pid=0x1 (1) a-b=0x2 (2) a.b=0x3 (3)",
    ),
    # extra bytes behind the fields, strings in odd places (from tests/conformance/scripts/08_writes.txt)
    (b"u32 a; u32 b", "0100000002000000", b": a=0x1 (1) b=0x2 (2)"),
    (b"u32 a; u32 b", "0300000004000000", b": a=0x3 (3) b=0x4 (4)"),
    (b"u32 a; u32 b", "210000002c000000", b": a=0x21 (33) b=0x2c (44)"),
    (b"u32 a; u32 b", "050000000600000007000000", b": a=0x5 (5) b=0x6 (6)"),
    (b"u32 a; u32 b", "0b0000000c000000", b": a=0xb (11) b=0xc (12)"),
    (b"", "", b":No fields found"),
    (b"", "01000000", b":No fields found"),
    (b"u32 a; __rel_loc char[] s", "010000000000060068656c6c6f00", b": a=0x1 (1) s=hello"),
    (b"u32 a; __rel_loc char[] s", "0300000000000000", b": a=0x3 (3) s="),
    (b"u32 a; __rel_loc char[] s", "040000000000010000", b": a=0x4 (4) s="),
    (b"u32 a; __rel_loc char[] s", "070000000100050068656c6c6f00", b": a=0x7 (7) s=ello"),
    (b"u32 a; __rel_loc char[] s", "0900000000000a006869006a756e6b303000", b": a=0x9 (9) s=hi"),
    (b"u32 a; __rel_loc char[] s", "0c0000000600000068656c6c6f00", b": a=0xc (12) s="),
    (b"u32 a; __rel_loc char[] s", "0e0000000000060068656c6c6f006578747261", b": a=0xe (14) s=hello"),
    (b"u32 a; __rel_loc char[] s", "10000000040006000000000068656c6c6f00", b": a=0x10 (16) s=hello"),
    (b"u32 a; __rel_loc char[] s", "110000000000000000000000", b": a=0x11 (17) s="),
    (b"u32 a; __rel_loc char[] s", "120000000000000041414141", b": a=0x12 (18) s="),
    (b"__data_loc char[] s; u8 c", "0d000300016f6b00", b": s=ok c=(1)"),
    (b"__data_loc char[] s; u8 c", "0c00010000", b": s= c=(0)"),
    (b"__data_loc char[] s; u8 c", "05000300036f6b00", b": s= c=(3)"),
    (b"__data_loc char[] s; u8 c", "0000000004", b": s= c=(4)"),
    (b"__data_loc char[] s; u8 c", "0000040005", b": s=\x11\x04 c=(5)"),
    (b"__data_loc char[] s; u8 c", "10000000076f6b00", b": s= c=(7)"),
    (b"__data_loc char[] s; u8 c", "0e000200096f6b00", b": s=k c=(9)"),
    (b"__data_loc char[] s; u8 c", "0800050000", b": s=\x08 c=(0)"),
    (b"__rel_loc u8[] d", "0000040001020304", b": d=01,02,03,04"),
    (b"__rel_loc u8[] d", "00000000", b": d="),
    (b"__rel_loc u8[] d", "0400000001020304", b": d="),
    (b"__rel_loc u8[] d", "0100020001020304", b": d=02,03"),
    (b"__data_loc u8[] d", "0c00040001020304", b": d=01,02,03,04"),
    (b"__data_loc u8[] d", "00000000", b": d="),
    (b"__data_loc u8[] d", "00000c00", b": d=16,04,00,00,2e,00,00,00,00,00,0c,00"),
    (b"char[8] s; u16 v", "61626364656667680700", b": s=abcdefgh v=0x7 (7)"),
    (b"char[8] s; u16 v", "61626300646566670800", b": s=abc v=0x8 (8)"),
    (b"char[8] s; u16 v", "00616263646566670900", b": s= v=0x9 (9)"),
    (b"__rel_loc char[] s; __rel_loc char[] t", "0400030003000300616200636400", b": s=ab t=cd"),
    (b"__rel_loc char[] s; __rel_loc char[] t", "0000000000000000", b": s= t="),
]


@pytest.mark.parametrize(("fields", "payload", "body"), GOLDEN)
def test_body_as_the_kernel_prints_it(fields: bytes, payload: str, body: bytes) -> None:
    event_id = 0x416 if b"16,04" in body else 0x411
    events = one_event(b"p " + fields if fields else b"p", event_id)
    line = renderer(events).render_entry(0, 75, entry(event_id, bytes.fromhex(payload)))
    assert line == b"          golden-46      [000] .....           75: p" + body + b"\n"


BARE = TextOptions(context_info=False)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (TextOptions(), b"          golden-46      [000] .....            3: p_s8: v=(0)\n"),
        (TextOptions(fields=True), b"          golden-46      [000] .....            3: p_s8: v=(0)\n"),
        (TextOptions(verbose=True), b"          golden-46      [000] .....            3: p_s8: v=(0)\n"),
        (TextOptions(raw=True), b"46 0 3 type: 1039\n"),
        (TextOptions(hex=True), b"0000002e 00000000 0000000000000003 type: 1039\n\n"),
        (TextOptions(bin=True), struct.pack("<iiQ", 46, 0, 3) + b"type: 1039\n"),
        (TextOptions(bin=True, hex=True, raw=True), struct.pack("<iiQ", 46, 0, 3) + b"type: 1039\n"),
        (TextOptions(hex=True, raw=True), b"0000002e 00000000 0000000000000003 type: 1039\n\n"),
        (TextOptions(raw=True, fields=True), b"46 0 3 type: 1039\n"),
        (BARE, b"p_s8: v=(0)\n"),
        (TextOptions(context_info=False, raw=True), b"type: 1039\n"),
        (TextOptions(context_info=False, hex=True), b"type: 1039\n\n"),
        (TextOptions(context_info=False, latency_format=True), b"p_s8: v=(0)\n"),
        (TextOptions(irq_info=False), b"          golden-46      [000]             3: p_s8: v=(0)\n"),
        (
            TextOptions(record_tgid=True),
            b"          golden-46      (     40) [000] .....            3: p_s8: v=(0)\n",
        ),
        (
            TextOptions(record_tgid=True, irq_info=False),
            b"          golden-46      (     40) [000]             3: p_s8: v=(0)\n",
        ),
        (TextOptions(latency_format=True), b"  golden-46        0.....    3: p_s8: v=(0)\n"),
        (TextOptions(latency_format=True, irq_info=False), b"  golden-46        0.....    3: p_s8: v=(0)\n"),
        (
            TextOptions(latency_format=True, verbose=True),
            b"          golden      46   0 0 00000000 00000000 [0000000000000003] 3 (+0): p_s8: v=(0)\n",
        ),
    ],
)
def test_line_under_each_option(options: TextOptions, line: bytes) -> None:
    events = one_event(b"p_s8 s8 v", 1039)
    assert renderer(events, options).render_entry(0, 3, entry(1039, b"\0")) == line


@pytest.mark.parametrize(
    ("pid", "task"),
    [
        (46, b"          golden-46      "),
        (54, b"         python3-54      "),
        (7, b" sixteen-bytes-a-7       "),
        (99, b"           <...>-99      "),
        (0, b"          <idle>-0       "),
        (-1, b"           <XXX>--1      "),
        (12345678, b"           <...>-12345678 "),
    ],
)
def test_task_column(pid: int, task: bytes) -> None:
    line = renderer(COUNT).render_entry(3, 3, entry(1041, bytes(4), pid))
    assert line == task + b"[003] .....            3: count: n=0x0 (0)\n"


@pytest.mark.parametrize("pid", [54, 7, 99])
def test_unknown_thread_group(pid: int) -> None:
    line = renderer(COUNT, TextOptions(record_tgid=True)).render_entry(0, 3, entry(1041, bytes(4), pid))
    assert b" (-------) [000] ....." in line


@pytest.mark.parametrize(
    ("ts_ns", "text"),
    [
        (0, b"     0.000000: "),
        (999, b"     0.000000: "),
        (15370606999, b"    15.370606: "),
        (1319000644000, b"  1319.000644: "),
        (123456789012345678, b" 123456789.012345: "),
        (2**64 - 1, b" 18446744073.709551: "),
    ],
)
def test_time_in_nanoseconds(ts_ns: int, text: bytes) -> None:
    line = renderer(COUNT, clock_is_ns=True).render_entry(0, ts_ns, entry(1041, bytes(4)))
    assert line == b"          golden-46      [000] ....." + text + b"count: n=0x0 (0)\n"


def test_wide_cpu_and_count() -> None:
    line = renderer(COUNT).render_entry(1024, 10**15, entry(1041, bytes(4)))
    assert line == b"          golden-46      [1024] ..... 1000000000000000: count: n=0x0 (0)\n"


@pytest.mark.parametrize(
    ("flags", "preempt_count", "text"),
    [
        (0x00, 0x00, b"....."),
        (0x01, 0x00, b"d...."),
        (0x80, 0x00, b"b...."),
        (0x81, 0x00, b"D...."),
        (0x02, 0x00, b"X...."),
        (0x04, 0x00, b".n..."),
        (0x20, 0x00, b".p..."),
        (0x24, 0x00, b".N..."),
        (0x08, 0x00, b"..h.."),
        (0x10, 0x00, b"..s.."),
        (0x18, 0x00, b"..H.."),
        (0x40, 0x00, b"..z.."),
        (0x48, 0x00, b"..Z.."),
        (0x00, 0x01, b"...1."),
        (0x00, 0x1F, b"...f1"),
        (0x00, 0xA0, b"....a"),
    ],
)
def test_flag_characters(flags: int, preempt_count: int, text: bytes) -> None:
    line = renderer(COUNT).render_entry(0, 1, entry(1041, bytes(4), 46, flags, preempt_count))
    assert line[31:36] == text


# --- internal records -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "options", "body"),
    [
        (marker(b"mk\n"), BARE, b"tracing_mark_write: mk\n"),
        (marker(b"a\nb\n"), BARE, b"tracing_mark_write: a\nb\n"),
        (marker(b"cut\0 off\n"), BARE, b"tracing_mark_write: cut"),
        (marker(b"no NUL")[:-1], BARE, b"tracing_mark_write: no NUL"),
        (entry(5, bytes(7)), BARE, b"tracing_mark_write: <OVERFLOW>\n"),
        (marker(b"mk\n"), attrs.evolve(BARE, fields=True), b"UNKNOWN TYPE 5\n"),
        (marker(b"mk\n", 0xAB), attrs.evolve(BARE, raw=True), b"# ab mk\n"),
        (marker(b"mk\n"), attrs.evolve(BARE, hex=True), b"type: 5\n\n"),
        (marker(b"mk\n"), attrs.evolve(BARE, bin=True), b"type: 5\n"),
        (marker(b"mk\n"), TextOptions(printk_msg_only=True), b"mk\n"),
        (marker(b"mk\n"), TextOptions(printk_msg_only=True, hex=True), b"mk\n"),
        (entry(19, bytes.fromhex("34120000 0102ff00")), BARE, b"# 1234 buf: 01 02 ff 00\n"),
        (entry(19, bytes.fromhex("34120000")), BARE, b"# 1234 buf:\n"),
        (entry(19, bytes.fromhex("341200")), BARE, b"# <OVERFLOW>\n"),
        (entry(19, bytes.fromhex("34120000 01")), attrs.evolve(BARE, raw=True), b"# 1234 buf: 01\n"),
        (entry(19, bytes.fromhex("34120000 01")), attrs.evolve(BARE, fields=True), b"UNKNOWN TYPE 19\n"),
        (entry(4, bytes(4)), BARE, b"<stack trace>\n"),
        (entry(4, bytes(4)), attrs.evolve(BARE, raw=True), b"type: 4\n"),
        (entry(60000, bytes(4)), BARE, b"Unknown type 60000\n"),
        (entry(60000, bytes(4)), attrs.evolve(BARE, raw=True), b"60000 ?\n"),
        (entry(60000, bytes(4)), attrs.evolve(BARE, hex=True), b"\n"),
        (entry(60000, bytes(4)), attrs.evolve(BARE, bin=True), b""),
        (b"", BARE, b"Unknown type 0\n"),
        (b"\x11\x04", BARE, b"count: n=<OVERFLOW>\n"),
    ],
)
def test_records_that_are_no_user_events(data: bytes, options: TextOptions, body: bytes) -> None:
    assert renderer(COUNT, options).render_entry(0, 1, data) == body


# --- limits and hostile entries -------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("declaration", "payload", "body"),
    [
        (b"t u32 a; u32 b", "01000000 020000", b"t: a=0x1 (1) b=<OVERFLOW>\n"),
        (b"t u8 a", "", b"t: a=<OVERFLOW>\n"),
        (b"t u64 a", "01020304 050607", b"t: a=<OVERFLOW>\n"),
        (b"t char[16] a", "6162", b"t: a=<OVERFLOW>\n"),
        (
            b"t struct s a 2147483647; struct s b 2147483647; struct s c 12; u32 d",
            "",
            b"t: a=@ b=@ c=@ d=@\n",
        ),
        (b"t __rel_loc char[] a", "0000ffff", b"t: a=<OVERFLOW>\n"),
        (b"t __rel_loc char[] a", "ffff0000", b"t: a=<OVERFLOW>\n"),
        (b"t __rel_loc u8[] a", "01000100 41", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc char[] a", "0d000100 41", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc u8[] a", "ffffffff", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc char[] a", "0c00", b"t: a=<OVERFLOW>\n"),
        (b"t __data_loc char[] a; u8 b", "0000ff00 41", b"t: a=<OVERFLOW> b='A'(65)\n"),
    ],
)
def test_fields_beyond_the_entry(declaration: bytes, payload: str, body: bytes) -> None:
    data = entry(1041, bytes.fromhex(payload))
    expected = body.replace(b"=@", b"=<OVERFLOW>")
    assert renderer(one_event(declaration), BARE).render_entry(0, 1, data) == expected


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
    for options in (BARE, TextOptions(latency_format=True)):
        buffer = buffer_with(*((0, ts, entry(1041, bytes(4))) for ts in range(1, 6)))
        renderer(COUNT, options).render(buffer.cursor(consume=True), 1)
        assert buffer.entries() == 4


@pytest.mark.parametrize("max_bytes", [0, -1])
def test_max_bytes_is_at_least_one(max_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        renderer(COUNT).render(buffer_with().cursor(), max_bytes)


def test_cpus_are_merged_by_time() -> None:
    buffer = buffer_with(
        (1, 10, entry(1041, b"\1\0\0\0")),
        (0, 20, entry(1041, b"\2\0\0\0")),
        (1, 30, entry(1041, b"\3\0\0\0")),
    )
    assert renderer(COUNT).render(buffer.cursor(), 10000) == (
        b"          golden-46      [001] .....           10: count: n=0x1 (1)\n"
        b"          golden-46      [000] .....           20: count: n=0x2 (2)\n"
        b"          golden-46      [001] .....           30: count: n=0x3 (3)\n"
    )
    assert (
        renderer(COUNT, BARE).render(buffer.cursor(cpu=1), 10000) == b"count: n=0x1 (1)\ncount: n=0x3 (3)\n"
    )


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


def test_lost_line_stands_in_every_format() -> None:
    buffer, lost = overwritten_buffer()
    text = renderer(COUNT, TextOptions(raw=True, context_info=False)).render(
        buffer.cursor(consume=True), 100000
    )
    assert b"type: 1041\nCPU:0 [LOST %d EVENTS]\ntype: 1041\n" % lost in text


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
        attrs.evolve(BARE, annotate=False),
        attrs.evolve(BARE, raw=True),
        attrs.evolve(BARE, hex=True),
        attrs.evolve(BARE, bin=True),
    ],
)
def test_no_buffer_started_lines_with(options: TextOptions) -> None:
    buffer, _ = overwritten_buffer()
    assert b"#####" not in renderer(COUNT, options).render(buffer.cursor(), 100000)


def test_no_buffer_started_lines_while_nothing_was_overwritten() -> None:
    buffer = buffer_with((0, 1, entry(1041, bytes(4))), (1, 2, entry(1041, bytes(4))))
    assert b"#####" not in renderer(COUNT).render(buffer.cursor(), 100000)


def test_a_reader_that_was_overtaken_says_so_without_a_count() -> None:
    buffer = buffer_with(*((0, ts, entry(1041, bytes(60))) for ts in range(1, 40)), nr_cpus=1, size_kb=8)
    text = renderer(COUNT, attrs.evolve(BARE, annotate=False))
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
            COUNT, COMMS.__getitem__, TGIDS.get, TextOptions(latency_format=True), True, time_start=1_000_000
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
    options = TextOptions(latency_format=True, verbose=True)
    text = TextRenderer(COUNT, COMMS.__getitem__, TGIDS.get, options, True, time_start=15_352_098_000)
    assert text.render(buffer.cursor(), 10000) == (
        b"         python3      54   0 0 00000000 00000000 [00ea896e] 18.508ms (+0.434ms): count: n=0x0 (0)\n"
        b"         python3      54   1 0 00000000 00000001 [00ea8b20] 18.942ms (+0.000ms): count: n=0x0 (0)\n"
    )


def test_latency_format_of_other_clocks() -> None:
    options = TextOptions(latency_format=True)
    buffer = buffer_with((0, 3, entry(1041, bytes(4))), (0, 50000, entry(1041, bytes(4))))
    text = TextRenderer(COUNT, COMMS.__getitem__, TGIDS.get, options, False, time_start=1)
    assert text.render(buffer.cursor(), 10000) == (
        b"  golden-46        0.....    2: count: n=0x0 (0)\n"
        b"  golden-46        0..... 49999: count: n=0x0 (0)\n"
    )


def test_latency_format_with_a_clock_that_went_back() -> None:
    options = TextOptions(latency_format=True)
    text = TextRenderer(COUNT, COMMS.__getitem__, TGIDS.get, options, True, time_start=10**9)
    assert b"    0us : " in text.render_entry(0, 5, entry(1041, bytes(4)))


# --- what is asked, and how often -----------------------------------------------------------------


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
    text = TextRenderer(event, comm, TGIDS.get, TextOptions(), True)
    cursor = buffer.cursor()
    assert text.render(cursor, 300).count(b"before-46") == 5
    assert sorted(asked) == [("comm", 46), ("event", 1041)]
    comms[46] = b"after"
    assert text.render(cursor, 10000).count(b"after-46") == 5
    assert len(asked) == 4


def test_an_id_may_pass_to_another_event_between_calls() -> None:
    events = dict(one_event(b"old u32 a", 20))
    text = renderer(events, BARE)
    record = entry(20, struct.pack("<I", 65))
    assert text.render_entry(0, 1, record) == b"old: a=0x41 (65)\n"
    events.update(one_event(b"new u8 b; u16 c", 20))
    assert text.render_entry(0, 1, record) == b"new: b='A'(65) c=0x0 (0)\n"
    del events[20]
    assert text.render_entry(0, 1, record) == b"Unknown type 20\n"
    events.update(one_event(b"new u16 b", 20))
    assert text.render_entry(0, 1, record) == b"new: b=0x41 (65)\n"


def test_many_ids_and_pids_at_once() -> None:
    events = {event_id: (b"e%d" % event_id, parse(b"e u16 v").fields) for event_id in range(20, 820)}
    buffer = RingBuffer(1, 256)
    expected = []
    for ts in range(1600):
        event_id, pid = 20 + ts % 800, 100 + ts % 170
        buffer.append(0, ts, entry(event_id, struct.pack("<H", ts), pid))
        task = b"%16s-%-7d " % (b"t%d" % pid, pid)
        expected.append(task + b"[000] ..... %12d: e%d: v=0x%x (%d)\n" % (ts, event_id, ts, ts))
    text = TextRenderer(events, lambda pid: b"t%d" % pid, TGIDS.get, TextOptions(), False)
    assert text.render(buffer.cursor(), 10**6) == b"".join(expected)


def test_what_a_callback_raises_comes_out_and_the_renderer_goes_on() -> None:
    def comm(pid: int) -> bytes:
        if pid == 13:
            raise RuntimeError("no name")
        return b"fine"

    buffer = buffer_with((0, 1, entry(1041, bytes(4), 13)), (0, 2, entry(1041, bytes(4), 14)))
    text = TextRenderer(COUNT, comm, TGIDS.get, TextOptions(), False)
    cursor = buffer.cursor()
    with pytest.raises(RuntimeError, match="no name"):
        text.render(cursor, 1000)
    assert (
        text.render(cursor, 1000) == b"            fine-14      [000] .....            2: count: n=0x0 (0)\n"
    )


# --- the model ------------------------------------------------------------------------------------


def model_value(field: Field, data: bytes) -> bytes:
    raw = data[field.offset : field.offset + field.size]
    if len(raw) < field.size:
        return b"<OVERFLOW>"
    if field.type.startswith((b"__data_loc ", b"__rel_loc ")):
        word = int.from_bytes(raw, "little")
        start, length = word % 65536, word // 65536
        if field.type.startswith(b"__rel_loc "):
            start += field.offset + field.size
        if start + length > len(data):
            return b"<OVERFLOW>"
        dynamic = data[start : start + length]
        return dynamic.split(b"\0")[0] if b"char" in field.type else dynamic.hex(",").encode()
    if b"[" in field.type:
        return raw.split(b"\0")[0]
    number = int.from_bytes(raw, "little")
    if field.size == 1:
        shown = b"'%b'" % raw if 32 <= number <= 126 or number >= 160 else b""
        return shown + b"(%d)" % number
    if field.size == 2:
        return b"0x%x (%d)" % (number, number)
    if field.size in (4, 8):
        return b"0x%x (%d)" % (number, int.from_bytes(raw, "little", signed=True))
    return b"<INVALID-SIZE>"


def model_line(
    events: Events, options: TextOptions, clock_is_ns: bool, cpu: int, ts: int, data: bytes
) -> bytes:
    event_id, flags, preempt_count, pid = struct.unpack("<HBBi", data[:8].ljust(8, b"\0"))
    context = b""
    if options.bin:
        context, body = struct.pack("<iiQ", pid, cpu, ts), b"type: %d\n" % event_id
    elif options.hex:
        context, body = b"%08x %08x %016x " % (pid % 2**32, cpu, ts), b"type: %d\n\n" % event_id
    elif options.raw:
        context, body = b"%d %d %d " % (pid, cpu, ts), b"type: %d\n" % event_id
    else:
        comm = {0: b"<idle>"}.get(pid, COMMS.get(pid, b"<...>")[:15]) if pid >= 0 else b"<XXX>"
        context = comm.rjust(16) + b"-" + str(pid).encode().ljust(7) + b" "
        if options.record_tgid:
            tgid = TGIDS.get(pid) if pid > 0 else None
            context += b"(" + (str(tgid).encode().rjust(7) if tgid else b"-" * 7) + b") "
        context += b"[%03d] " % cpu
        if options.irq_info:
            context += model_flags(flags, preempt_count)
        if clock_is_ns:
            context += b" %5d.%06d: " % divmod(ts // 1000, 10**6)
        else:
            context += b" %12d: " % ts
        name, fields = events[event_id]
        if fields:
            body = name + b":" + b"".join(b" " + f.name + b"=" + model_value(f, data) for f in fields) + b"\n"
        else:
            body = name + b":No fields found\n"
    text = (context if options.context_info else b"") + body
    return text if len(text) <= LINE_LIMIT else b"[LINE TOO BIG]\n"


def model_flags(flags: int, preempt_count: int) -> bytes:
    irqs = (
        "D"
        if flags & 0x81 == 0x81
        else "d"
        if flags & 1
        else "b"
        if flags & 0x80
        else "X"
        if flags & 2
        else "."
    )
    resched = {0x24: "N", 0x04: "n", 0x20: "p", 0: "."}[flags & 0x24]
    interrupt = {0x48: "Z", 0x58: "Z", 0x40: "z", 0x50: "z", 0x18: "H", 0x08: "h", 0x10: "s", 0: "."}[
        flags & 0x58
    ]
    counts = [f"{n:x}" if n else "." for n in (preempt_count % 16, preempt_count // 16)]
    return (irqs + resched + interrupt + "".join(counts)).encode()


TYPES = [
    *(b"u8 x", b"s8 x", b"char x", b"unsigned char x", b"u16 x", b"short x", b"s16 x", b"unsigned short x"),
    *(
        b"u32 x",
        b"int x",
        b"s32 x",
        b"unsigned int x",
        b"u64 x",
        b"s64 x",
        b"char[7] x",
        b"unsigned char[3] x",
    ),
    *(
        b"struct a x 1",
        b"struct a x 2",
        b"struct a x 4",
        b"struct a x 8",
        b"struct a x 5",
        b"struct a x 4000",
    ),
    *(b"__data_loc char[] x", b"__rel_loc char[] x", b"__rel_loc unsigned char[] x", b"__data_loc u8[] x"),
    *(b"__rel_loc u8[] x", b"__rel_loc u32[] x"),
]
DECLARATIONS = st.lists(st.sampled_from(TYPES), max_size=8).map(lambda fields: b"; ".join(fields))
OPTIONS = st.builds(
    TextOptions,
    raw=st.booleans(),
    hex=st.booleans(),
    bin=st.booleans(),
    fields=st.booleans(),
    verbose=st.booleans(),
    context_info=st.booleans(),
    irq_info=st.booleans(),
    record_tgid=st.booleans(),
)
# Bytes that make loc words point near, and text that is mostly text.
BYTES = st.one_of(st.sampled_from(b"\0\0\0\1\2\3\4\10\14\20abc\n\x9f\xa0\xff"), st.integers(0, 255))
PAYLOADS = st.one_of(st.lists(BYTES, max_size=60).map(bytes), st.binary(min_size=4000, max_size=4080))


@st.composite
def entries_of(draw: st.DrawFn) -> tuple[Events, bytes]:
    """An event and an entry of it whose loc words point into the entry more often than by chance."""
    fields = draw(DECLARATIONS)
    event_id = draw(st.integers(20, 65535))
    events = one_event(b"e " + fields if fields else b"e", event_id)
    pid = draw(st.sampled_from([0, -1, -(2**31), 46, 54, 7, 99, 2**31 - 1]))
    data = bytearray(
        entry(event_id, draw(PAYLOADS), pid, draw(st.integers(0, 255)), draw(st.integers(0, 255)))
    )
    for field in events[event_id][1]:
        if (
            field.kind in (FieldKind.DATA_LOC, FieldKind.REL_LOC)
            and field.offset + 4 <= len(data)
            and draw(st.booleans())
        ):
            start = draw(st.integers(0, len(data)))
            length = draw(st.integers(0, len(data) - start + 1))
            struct.pack_into("<HH", data, field.offset, start, length)
    return events, bytes(data)


@settings(max_examples=400, deadline=None)
@given(
    entries_of(),
    OPTIONS,
    st.booleans(),
    st.integers(0, 8191),
    st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 10**10)),
)
def test_renderer_against_model(
    made: tuple[Events, bytes], options: TextOptions, clock_is_ns: bool, cpu: int, ts: int
) -> None:
    events, data = made
    expected = model_line(events, options, clock_is_ns, cpu, ts, data)
    assert renderer(events, options, clock_is_ns=clock_is_ns).render_entry(cpu, ts, data) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(entries_of(), max_size=8), OPTIONS, st.integers(1, 500), st.booleans(), st.data())
def test_render_is_the_entries_one_after_the_other(
    made: list[tuple[Events, bytes]], options: TextOptions, max_bytes: int, consume: bool, data: st.DataObject
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


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), OPTIONS, st.booleans(), st.booleans())
def test_any_bytes_make_some_text(
    data: bytes, options: TextOptions, latency: bool, clock_is_ns: bool
) -> None:
    events = {
        event_id: (b"e", parse(b"e u16 a; __data_loc char[] s; __rel_loc u8[] d").fields)
        for event_id in range(256)
    }
    text = renderer(events, attrs.evolve(options, latency_format=latency), clock_is_ns=clock_is_ns)
    for event_id in (None, 4, 5, 19, 30):
        hostile = data if event_id is None else struct.pack("<H", event_id) + data[2:]
        assert len(text.render_entry(0, 1, hostile)) <= LINE_LIMIT


# --- headers and small texts ----------------------------------------------------------------------

ENTRIES = b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 158/600   #P:2\n#\n"
HEADERS = [
    (
        TextOptions(),
        ENTRIES
        + b"#                                _-----=> irqs-off/BH-disabled\n"
        + b"#                               / _----=> need-resched\n"
        + b"#                              | / _---=> hardirq/softirq\n"
        + b"#                              || / _--=> preempt-depth\n"
        + b"#                              ||| / _-=> migrate-disable\n"
        + b"#                              |||| /     delay\n"
        + b"#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n"
        + b"#              | |         |   |||||     |         |\n",
    ),
    (
        TextOptions(irq_info=False),
        ENTRIES
        + b"#           TASK-PID     CPU#     TIMESTAMP  FUNCTION\n"
        + b"#              | |         |         |         |\n",
    ),
    (
        TextOptions(record_tgid=True),
        ENTRIES
        + b"#                                          _-----=> irqs-off/BH-disabled\n"
        + b"#                                         / _----=> need-resched\n"
        + b"#                                        | / _---=> hardirq/softirq\n"
        + b"#                                        || / _--=> preempt-depth\n"
        + b"#                                        ||| / _-=> migrate-disable\n"
        + b"#                                        |||| /     delay\n"
        + b"#           TASK-PID       TGID    CPU#  |||||  TIMESTAMP  FUNCTION\n"
        + b"#              | |           |       |   |||||     |         |\n",
    ),
    (
        TextOptions(record_tgid=True, irq_info=False),
        ENTRIES
        + b"#           TASK-PID       TGID    CPU#     TIMESTAMP  FUNCTION\n"
        + b"#              | |           |       |         |         |\n",
    ),
    (TextOptions(context_info=False), b"# tracer: nop\n#\n"),
    (TextOptions(context_info=False, latency_format=True), b"# tracer: nop\n#\n"),
    (TextOptions(verbose=True), b"# tracer: nop\n#\n"),
]
PREAMBLE = (
    b"# tracer: nop\n#\n"
    b"# nop latency trace v1.1.5 on 6.12.117\n"
    b"# --------------------------------------------------------------------\n"
    b"# latency: 0 us, #158/600, CPU#0 | (M:desktop VP:0, KP:0, SP:0 HP:0 #P:2)\n"
    b"#    -----------------\n"
    b"#    | task: -0 (uid:0 nice:0 policy:0 rt_prio:0)\n"
    b"#    -----------------\n"
    b"#\n"
)
LATENCY_COLUMNS = (
    b"#                    _------=> CPU#            \n"
    b"#                   / _-----=> irqs-off/BH-disabled\n"
    b"#                  | / _----=> need-resched    \n"
    b"#                  || / _---=> hardirq/softirq \n"
    b"#                  ||| / _--=> preempt-depth   \n"
    b"#                  |||| / _-=> migrate-disable \n"
    b"#                  ||||| /     delay           \n"
    b"#  cmd     pid     |||||| time  |   caller     \n"
    b"#     \\   /        ||||||  \\    |    /       \n"
)
HEADERS += [
    (TextOptions(latency_format=True), PREAMBLE + LATENCY_COLUMNS),
    (TextOptions(latency_format=True, verbose=True), PREAMBLE),
]


@pytest.mark.parametrize(("options", "text"), HEADERS)
def test_header(options: TextOptions, text: bytes) -> None:
    assert header(options, entries=158, overruns=442, online_cpus=2, kernel_release="6.12.117") == text
    for ignored in ("raw", "hex", "bin", "fields"):
        changed = attrs.evolve(options, **{ignored: True})
        assert header(changed, entries=158, overruns=442, online_cpus=2, kernel_release=b"6.12.117") == text


def test_header_of_an_empty_buffer() -> None:
    assert header(TextOptions(), entries=0, overruns=0, online_cpus=8).startswith(
        b"# tracer: nop\n#\n# entries-in-buffer/entries-written: 0/0   #P:8\n#\n#        "
    )
    assert (
        header(TextOptions(latency_format=True), entries=0, overruns=0, online_cpus=8)
        == b"# tracer: nop\n#\n"
    )


def test_options_by_their_names() -> None:
    assert TextOptions.from_names({"context-info", "irq-info", "annotate", "trace_printk"}) == TextOptions()
    assert TextOptions.from_names(()) == TextOptions(context_info=False, irq_info=False, annotate=False)
    every = [field.name.replace("_", "-") for field in attrs.fields(TextOptions)] + ["trace_printk"]
    assert TextOptions.from_names(every) == TextOptions(
        **{field.name: True for field in attrs.fields(TextOptions)}
    )
    assert not TextOptions.from_names({"printk-msg-only"}).printk_msg_only


@attrs.frozen
class Counts:
    entries: int = 158
    overrun: int = 442
    commit_overrun: int = 0
    bytes: int = 10208
    oldest_ts: int = 1393339859123
    dropped_events: int = 3
    read_events: int = 5


def test_stats() -> None:
    assert stats_text(Counts(), 1393341377999, clock_is_ns=True) == (
        b"entries: 158\noverrun: 442\ncommit overrun: 0\nbytes: 10208\n"
        b"oldest event ts:  1393.339859\nnow ts:  1393.341377\ndropped events: 3\nread events: 5\n"
    )
    assert b"\noldest event ts: 3\nnow ts: 77\n" in stats_text(Counts(oldest_ts=3), 77, clock_is_ns=False)
    assert timestamp_text(0, clock_is_ns=True) == b"    0.000000"


def test_stats_of_a_real_buffer() -> None:
    buffer = buffer_with((0, 3, entry(1041, bytes(4))))
    assert stats_text(buffer.stats(0), 4, clock_is_ns=False).startswith(b"entries: 1\noverrun: 0\n")
