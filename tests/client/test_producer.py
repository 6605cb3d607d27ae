"""Packing is judged by the plain Layout of the protocol; the FIFO by a list of records."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.fake_daemon import wait_for
from utracefs import _producer
from utracefs._producer import Event, SocketSink, StatusMap
from utracefs.declaring import check_declaration, make_event
from utracefs_protocol.connection import Connection, EventRecord, Request, encode_request
from utracefs_protocol.layout import Layout
from utracefs_protocol.limits import MAX_PAYLOAD


class Bench:
    """A sink with the far end of its socket, and events that are on. Nothing is sent unless `send` is called."""

    def __init__(self, capacity: int = 1 << 20, status: int = 1) -> None:
        self.sink = SocketSink(capacity)
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.sink.set_wake_fd(self.wake_fd)
        self.status_fd = os.memfd_create("status")
        os.ftruncate(self.status_fd, 4096)
        self.map = StatusMap(self.status_fd, 4096)
        self.events: list[Event] = []
        self.status = status
        self.messages = Connection(max_object=None, allow_records=True)

    def close(self) -> None:
        _producer.set_all_off(self.events)
        self.near.close()
        self.far.close()
        os.close(self.wake_fd)
        os.close(self.status_fd)

    def event(self, declaration: bytes, write_index: int | None = None) -> Event:
        event = make_event(None, self.sink, check_declaration(declaration), 0)  # type: ignore[arg-type]
        self.events.append(event)
        place = len(self.events)
        os.pwrite(self.status_fd, bytes([self.status]), place)
        _producer.settle([(event, self.map, place, place if write_index is None else write_index)])
        return event

    def pump_once(self) -> int:
        """One turn of the sender: a wish makes it return."""
        self.sink.wake()
        return self.sink.pump(self.near.fileno())

    def receive(self) -> list[Any]:
        """What the far end has got: (write_index, payload) of records, method of requests."""
        got: list[Any] = []
        self.far.setblocking(False)
        while True:
            try:
                data = self.far.recv(1 << 20)
            except BlockingIOError:
                return got
            for message in self.messages.receive(data):
                if isinstance(message, EventRecord):
                    got.append((int.from_bytes(message.data[:4], "little"), message.data[4:]))
                else:
                    assert isinstance(message, Request)
                    got.append(message.method)

    def send(self) -> list[Any]:
        """Send all, as the session thread would, and receive it."""
        got = self.receive()
        while self.sink.pending_bytes or self.sink.control_pending:
            self.pump_once()
            got += self.receive()
        return got


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


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
            for bits in (7, 8, 15, 16, 31, 32, 63, 64, 70)
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


@settings(max_examples=600, deadline=None)
@given(calls())
def test_emit_packs_what_the_layout_packs(call: tuple[bytes, list[Any], dict[str, Any]]) -> None:
    declaration, args, kwargs = call
    bench = Bench(4096)
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
    bench: Bench, declaration: bytes, args: tuple[Any, ...], error: type[Exception], text: str
) -> None:
    event = bench.event(declaration)
    with pytest.raises(error) as caught:
        event.emit(*args)
    assert text in str(caught.value)
    assert bench.sink.records_in == 0


def test_errors_of_an_argument_come_through(bench: Bench) -> None:
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
def test_bad_names(bench: Bench, kwargs: dict[str, int], text: str) -> None:
    event = bench.event(b"t u8 a; u8 b")
    with pytest.raises(TypeError, match=text):
        event.emit(**kwargs)
    with pytest.raises(TypeError, match="two values for the field 'a'"):
        event.emit(1, a=1)


def test_names_that_are_not_interned(bench: Bench) -> None:
    event = bench.event(b"t u8 some_name")
    name = "-some_name"[1:]
    event.emit(**{name: 3})
    assert bench.send() == [(1, b"\x03")]


def test_the_largest_record_is_written_and_fits_the_wire(bench: Bench) -> None:
    event = bench.event(b"t __rel_loc u8[] a")
    event.emit(b"x" * (MAX_PAYLOAD - 4))
    with pytest.raises(ValueError, match="65530 bytes"):
        event.emit(b"x" * (MAX_PAYLOAD - 3))
    ((_, payload),) = bench.send()
    assert len(payload) == MAX_PAYLOAD


def test_an_argument_may_emit_itself(bench: Bench) -> None:
    event = bench.event(b"t u8 a")

    class Emitting:
        def __index__(self) -> int:
            event.emit(1)
            return 2

    event.emit(Emitting())  # type: ignore[arg-type]
    assert bench.send() == [(1, b"\x01"), (1, b"\x02")]


def test_a_disabled_event_looks_at_nothing(bench: Bench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    assert not event
    assert not event.enabled
    event.emit("nonsense", 1, 2, x=3)
    assert event.emitted == 0
    os.pwrite(bench.status_fd, b"\x82", 1)
    assert event
    assert event.enabled
    _producer.set_all_off([event])
    assert not event


def test_every_bit_of_the_status_byte_counts_even_one_that_looks_like_the_sentinel(bench: Bench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    for bit in range(8):
        if bit != 6:
            os.pwrite(bench.status_fd, bytes([1 << bit]), 1)
            assert event


def test_numbers_of_the_daemon_are_checked_before_anything_follows_them(bench: Bench) -> None:
    event = bench.event(b"t u8 a")
    for place, write_index in ((0, 1), (4096, 1), (1, -1), (1, 1 << 31)):
        with pytest.raises(ValueError, match="out of range"):
            _producer.settle([(event, bench.map, place, write_index)])
        with pytest.raises(ValueError, match="out of range"):
            bench.sink.take_over([(event, bench.map, place, write_index)], [])
    assert event.index == 1


# ---- the FIFO


def test_what_does_not_fit_is_lost_and_counted_and_the_rest_arrives_in_order() -> None:
    bench = Bench(4096)
    try:
        event = bench.event(b"t u32 a; char[50] b")
        for i in range(500):
            event.emit(i, "x")
        kept = 4096 // (2 + 4 + 54)
        assert event.emitted == 500
        assert event.lost == bench.sink.lost == 500 - kept
        assert bench.sink.records_in == bench.sink.pending() == kept
        got = bench.send()
        assert [int.from_bytes(payload[:4], "little") for _, payload in got] == list(range(kept))
        event.emit(1000, "y")
        assert len(bench.send()) == 1
    finally:
        bench.close()


def test_a_record_larger_than_the_fifo_is_lost() -> None:
    bench = Bench(4096)
    try:
        event = bench.event(b"t __rel_loc u8[] a")
        event.emit(b"x" * 5000)
        event.emit(b"y")
        assert event.lost == 1
        assert len(bench.send()) == 1
    finally:
        bench.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_mix_of_records_control_messages_and_sends_comes_out_in_order(data: st.DataObject) -> None:
    """Small buffers everywhere, so that records wrap and sends are partial."""
    bench = Bench(4096)
    try:
        bench.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        event = bench.event(b"t u32 number; __rel_loc u8[] data")
        records: list[Any] = []
        got: list[Any] = []
        controls = 0
        number = 0
        for _ in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(["emit", "emit", "send", "receive", "control"])):
                case "emit":
                    for size in data.draw(st.lists(st.integers(0, 600), max_size=10)):
                        lost = event.lost
                        number += 1
                        event.emit(number, b"x" * size)
                        if event.lost == lost:
                            records.append(number)
                case "send":
                    bench.pump_once()
                case "receive":
                    got += bench.receive()
                case "control":
                    if not bench.sink.control_pending:
                        after = data.draw(st.booleans())
                        controls += 1
                        request = encode_request(controls, f"c{controls}", ["x" * 300])
                        bench.sink.set_control(request, bench.sink.position if after else 0)
                        if after:
                            records.append(f"c{controls}")
            assert bench.sink.pending() <= len(records)
        got += bench.send()
        plain = [one if isinstance(one, str) else int.from_bytes(one[1][:4], "little") for one in got]
        assert [one for one in plain if isinstance(one, int)] == [
            one for one in records if isinstance(one, int)
        ]
        assert len([one for one in plain if isinstance(one, str)]) == controls
        for place, one in enumerate(records):
            if isinstance(one, str):  # all records before it are before it
                before = {r for r in records[:place] if isinstance(r, int)}
                assert before <= set(plain[: plain.index(one)])
        assert event.emitted == number
        assert event.lost == number - len([one for one in records if isinstance(one, int)])
    finally:
        bench.close()


def test_control_messages_are_sent_one_batch_at_a_time(bench: Bench) -> None:
    bench.sink.set_control(b"\x93\x02\xa1x\x90", 0)
    with pytest.raises(RuntimeError, match="still being sent"):
        bench.sink.set_control(b"\x93\x02\xa1x\x90", 0)


def test_a_new_connection_sends_whole_records_with_their_new_index() -> None:
    bench = Bench(8192)
    try:
        bench.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        kept = bench.event(b"kept u32 n; char[200] x", 0)
        gone = bench.event(b"gone u32 n; char[200] x", 1)
        for i in range(15):
            kept.emit(i, "")
            gone.emit(i, "")
        bench.pump_once()  # some are on their way, one of them in part
        assert 0 < bench.sink.pending() < 30
        before = bench.receive()
        bench.near.close()
        bench.far.close()

        _producer.set_all_off([kept, gone])
        bench.near, bench.far = socket.socketpair()
        bench.messages = Connection(max_object=None, allow_records=True)
        bench.sink.start_stream(True)
        kept.emit(99, "")  # off
        bench.sink.set_control(encode_request(1, "hello", []), 0)
        bench.pump_once()
        bench.pump_once()
        assert bench.receive() == ["hello"]
        waiting = bench.sink.pending()
        bench.sink.take_over([(kept, bench.map, 1, 7)], [kept, gone])
        after = bench.send()
        assert {index for index, _ in after} == {7}
        numbers = [int.from_bytes(payload[:4], "little") for index, payload in before if index == 0]
        numbers += [int.from_bytes(payload[:4], "little") for _, payload in after]
        # whole records that the old socket held and nobody read are what a dead daemon costs
        assert numbers[-len(after) :] == list(range(15 - len(after), 15))
        assert kept.lost == 0
        assert gone.lost == bench.sink.lost == waiting - len(after)
        assert kept.emitted == 15
        kept.emit(15, "")
        assert [index for index, _ in bench.send()] == [7]
    finally:
        bench.close()


def test_giving_up_counts_all_that_is_left(bench: Bench) -> None:
    event = bench.event(b"t u32 a", 0)
    for i in range(10):
        event.emit(i)
    bench.sink.give_up([event])
    assert event.lost == 10
    assert bench.sink.pending() == 0


def test_the_sender_sleeps_without_timers_and_the_first_record_wakes_it(bench: Bench) -> None:
    event = bench.event(b"t u32 a")
    stopped = threading.Event()

    def run() -> None:
        while not bench.sink.pump(bench.near.fileno()) & (_producer.WOKEN | _producer.BROKEN):
            pass
        stopped.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        # asleep: in poll(2) with no time limit, and it stays there
        status = Path(f"/proc/self/task/{thread.native_id}/status")
        last = [""]

        def still() -> bool:
            before, last[0] = last[0], status.read_text().partition("voluntary_ctxt_switches:")[2]
            return before == last[0]

        wait_for(still)
        for i in range(3):
            event.emit(i)
            wait_for(lambda: not bench.sink.pending_bytes)
        assert len(bench.receive()) == 3
    finally:
        bench.sink.wake()
        thread.join(5)
    assert stopped.is_set()


def test_a_full_socket_blocks_nobody(bench: Bench) -> None:
    event = bench.event(b"t u32 a; char[1000] b")
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            bench.sink.pump(bench.near.fileno())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for i in range(3000):
            event.emit(i, "")
        assert event.lost > 0
        got: list[Any] = []

        def all_there() -> bool:
            got.extend(bench.receive())
            return len(got) == 3000 - event.lost

        wait_for(all_there)
    finally:
        stop.set()
        bench.sink.wake()
        thread.join(5)


@pytest.mark.parametrize("capacity", [0, 4095, 5000])
def test_a_capacity_is_a_power_of_two(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        SocketSink(capacity)


def test_a_map_that_cannot_be_made(tmp_path: os.PathLike[str]) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        StatusMap(-1, 4096)
