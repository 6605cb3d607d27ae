"""The extent of one object, judged by msgpack itself and by hostile objects."""

import errno
import struct
import time
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol._framing import Scanner, record_run
from utracefs_protocol.errors import ProtocolError

OBJECTS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=300)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=20)),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
    max_leaves=30,
)


def scan(buffer: Any, offset: int, max_object: int | None = None, max_nesting: int = 8) -> int:
    return Scanner(max_object, max_nesting).scan(buffer, offset)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


def refused(data: bytes, **limits: Any) -> int:
    with pytest.raises(ProtocolError) as caught:
        scan(data, 0, **limits)
    return caught.value.errno


@given(OBJECTS, st.binary(max_size=5), st.binary(max_size=5))
def test_end_of_any_object(value: Any, before: bytes, behind: bytes) -> None:
    data = msgpack.packb(value)
    assert scan(before + data + behind, len(before), None, 64) == len(before) + len(data)
    assert scan(memoryview(data), 0, len(data), 64) == len(data)
    for end in range(len(data)):
        assert scan(data[:end], 0, None, 64) == 0


@given(OBJECTS)
def test_byte_by_byte_with_a_buffer_that_moves(value: Any) -> None:
    data = msgpack.packb(value)
    scanner = Scanner(None, 64)
    for _ in range(2):  # a second object begins anew
        for length in range(1, len(data)):
            assert scanner.scan(b"x" * (length % 3) + data[:length], length % 3) == 0
        assert scanner.scan(bytearray(data), 0) == len(data)


@given(OBJECTS)
def test_one_byte_too_many(value: Any) -> None:
    data = msgpack.packb(value)
    assert refused(data, max_object=len(data) - 1, max_nesting=64) == errno.EMSGSIZE


@given(OBJECTS)
def test_nesting(value: Any) -> None:
    data = msgpack.packb(value)
    assert scan(data, 0, None, depth(value)) == len(data)
    if depth(value):
        assert refused(data, max_nesting=depth(value) - 1) == errno.EPROTO


@pytest.mark.parametrize(
    "header",
    [
        b"\xc6" + struct.pack(">I", 65536),
        b"\xdb\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdf" + struct.pack(">I", 33000),  # twice as many elements as entries
        b"\xdd" + struct.pack(">I", 65532),
        b"\xc5\xff\xff",  # with its header above 65536
        b"\x92\xdd" + struct.pack(">I", 65530),  # together with the rest of its elements
        b"\x91\x91\xc6" + struct.pack(">I", 65530),
    ],
)
def test_announced_size_is_enough_to_refuse(header: bytes) -> None:
    assert refused(header, max_object=65536) == errno.EMSGSIZE
    assert scan(header[:-1], 0, 65536) == 0


def test_the_largest_that_fits() -> None:
    assert scan(b"\xc5\xff\xfd" + bytes(65533), 0, 65536) == 65536
    assert scan(b"\xdd" + struct.pack(">I", 65531) + bytes(65531), 0, 65536) == 65536


@pytest.mark.parametrize("data", [b"\xc1", b"\x92\x01\xc1", b"\x81\xc1"])
def test_the_byte_that_means_nothing(data: bytes) -> None:
    assert refused(data) == errno.EPROTO


def test_no_recursion() -> None:
    assert refused(b"\x91" * 1_000_000) == errno.EPROTO
    assert refused(b"\x91" * 65, max_nesting=64) == errno.EPROTO
    assert scan(b"\x91" * 64 + b"\x00", 0, None, 64) == 65
    with pytest.raises(ValueError, match="at most 64"):
        Scanner(None, 65)


def test_empty_containers_count_as_nested() -> None:
    assert scan(b"\x91" * 7 + b"\x90", 0, None, 8) == 8
    assert refused(b"\x91" * 8 + b"\x90", max_nesting=8) == errno.EPROTO


def test_an_object_that_trickles_in_is_walked_once() -> None:
    """A million elements, a call for every kilobyte: seconds if every call began at the front."""
    data = b"\xdd" + struct.pack(">I", 1_000_000) + bytes(1_000_000)
    scanner = Scanner(1 << 20)
    began = time.process_time()
    with memoryview(data) as view:
        for end in range(0, len(data), 100):
            assert scanner.scan(view[:end], 0) == 0
    assert scanner.scan(data, 0) == len(data)
    assert time.process_time() - began < 1.0


def test_offset_outside() -> None:
    for offset in (-1, 2):
        with pytest.raises(IndexError):
            scan(b"\x00", offset)
        with pytest.raises(IndexError):
            record_run(b"\x00", offset)
    assert scan(b"\x00", 1) == 0


def test_record_run() -> None:
    records = [msgpack.packb(bytes(n)) for n in (0, 1, 255, 256, 65535, 65536)]
    data = b"".join(records)
    ends = [sum(map(len, records[: n + 1])) for n in range(len(records))]
    assert record_run(data, 0) == len(data)
    assert record_run(data + b"\x90", 0) == len(data)
    assert record_run(data, 0, 65536) == ends[3]
    assert record_run(data, ends[3], 65536) == ends[3]
    assert record_run(b"", 0) == 0
    assert record_run(b"\x90", 0) == 0
    for cut in range(len(data) - 65536 - 3, len(data) - 65000):
        assert record_run(data[:cut], 0) == max(end for end in ends if end <= cut)
    assert record_run(memoryview(b"x" + records[1]), 1) == 1 + len(records[1])
