"""Packets, compared byte by byte with what the layout says."""

import struct

import pytest

from tests.client.export.one_page import TEXT, records_of
from utracefs.export._ctf_packets import CtfPackets, declared_fields
from utracefs.recordings._records import EventDecoder
from utracefs_protocol.events.declaration import Field, FieldKind, parse

HEAD = struct.Struct("<I16sIIQQQQQQI")
RECORD = struct.Struct("<IQii16s")
UUID = bytes(range(16))


def split(packet: bytes) -> tuple[tuple[int, ...], bytes]:
    """Times, bytes, number and discarded of a packet of cpu 3; its records."""
    magic, uuid, stream, instance, first, last, content, size, number, discarded, cpu = HEAD.unpack_from(
        packet
    )
    assert (magic, uuid, stream, instance, cpu) == (0xC1FC1FC1, UUID, 0, 3, 3)
    assert content == size == 8 * len(packet)
    return (first, last, number, discarded), packet[HEAD.size :]


def test_fields() -> None:
    event = parse(b"ev s8 a; u64 b; char[4] c; unsigned char[2] d; __rel_loc char[] e; __rel_loc u8[] f")
    entry = struct.pack("<bQ4s2sIIxxx", -1, 2**64 - 1, b"x\0yz", b"\0\1", 4 << 16 | 4, 3 << 16 | 4)
    start = len(entry) - 3
    entry = entry[:start] + b"p\0qr" + b"\0\1\2"
    packets = CtfPackets(records_of([entry], event.fields), UUID)
    ((cpu, packet),) = list(packets)
    times, records = split(packet)
    assert (cpu, times) == (3, (1, 1, 0, 0))
    assert records[: RECORD.size] == RECORD.pack(0, 1, 7, 7, b"c")
    fields = struct.pack("<bQ4s2s", -1, 2**64 - 1, b"x\0\0\0", b"\0\1") + b"p\0" + b"\3\0\0\1\2"
    assert records[RECORD.size : RECORD.size + len(fields)] == fields
    assert len(records) == RECORD.size + len(fields)
    assert declared_fields(packets.events[0]) == [
        ("a", "s", 1),
        ("b", "u", 8),
        ("c", "text", 4),
        ("d", "byte", 2),
        ("e", "text", None),
        ("f", "byte", None),
    ]


def test_packets() -> None:
    packets = [
        packet for _, packet in CtfPackets(records_of([b"%04d" % n for n in range(4000)], [TEXT]), UUID)
    ]
    size = RECORD.size + 5
    begin = 1
    for number, packet in enumerate(packets):
        (first, last, seen, discarded), records = split(packet)
        assert (first, seen, discarded) == (begin, number, 0)
        assert last - first + 1 == len(records) // size
        assert len(records) // size == -(-65536 // size) or packet is packets[-1]
        begin = last + 1
    assert begin == 4001 and len(packets) == 3


def test_what_does_not_fit_is_discarded() -> None:
    """Records that are too short, the last one in a packet of its own; bytes that are too many."""
    fields = [Field(b"u64", b"n", 8, 8, False, FieldKind.INTEGER)]
    long = b"x" * 65536
    ((_, packet),) = CtfPackets(records_of([b"12345678", b"1234"], fields), UUID)
    assert split(packet)[0] == (1, 1, 0, 1)
    many = [b"12345678"] * 1490
    *_, (_, packet) = CtfPackets(records_of([*many, b"1234"], fields), UUID)
    assert split(packet) == ((1490, 1490, 1, 1), b"")
    ((_, packet),) = CtfPackets(records_of([long], [Field(b"u8", b"n", 8, 0, False, FieldKind.STRUCT)]), UUID)
    assert split(packet) == ((0, 0, 0, 1), b"")
    repeated = [Field(b"char[]", b"t%d" % n, 8, 0, True, FieldKind.CHAR_ARRAY) for n in range(300)]
    ((_, packet),) = CtfPackets(records_of([long], repeated), UUID)
    assert split(packet) == ((0, 0, 0, 1), b"")


def test_names_are_cut() -> None:
    ((_, packet),) = CtfPackets(records_of([b"1234"], [TEXT], comms={7: "é" * 10}), UUID)
    assert RECORD.unpack_from(packet, HEAD.size)[4] == ("é" * 10).encode()[:15] + b"\0"


def test_what_is_broken_comes_after_all_before_it() -> None:
    packets = iter(CtfPackets(records_of([b"good"], [TEXT], broken=True), UUID))
    assert split(next(packets)[1])[0] == (1, 1, 0, 0)
    with pytest.raises(ValueError, match="page at 0"):
        next(packets)
    with pytest.raises(ValueError, match="uuid of 3 bytes"):
        CtfPackets(records_of([], [TEXT]), b"abc")


def test_events_have_the_order_of_their_first_records() -> None:
    packets = CtfPackets(records_of([b"1"], [TEXT]), UUID)
    assert packets.events == []
    list(packets)
    assert [type(event) for event in packets.events] == [EventDecoder]
