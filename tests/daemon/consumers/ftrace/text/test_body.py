"""The bodies of events: where a kernel prints other text, the model, and hostile entries.

tests/conformance/6.12.117 has what a kernel printed for each kind of field: 08_writes.txt, 09_trace_text.txt.
"""

import struct

import pytest

from tests.daemon.consumers.ftrace.text.text_model import (
    BARE,
    TYPES,
    entry,
    model_value,
    one_event,
    renderer,
)


@pytest.mark.parametrize(
    ("field", "payload", "shown"),
    [
        # A kernel prints `x=0x3ff8000000000000 (4609434218413702656)`.
        (b"struct double x 8", struct.pack("<d", 1.5), b"1.5"),
        (b"struct double x 8", struct.pack("<d", -0.0), b"-0.0"),
        (b"struct double x 8", struct.pack("<d", 1e300), b"1e+300"),
        (b"struct double x 8", struct.pack("<d", float("nan")), b"nan"),
        (b"struct double x 8", struct.pack("<d", float("-inf")), b"-inf"),
        (b"struct float x 4", struct.pack("<f", 0.1), b"0.10000000149011612"),
        (b"struct double x 4", bytes(4), b"0x0 (0)"),
        (b"struct bool x 1", b"\1", b"(1)"),
        (b"struct s16_3 x 6", struct.pack("<3h", 1, -2, 3), b"[1,-2,3]"),
        (b"struct double_1 x 8", struct.pack("<d", float("nan")), b'["NaN"]'),
        (b"struct u32_9999999 x 16", bytes(16), b"<INVALID-SIZE>"),
        (b"struct u8_4 x 4", b"\1", b"<OVERFLOW>"),
    ],
)
def test_floats_and_arrays(field: bytes, payload: bytes, shown: bytes) -> None:
    line = renderer(one_event(b"t " + field), BARE).render_entry(0, 1, entry(1041, payload))
    assert line == b"t: x=" + shown + b"\n"


# ---- one step for each kind of field


def test_every_byte_as_a_character() -> None:
    render = renderer(one_event(b"t u8 x"), BARE).render_entry
    plain = {n for n in range(256) if render(0, 1, entry(1041, bytes([n]))) == b"t: x=(%d)\n" % n}
    assert plain == {*range(32), *range(127, 160)}


@pytest.mark.parametrize("type_", TYPES)
def test_a_field_that_begins_or_ends_at_any_place(type_: bytes) -> None:
    """Entries of every length up to the field's end and a little more."""
    events = one_event(b"t u8 before; %s; u8 behind" % type_)
    (name, fields) = events[1041]
    render = renderer(events, BARE).render_entry
    for length in range(40):
        data = entry(1041, bytes(range(1, 1 + length)))
        expected = b"".join(b" %s=%s" % (f.name, model_value(f, data)) for f in fields)
        assert render(0, 1, data) == name + b":" + expected + b"\n"


# ---- hostile entries, and ids that pass on


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
