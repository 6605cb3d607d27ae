"""Packing is judged by the plain Layout of the protocol, moves by what the far end receives."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.workbench import FarRing, Workbench
from utracefs import _event
from utracefs.checking import check_declaration
from utracefs_protocol.connection import Connection, encode_request
from utracefs_protocol.layout import Layout
from utracefs_protocol.limits import MAX_PAYLOAD

# ---- packing

INTEGERS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "int", "unsigned int", "short", "char"]
TYPES = [
    *INTEGERS,
    "char[5]",
    "unsigned char[16]",
    "struct foo",
    "__rel_loc char[]",
    "__data_loc char[]",
    "__rel_loc u8[]",
    "__data_loc unsigned char[]",
]


class Index:
    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


edges = st.sampled_from(
    [
        0,
        1,
        -1,
        *(
            sign * (1 << bits) + d
            for bits in (7, 8, 15, 16, 30, 31, 32, 60, 63, 64, 70)
            for d in (-1, 0, 1)
            for sign in (1, -1)
        ),
    ]
)
texts = st.one_of(
    st.text(max_size=20),
    st.binary(max_size=20),
    st.binary(max_size=8).map(bytearray),
    st.binary(max_size=8).map(lambda data: memoryview(data)),
    st.binary(max_size=8).map(lambda data: data.decode("utf-8", "surrogateescape")),
    st.sampled_from([b"12345", "12345", "é" * 2, "\ud800", b"0123456789abcdef", b"1234567"]),
)
values = st.one_of(
    edges, st.integers(), edges.map(Index), texts, st.sampled_from([None, 1.5, True, [], object()])
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[bytes, list[Any], dict[str, Any]]:
    types = draw(st.lists(st.sampled_from(TYPES), max_size=6))
    names = [
        draw(st.sampled_from(["a", "b", "c", "same"])) + ("" if draw(st.booleans()) else str(i))
        for i in range(len(types))
    ]
    fields = [f"{t} {n}{' 7' if t.startswith('struct') else ''}" for t, n in zip(types, names, strict=True)]
    fitting = []
    for type_ in types:
        if type_ in INTEGERS:
            fitting.append(draw(st.one_of(st.integers(0, 127), edges, values)))
        elif type_ == "struct foo":
            fitting.append(draw(st.one_of(st.binary(min_size=7, max_size=7), values)))
        else:
            fitting.append(draw(st.one_of(texts, values)))
    by_position = draw(st.integers(0, len(types)))
    args = fitting[:by_position]
    kwargs = dict(zip(names[by_position:], fitting[by_position:], strict=True))
    if draw(st.integers(0, 9)) == 0:
        args.append(1)
    if draw(st.integers(0, 9)) == 0:
        kwargs[draw(st.sampled_from(["a", "same", "nowhere"]))] = 2
    return f"test {'; '.join(fields)}".encode(), args, kwargs


@settings(max_examples=600)
@given(calls())
def test_emit_packs_what_the_layout_packs(call: tuple[bytes, list[Any], dict[str, Any]]) -> None:
    declaration, args, kwargs = call
    bench = Workbench(4096)
    try:
        event = bench.event(declaration)
        try:
            expected: Any = Layout(check_declaration(declaration).fields).pack(*args, **kwargs)
        except (TypeError, ValueError, OverflowError) as error:
            # UnicodeEncodeError is a ValueError
            with pytest.raises(
                next(t for t in (TypeError, ValueError, OverflowError) if isinstance(error, t))
            ):
                event.emit(*args, **kwargs)
            assert bench.send() == []
            assert event.emitted == event.lost == 0
        else:
            event.emit(*args, **kwargs)
            assert bench.send() == [(1, expected)]
    finally:
        bench.close()


@pytest.mark.parametrize(
    ("declaration", "args", "error", "text"),
    [
        (b"t u8 a", (256,), OverflowError, "t: 256 does not fit the field 'a' (0 to 255)"),
        (b"t u8 a", (-1,), OverflowError, "-1 does not fit"),
        (b"t s16 a", (32768,), OverflowError, "(-32768 to 32767)"),
        (b"t u64 a", (1 << 64,), OverflowError, "does not fit"),
        (b"t s64 a", (1 << 63,), OverflowError, "does not fit"),
        (b"t u64 a", (Index(-1),), OverflowError, "does not fit"),
        (b"t u8 a", ("x",), TypeError, "t: field 'a' takes an integer, not str"),
        (b"t s8 a", (1.0,), TypeError, "t: field 'a' takes an integer, not float"),
        (b"t u8 a", (), TypeError, "t: 0 values for 1 fields (a)"),
        (b"t u8 a", (1, 2), TypeError, "2 values for 1 fields"),
        (b"t char[4] a", ("12345",), ValueError, "has room for 4 bytes, not 5"),
        (b"t struct s a 8", (b"1234567",), ValueError, "takes exactly 8 bytes, not 7"),
        (b"t struct s a 8", ("12345678",), TypeError, "takes bytes, not str"),
        (b"t __rel_loc char[] a", (5,), TypeError, "takes str or bytes, not int"),
        (b"t __rel_loc char[] a", ("x" * 65535,), ValueError, "location word"),
        (b"t __rel_loc char[] a", ("x" * 65525,), ValueError, "at most 65529"),
    ],
)
def test_a_bad_value_is_an_error_that_names_the_field(
    bench: Workbench, declaration: bytes, args: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    event = bench.event(declaration)
    with pytest.raises(error) as caught:
        event.emit(*args)
    assert text in str(caught.value)
    assert bench.fifo.counts.records_in == 0


def test_errors_of_an_argument_come_through(bench: Workbench) -> None:
    class Broken:
        def __index__(self) -> int:
            raise KeyError("mine")

    for declaration in (b"t u8 a", b"t s8 a"):
        with pytest.raises(KeyError, match="mine"):
            bench.event(declaration).emit(Broken())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"a": 1}, "no value for the field 'b'"),
        ({"a": 1, "b": 2, "c": 3}, "no field 'c'; there are a, b"),
    ],
)
def test_bad_names(bench: Workbench, kwargs: dict[str, int], text: str) -> None:
    event = bench.event(b"t u8 a; u8 b")
    with pytest.raises(TypeError, match=text):
        event.emit(**kwargs)
    with pytest.raises(TypeError, match="two values for the field 'a'"):
        event.emit(1, a=1)


def test_names_that_are_not_interned(bench: Workbench) -> None:
    event = bench.event(b"t u8 some_name")
    name = "-some_name"[1:]
    event.emit(**{name: 3})
    assert bench.send() == [(1, b"\x03")]


def test_the_largest_record_is_written_and_fits_the_wire(bench: Workbench) -> None:
    event = bench.event(b"t __rel_loc u8[] a")
    event.emit(b"x" * (MAX_PAYLOAD - 4))
    with pytest.raises(ValueError, match="65530 bytes"):
        event.emit(b"x" * (MAX_PAYLOAD - 3))
    ((_, payload),) = bench.send()
    assert len(payload) == MAX_PAYLOAD


def test_an_argument_may_emit_itself(bench: Workbench) -> None:
    event = bench.event(b"t u8 a")

    class Emitting:
        def __index__(self) -> int:
            event.emit(1)
            return 2

    event.emit(Emitting())  # type: ignore[arg-type]
    assert bench.send() == [(1, b"\x01"), (1, b"\x02")]


def test_a_disabled_event_looks_at_nothing(bench: Workbench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    assert not event
    assert not event.enabled
    event.emit("nonsense", 1, 2, x=3)
    assert event.emitted == 0
    os.pwrite(bench.status_fd, b"\x82", 1)
    assert event
    assert event.enabled
    _event.set_all_off([event])
    assert not event


def test_every_bit_of_the_status_byte_counts_even_one_that_looks_like_the_sentinel(bench: Workbench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    for bit in range(8):
        if bit != 6:
            os.pwrite(bench.status_fd, bytes([1 << bit]), 1)
            assert event


def test_numbers_of_the_daemon_are_checked_before_anything_follows_them(bench: Workbench) -> None:
    event = bench.event(b"t u8 a")
    for place, write_index in ((0, 1), (4096, 1), (1, -1), (1, 1 << 31)):
        with pytest.raises(ValueError, match="out of range"):
            _event.follow(bench.map, bench.fifo, [(event, place, write_index)])
        with pytest.raises(ValueError, match="out of range"):
            _event.move(bench.map, bench.fifo, [(event, place, write_index)], bench.fifo, [])
    assert event.index == 1


# ---- moving to another connection


def test_a_new_connection_sends_whole_records_with_their_new_index() -> None:
    bench = Workbench(8192)
    try:
        bench.narrow()
        kept = bench.event(b"kept u32 n; char[200] x", 0)
        gone = bench.event(b"gone u32 n; char[200] x", 1)
        for i in range(15):
            kept.emit(i, "")
            gone.emit(i, "")
        bench.pump_once()  # some are on their way, one of them in part
        assert 0 < bench.fifo.pending() < 30
        before = bench.receive()
        bench.near.close()
        bench.far.close()

        _event.set_all_off([kept, gone])
        bench.connect()
        bench.messages = Connection(max_object=None, allow_records=True)
        bench.fifo.begin_stream()
        kept.emit(99, "")  # off
        bench.fifo.set_control(encode_request(1, "hello", []), 0)
        bench.pump_once()
        bench.pump_once()
        assert bench.receive() == ["hello"]
        waiting = bench.fifo.pending()
        _event.move(bench.map, bench.fifo, [(kept, 1, 7)], bench.fifo, [kept, gone])
        after = bench.send()
        assert {index for index, _ in after} == {7}
        numbers = [int.from_bytes(payload[:4], "little") for index, payload in before if index == 0]
        numbers += [int.from_bytes(payload[:4], "little") for _, payload in after]
        # whole records that the old socket held and nobody read are what a dead daemon costs
        assert numbers[-len(after) :] == list(range(15 - len(after), 15))
        assert kept.lost == 0
        assert gone.lost == bench.fifo.counts.lost == waiting - len(after)
        assert kept.emitted == 15
        kept.emit(15, "")
        assert [index for index, _ in bench.send()] == [7]
    finally:
        bench.close()


def test_giving_up_counts_all_that_is_left(bench: Workbench) -> None:
    event = bench.event(b"t u32 a", 0)
    for i in range(10):
        event.emit(i)
    _event.give_up_fifo(bench.fifo, [event])
    assert event.lost == 10
    assert bench.fifo.pending() == 0


# ---- with a data ring


def one_byte(number: int) -> bytes:
    return bytes([number])


def test_events_that_move_to_a_ring_write_there_and_what_is_pending_does_not(
    bench: Workbench, far_ring: FarRing
) -> None:
    event = bench.event(b"t u8 a", 0)
    event.emit(1)
    _event.set_all_off([event])
    bench.fifo.begin_stream()
    ring = far_ring.outlet(bench.fifo)
    _event.move(bench.map, ring, [(event, 1, 4)], bench.fifo, [event])
    event.emit(2)
    later = bench.event(b"later u8 a")
    _event.follow(bench.map, ring, [(later, 2, 5)])
    later.emit(3)
    assert bench.send() == [(4, one_byte(1))]
    assert far_ring.records() == [(4, one_byte(2)), (5, one_byte(3))]
    assert bench.fifo.totals() == (3, 3, 0, 0)


def test_a_ring_is_mapped_as_long_as_an_event_leads_there(bench: Workbench, far_ring: FarRing) -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:ring" in line for line in maps)

    event = bench.event(b"t u8 a")
    before = mapped()
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])
    assert mapped() == before + 2
    event.emit(1)
    _event.set_all_off([event])
    assert mapped() == before
    assert far_ring.records() == [(4, one_byte(1))]


def test_an_emit_that_finds_its_ring_gone_goes_to_the_fifo(bench: Workbench, far_ring: FarRing) -> None:
    """The session thread may turn everything off while an argument is converted."""
    event = bench.event(b"t u8 a")
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])

    class Disconnecting:
        def __index__(self) -> int:
            _event.set_all_off([event])
            return 2

    event.emit(Disconnecting())  # type: ignore[arg-type]
    assert far_ring.records() == []
    assert bench.send() == [(4, one_byte(2))]


def test_what_a_ring_held_that_is_given_up_is_lost(bench: Workbench, far_ring: FarRing) -> None:
    one, two = bench.event(b"one u8 a"), bench.event(b"two u8 a")
    ring = far_ring.outlet(bench.fifo)
    _event.follow(bench.map, ring, [(one, 1, 0), (two, 2, 3)])
    for i in range(5):
        one.emit(i)
        two.emit(i)
    _event.set_all_off([one, two])
    _event.give_up_ring(ring, [one])
    assert (one.lost, two.lost) == (5, 0)
    assert bench.fifo.totals() == (10, 0, 0, 10)


def test_in_a_forked_child_events_leave_the_parents_ring_and_follow_its_byte(
    bench: Workbench, far_ring: FarRing
) -> None:
    event = bench.event(b"t u8 a")
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])
    event.emit(1)
    bench.fifo.start_child()
    _event.start_child([event])
    assert bench.fifo.totals() == (0, 0, 0, 0)
    assert (event.emitted, repr(event).endswith(", on>")) == (0, True)
    _event.give_up_waiting([event])
    bench.fifo.open_bell()
    assert event
    event.emit(2)
    assert far_ring.records() == [(4, one_byte(1))]
    assert bench.send() == [(4, one_byte(2))]
    os.pwrite(bench.status_fd, b"\0", 1)
    assert not event
