"""Messages out of bytes: whole, in pieces, with bytes left over, and from hostile peers."""

import errno
import struct
import time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.connection import (
    Connection,
    Message,
    Notification,
    Request,
    Response,
    encode_bin_response,
    encode_error,
    encode_notification,
    encode_request,
    encode_response,
)
from utracefs_protocol.errors import ProtocolError
from utracefs_protocol.limits import MAX_DATA_OBJECT, MAX_TRACEFS_OBJECT

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=10)
    | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MSGIDS = st.integers(0, 2**32 - 1)
MESSAGES = st.one_of(
    st.builds(Request, MSGIDS, st.text(max_size=10), st.lists(VALUES, max_size=3)),
    st.builds(Response, MSGIDS, st.none(), VALUES),
    st.builds(Response, MSGIDS, st.tuples(st.integers(0, 200), st.text(max_size=10)), st.none()),
    st.builds(Notification, st.text(max_size=10), st.lists(VALUES, max_size=3)),
    st.binary(max_size=300),
)


def encode(message: Message | bytes) -> bytes:
    match message:
        case Request(msgid, method, params):
            return encode_request(msgid, method, params)
        case Response(msgid, None, result):
            return encode_response(msgid, result)
        case Response(msgid, (number, text), _):
            return encode_error(msgid, number, text)
        case Notification(method, params):
            return encode_notification(method, params)
        case bytes(record):
            return msgpack.packb(record)
    raise AssertionError(message)


class DataSide:
    """The daemon's end: `got` has the messages and the records, in their order."""

    def __init__(self, step: int | None = None) -> None:
        """step: records are taken so many at a time."""
        self.got: list[Message | bytes] = []
        self._step = step
        self.connection = Connection(max_object=MAX_DATA_OBJECT, max_nesting=64, take_records=self._take)

    def receive(self, data: bytes) -> list[Message | bytes]:
        """The messages and records that are complete with these bytes."""
        self.got.clear()
        for message in self.connection.receive(data):
            self.got.append(message)
        return list(self.got)

    def _take(self, buffer: bytes | bytearray | memoryview, offset: int) -> int:
        unpacker = msgpack.Unpacker()
        unpacker.feed(bytes(buffer[offset:]))
        for number, record in enumerate(unpacker, 1):
            assert isinstance(record, bytes)
            self.got.append(record)
            if number == self._step:
                break
        return offset + unpacker.tell()


def take_all(buffer: bytes | bytearray | memoryview, offset: int) -> int:
    return len(buffer)


def failing(connection: Connection, data: bytes) -> tuple[list[Message], ProtocolError]:
    got: list[Message] = []
    with pytest.raises(ProtocolError) as caught:
        got.extend(connection.receive(data))  # what came before the error stays in `got`
    return got, caught.value


@given(st.lists(MESSAGES, max_size=8), st.integers(1, 3), st.data())
def test_however_the_bytes_are_cut(messages: list[Message | bytes], step: int, data: st.DataObject) -> None:
    stream = b"".join(map(encode, messages))
    whole = DataSide(step)
    assert whole.receive(stream) == messages
    assert whole.connection.bytes_pending == 0

    pieces = DataSide(step)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    got: list[Message | bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += pieces.receive(stream[begin:end])
    assert got == messages


@given(st.lists(MESSAGES, max_size=4))
def test_byte_by_byte(messages: list[Message | bytes]) -> None:
    stream = b"".join(map(encode, messages))
    side = DataSide()
    got: list[Message | bytes] = []
    for i in range(len(stream)):
        got += side.receive(stream[i : i + 1])
    assert got == messages
    assert side.connection.bytes_pending == 0


@given(MESSAGES, st.data())
def test_bytes_left_over(message: Message | bytes, data: st.DataObject) -> None:
    stream = encode(message)
    cut = data.draw(st.integers(0, len(stream) - 1))
    side = DataSide()
    assert side.receive(stream + stream[:cut]) == [message]
    assert side.connection.bytes_pending == cut
    assert side.receive(stream[cut:]) == [message]
    assert side.connection.bytes_pending == 0


@given(st.binary(max_size=60))
def test_any_bytes_give_messages_or_a_protocol_error(data: bytes) -> None:
    connection = Connection(max_object=1000, take_records=take_all)
    try:
        for _ in connection.receive(data):
            pass
    except ProtocolError as error:
        assert error.errno in (errno.EPROTO, errno.EMSGSIZE)


@given(VALUES | st.tuples(st.just(2), st.text(), st.lists(VALUES, max_size=3)))
def test_any_object_is_a_message_or_a_protocol_error(value: Any) -> None:
    connection = Connection(max_object=None, max_nesting=64)
    try:
        messages = list(connection.receive(msgpack.packb(value)))
    except ProtocolError as error:
        assert error.errno == errno.EPROTO
    else:
        assert len(messages) == 1


def test_a_message_is_handed_out_before_what_follows_is_looked_at() -> None:
    taken: list[tuple[int, int]] = []

    def take(buffer: bytes | bytearray | memoryview, offset: int) -> int:
        taken.append((offset, len(buffer)))
        return len(buffer)

    connection = Connection(max_object=100, take_records=take)
    register = encode_request(1, "DIAG_IOCSREG", [])
    messages = connection.receive(register + msgpack.packb(b"abcd") + b"\xc1")
    assert next(messages) == Request(1, "DIAG_IOCSREG", [])
    assert taken == []
    with pytest.raises(ProtocolError):
        next(messages)
    assert taken == [(len(register), len(register) + 6)]


def test_an_interrupted_iteration_continues_later() -> None:
    connection = DataSide().connection
    first, second, third = (encode_request(n, "x", []) for n in range(3))
    for message in connection.receive(first + second):
        assert message == Request(0, "x", [])
        break
    assert connection.bytes_pending == len(second)
    assert list(connection.receive(third)) == [Request(1, "x", []), Request(2, "x", [])]


def test_nothing_iterated_nothing_lost() -> None:
    connection = DataSide().connection
    connection.receive(encode_request(0, "x", []))
    assert list(connection.receive(b"")) == [Request(0, "x", [])]


def test_take_records_never_sees_one_that_is_too_large() -> None:
    side = DataSide()
    good = msgpack.packb(bytes(65533))
    got, error = failing(side.connection, good + msgpack.packb(bytes(65534)) + good)
    assert (got, error.errno) == ([], errno.EMSGSIZE)
    assert side.got == [bytes(65533)]


def test_take_records_must_not_go_back() -> None:
    connection = Connection(max_object=100, take_records=lambda buffer, offset: offset - 1)
    with pytest.raises(RuntimeError, match="went from 0 to -1"):
        list(connection.receive(msgpack.packb(b"abcd")))


def test_records_that_have_to_wait_and_all_behind_them() -> None:
    records: list[bytes] = []
    wait = True

    def take(buffer: bytes | bytearray | memoryview, offset: int) -> int:
        if wait:
            return offset
        records.append(bytes(buffer[offset + 2 :]))
        return len(buffer)

    connection = Connection(max_object=100, take_records=take)
    request = encode_request(1, "sync", [])
    messages = connection.receive_in_turns(msgpack.packb(b"abcd") + request)
    assert [next(messages) for _ in range(3)] == [None] * 3
    assert (records, connection.bytes_pending) == ([], 6 + len(request))
    wait = False
    assert [message for message in messages if message is not None] == [Request(1, "sync", [])]
    assert records == [b"abcd"]


@pytest.mark.parametrize(
    "value",
    [
        [],
        [0],
        [0, 1, "m"],
        [0, 1, "m", [], 0],
        [0, -1, "m", []],
        [0, 2**32, "m", []],
        [0, None, "m", []],
        [0, True, "m", []],
        [0, 1.0, "m", []],
        [0, "1", "m", []],
        [0, 1, b"m", []],
        [0, 1, None, []],
        [0, 1, "m", {}],
        [0, 1, "m", None],
        [0, 1, "m", b""],
        [False, 1, "m", []],
        [0.0, 1, "m", []],
        [1, 1, None],
        [1, 1, 22, None],
        [1, 1, [22], None],
        [1, 1, ["22", "x"], None],
        [1, 1, [22, b"x"], None],
        [1, 1, [True, "x"], None],
        [1, -1, None, None],
        [True, 1, None, None],
        [2, "m"],
        [2, 1, []],
        [2, "m", "x"],
        [2, "m", [], 1],
        [2.0, "m", []],
        [3, 1, "m", []],
        [-1, 1, "m", []],
        [None, 1, "m", []],
        ["0", 1, "m", []],
    ],
)
def test_array_that_is_no_message(value: Any) -> None:
    got, error = failing(Connection(max_object=1000), msgpack.packb(value))
    assert (got, error.errno) == ([], errno.EPROTO)
    assert "[0, msgid, method, params]" in error.text


@pytest.mark.parametrize(
    "value", [None, True, 1, -1, 2**40, 1.5, "text", {}, {"a": 1}, msgpack.ExtType(5, b"x")]
)
def test_object_that_is_neither_array_nor_bin(value: Any) -> None:
    _, error = failing(Connection(max_object=1000, take_records=take_all), msgpack.packb(value)[:1])
    assert error.errno == errno.EPROTO
    assert "neither an array nor bin" in error.text


def test_records_only_where_they_belong() -> None:
    _, error = failing(Connection(max_object=1000), b"\xc4")
    assert (error.errno, "data socket" in error.text) == (errno.EPROTO, True)


@pytest.mark.parametrize("limit", [MAX_DATA_OBJECT, MAX_TRACEFS_OBJECT])
@pytest.mark.parametrize(
    "header", [b"\xc6\x7f\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\x94\x00\x01\xdb\x7f\xff\xff\xff"]
)
def test_a_size_that_is_only_announced(limit: int, header: bytes) -> None:
    _, error = failing(Connection(max_object=limit, take_records=take_all), header)
    assert error.errno == errno.EMSGSIZE


def test_the_largest_object_that_is_taken() -> None:
    connection = Connection(max_object=MAX_DATA_OBJECT)
    room = MAX_DATA_OBJECT - len(encode_request(1, "m", [b"x" * 60000])) + 60000
    assert len(list(connection.receive(encode_request(1, "m", [bytes(room)])))) == 1
    _, error = failing(connection, encode_request(1, "m", [bytes(room + 1)]))
    assert error.errno == errno.EMSGSIZE


def test_nesting() -> None:
    value: Any = 1
    for _ in range(6):
        value = [value]
    connection = Connection(max_object=1000)
    assert list(connection.receive(encode_request(1, "m", [value]))) == [Request(1, "m", [value])]
    _, error = failing(connection, encode_request(1, "m", [[value]]))
    assert (error.errno, error.text) == (errno.EPROTO, "arrays and maps nested more than 8 deep")


@pytest.mark.parametrize(
    "data",
    [
        b"\xc1",
        b"\x94\x00\x01\xa1m\x91\xc1",
        b"\x93\x02\xa1m\x91\x81\x90\x01",  # an array as key
        b"\x93\x02\xa1m\x91\x81\x80\x01",  # a map as key
        b"\x93\x02\xa1m\x91\xd4\xff\x00",  # a time stamp of one byte
    ],
)
def test_broken_objects(data: bytes) -> None:
    got, error = failing(Connection(max_object=1000), encode_request(7, "x", []) + data)
    assert got == [Request(7, "x", [])]
    assert error.errno == errno.EPROTO


def test_after_the_error_there_is_only_the_error() -> None:
    connection = Connection(max_object=1000)
    _, first = failing(connection, b"\xc1")
    got, again = failing(connection, encode_request(1, "m", []))
    assert (got, again.args) == ([], first.args)
    assert connection.bytes_pending == 0


def test_text_that_is_not_utf8_comes_through() -> None:
    data = b"\x93\x02\xa1\xff\x92\xa2\xfe\xfd\x81\xa1\xfc\x01"
    (message,) = Connection(max_object=1000).receive(data)
    assert message == Notification("\udcff", ["\udcfe\udcfd", {"\udcfc": 1}])
    assert isinstance(message, Notification)
    assert encode_notification(message.method, message.params) == data


def test_map_keys_of_all_kinds() -> None:
    params = [{1: 2, b"k": 3, None: 4, 1.5: 5}]
    (message,) = Connection(max_object=1000).receive(encode_notification("m", params))
    assert message == Notification("m", params)


def test_large_input_takes_linear_time() -> None:
    """20 MB as one read of many small messages, and as one large object in many small reads."""
    many = encode_notification("m", []) * 200_000
    connection = Connection(max_object=None)
    began = time.process_time()
    assert sum(1 for _ in connection.receive(many)) == 200_000
    large = b"\x93\x02\xa1m\x91\xdd" + struct.pack(">I", 2_000_000) + bytes(2_000_000)
    got: list[Message] = []
    for begin in range(0, len(large), 500):
        got += connection.receive(large[begin : begin + 500])
    assert len(got) == 1
    assert time.process_time() - began < 5.0


@pytest.mark.parametrize("size", [0, 1, 0xFF, 0xFFFF, 0x10000, 3 << 20])
@pytest.mark.parametrize("msgid", [0, 300, 0xFFFF_FFFF])
def test_a_response_in_pieces_is_what_the_packer_would_make_of_it(msgid: int, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    pieces = [data[at : at + 1000] for at in range(0, size, 1000)]
    assert b"".join(encode_bin_response(msgid, pieces)) == msgpack.packb([1, msgid, None, data])


def test_in_turns_nothing_is_decoded_before_it_is_asked_for() -> None:
    """Decoded objects may take fifty times as much memory as their bytes."""
    connection = Connection(max_object=1 << 16, take_records=lambda run, at: len(run))
    broken = b"\x94\0\1\xa1x\x91\xc7\x03\xff\0\0\0"  # a timestamp that cannot be
    turns = connection.receive_in_turns(msgpack.packb(b"1234") + encode_request(1, "a", []) + broken)
    assert next(turns) is None
    assert next(turns) == Request(1, "a", [])
    assert next(turns) is None
    with pytest.raises(ProtocolError):
        next(turns)
