"""Any text, name, number, records of any length; read by perfetto_reader. The meaning: test_perfetto."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.export.one_page import TEXT, records_of
from tests.client.export.timelines.perfetto_reader import Trace, read
from utracefs.export import Counter, Slice, Tracks
from utracefs.export.timelines._perfetto_packets import PerfettoPackets
from utracefs.recordings._records import Records
from utracefs_protocol.events.declaration import Field, FieldKind

MONO = 3


def trace_of(records: Records, tracks: Tracks | None = None) -> Trace:
    packets = PerfettoPackets(records, tracks or Tracks(), MONO)
    pieces: list[bytes] = []
    while piece := packets.read(500):
        pieces.append(piece)
    return read(b"".join([*pieces, packets.head()]))


@given(st.binary(max_size=60), st.text(max_size=15))
def test_any_text(data: bytes, comm: str) -> None:
    data += bytes(-len(data) % 4)
    comm = comm.encode("utf-8", "replace").decode()
    trace = trace_of(records_of([data], [TEXT], comms={7: comm}))
    assert [(track["kind"], track["name"]) for track in trace.tracks.values()] == [
        ("process", comm or "<...>"),
        ("thread", comm or "<...>"),
    ]
    text = data.split(b"\0")[0].decode("utf-8", "replace")
    assert [event["args"] for event in trace.events] == [{"t": text, "cpu": 3, "instance": "box"}]


@given(st.integers(-(2**63), 2**64 - 1))
def test_any_number(number: int) -> None:
    signed = number < 0
    fields = [Field(b"s64" if signed else b"u64", b"n", 8, 8, signed, FieldKind.INTEGER)]
    entry = number.to_bytes(8, "little", signed=signed)
    trace = trace_of(records_of([entry], fields), Tracks(counters=(Counter("ev", "n"),)))
    point, counter = trace.events
    assert point["args"]["n"] == (number if number < 2**63 else str(number))
    assert counter["value"] == (number if number < 2**63 else float(number))


@pytest.mark.parametrize("size", [4, 60, 124, 128, 1000, 16376, 60000])
def test_records_of_any_length(size: int) -> None:
    """Below and above where lengths take a byte more."""
    raw = Field(b"unsigned char[]", b"r", 8, 0, False, FieldKind.CHAR_ARRAY)
    trace = trace_of(records_of([b"\x01" * size, b"\x02" * size], [TEXT, raw] * 2))
    assert [(event["args"]["t"], event["args"]["r"]) for event in trace.events] == [
        ("\x01" * size, "01" * size),
        ("\x02" * size, "02" * size),
    ]


def test_a_record_that_is_much_too_long_has_no_fields() -> None:
    fields = [Field(b"char[]", b"t%d" % n, 8, 0, True, FieldKind.CHAR_ARRAY) for n in range(900)]
    trace = trace_of(records_of([b"\x01" * 60000] * 2, fields))
    assert [event["args"] for event in trace.events] == [{"cpu": 3, "instance": "box"}] * 2


def test_names_are_written_once() -> None:
    records = [struct.pack("<I", n % 3) for n in range(1000)]
    fields = [Field(b"u32", b"a_long_name_of_a_field", 8, 4, False, FieldKind.INTEGER)]
    tracks = Tracks(slices=(Slice("nosuch", ("ev",), ("a_long_name_of_a_field",)),))
    for drawn in (Tracks(), tracks):
        packets = PerfettoPackets(records_of(records, fields), drawn, MONO)
        data = packets.read(1 << 20)
        assert data.count(b"a_long_name_of_a_field") == 1 and len(data) < 60 * len(records)
        assert packets.ends_without_begin == (1000 if drawn else 0)


def test_without_records_there_is_a_clock() -> None:
    trace = trace_of(records_of([], [TEXT]))
    assert (trace.clocks, trace.events) == ([(MONO, 0)], [])
