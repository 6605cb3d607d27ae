"""Columns beside the records that they are of."""

import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.events.plain_layout import Layout
from tests.protocol.pages.stream_writer import PlainWriter
from utracefs.recordings._records import EventDecoder, Records
from utracefs.streaming._columns import OWN, columns_of
from utracefs.streaming._records import RingRecords
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.pages._stream_ring import StreamRing

DECLARED = parse(
    b"ev s8 a; u8 b; s16 c; u16 d; s32 e; u32 f; s64 g; u64 h; char[8] i; unsigned char[4] j; u32 cpu; "
    b"struct foo k 3; __data_loc char[] l; __rel_loc u8[] m; __rel_loc char[] n"
)
LAYOUT = Layout(DECLARED.fields)
DECODERS = {
    20: EventDecoder("user_events", "ev", DECLARED.fields),
    21: EventDecoder("user_events", "one", parse(b"one u64 x").fields),
}


def records(writer: PlainWriter, **selection: Any) -> Records:
    ring = StreamRing(writer.fd)
    writer.publish()
    ring.next_batch()
    return Records(RingRecords(ring), DECODERS.get, **selection)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=6)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_the_same_as_records(data: st.DataObject) -> None:
    writer = PlainWriter()
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2**8 - 1), TEXT, st.binary(max_size=5)), max_size=8))
    for i, (number, text, raw) in enumerate(rows):
        signed = number - 128
        values = (signed, number, signed, number, signed, number, signed * 2**50, number << 56, "ab", b"1234")
        payload = LAYOUT.pack(*values, number, b"xyz", text, raw, text)
        writer.record(20, payload, time_ns=i, cpu=i % 3, tid=i % 2)
        if i % 3 == 0:
            writer.record(21, struct.pack("<Q", 2**64 - 1 - i), time_ns=i)
    try:
        expected: dict[str, dict[str, list[object]]] = {}
        for record in records(writer, cpus=[0, 1]):
            table = expected.setdefault(f"{record.system}:{record.name}", {})
            own = {name: getattr(record, name) for name in OWN}
            own |= {"field_cpu" if name == "cpu" else name: value for name, value in record.fields.items()}
            for name, value in own.items():
                table.setdefault(name, []).append(value)
        found = columns_of(records(writer, cpus=[0, 1]))
        assert {name: {n: list(c) for n, c in columns.items()} for name, columns in found.items()} == expected
        assert [list(columns) for columns in found.values()] == [list(t) for t in expected.values()]
    finally:
        writer.close()


def test_types_and_many_rows(writer: PlainWriter) -> None:
    for i in range(3000):
        writer.record(21, struct.pack("<Q", i), time_ns=i)
    writer.record(21, b"short")
    (columns,) = columns_of(records(writer)).values()
    assert {name: getattr(column, "typecode", "list") for name, column in columns.items()} == {
        "time_ns": "Q",
        "cpu": "I",
        "pid": "i",
        "tid": "i",
        "comm": "list",
        "x": "Q",
    }
    assert list(columns["x"]) == list(columns["time_ns"]) == list(range(3000))
    assert memoryview(columns["x"]).nbytes == 24_000  # type: ignore[arg-type]


def test_no_column_is_lost_for_its_name(writer: PlainWriter) -> None:
    fields = parse(b"twice u32 cpu; u32 field_cpu").fields
    writer.record(22, struct.pack("<II", 1, 2))
    ring = StreamRing(writer.fd)
    writer.publish()
    ring.next_batch()
    decoders = {22: EventDecoder("user_events", "twice", fields)}
    (columns,) = columns_of(Records(RingRecords(ring), decoders.get)).values()
    assert [(name, list(columns[name])) for name in list(columns)[len(OWN) :]] == [
        ("field_cpu", [1]),
        ("field_field_cpu", [2]),
    ]


def test_nothing(writer: PlainWriter) -> None:
    assert columns_of(records(writer)) == {}
