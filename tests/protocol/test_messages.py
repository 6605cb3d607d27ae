"""The maps of the wire: there and back, and every wrong shape with its errno, in the kernel's order."""

import errno
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.connection import Connection, Request, encode_request
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages import (
    REG_MULTI_FORMAT,
    REG_PERSIST,
    Enabler,
    EventRegistration,
    EventUnregistration,
    PerfAttr,
    PerfOpened,
    Registered,
    params_of,
    text_bytes,
    wire_bool,
    wire_bytes,
    wire_int,
    wire_map,
    wire_text,
)
from utracefs_protocol.perf_ring import SampleType


def over_the_wire(params: list[Any]) -> list[Any]:
    (message,) = Connection(max_object=None).receive(encode_request(1, "m", params))
    assert isinstance(message, Request)
    return message.params


ENABLER = {"enable_fd": 0, "enable_addr": 8, "enable_bit": 31, "enable_size": 4}


@pytest.mark.parametrize(
    "registration",
    [
        EventRegistration(b"test u32 a"),
        EventRegistration(b"test", REG_PERSIST | REG_MULTI_FORMAT),
        EventRegistration(b"test \xff", 0, Enabler(fd=2, addr=4096, bit=63, size=8)),
        EventRegistration(b"", 0, Enabler(fd=0, addr=0, bit=0, size=4)),
    ],
)
def test_registration_there_and_back(registration: EventRegistration) -> None:
    assert EventRegistration.from_wire(over_the_wire(registration.to_wire())) == registration


def test_registration_with_the_members_of_the_struct() -> None:
    reg = {"name_args": "test u32 a", "size": 28, "flags": 0, **ENABLER, "later": 0, "other": None}
    assert EventRegistration.from_wire([reg]) == EventRegistration(b"test u32 a", 0, Enabler(0, 8, 31, 4))
    for size in (28, 29, 4096):
        assert EventRegistration.from_wire([{"name_args": "x", "size": size}]).enabler is None


# Every row has all faults of the rows below it as well: the order of the checks is the kernel's.
REGISTRATION_FAULTS: list[tuple[dict[Any, Any], int, str]] = [
    ({"size": 4097}, errno.E2BIG, "size 4097"),  # R2
    ({"size": 27}, errno.EINVAL, "size 27"),  # R3
    ({"later": 1}, errno.E2BIG, "'later'"),  # R5
    ({"flags": 4}, errno.EINVAL, "flags 0x4"),  # R6
    ({"enable_size": 2}, errno.EINVAL, "enable_size 2"),  # R7
    ({"enable_addr": 10, "enable_size": 4}, errno.EINVAL, "not a multiple"),  # R8
    ({"enable_bit": 32, "enable_size": 4}, errno.EINVAL, "enable_bit 32"),  # R9
    ({"enable_fd": None}, errno.EINVAL, "enable_fd is missing"),
    ({"name_args": None}, errno.EINVAL, "no name_args"),
]


@pytest.mark.parametrize("first", range(len(REGISTRATION_FAULTS)))
def test_registration_refused_in_order(first: int) -> None:
    reg: dict[Any, Any] = {"name_args": "test", **ENABLER}
    for fault, _, _ in reversed(REGISTRATION_FAULTS[first:]):
        reg |= fault
    _, number, says = REGISTRATION_FAULTS[first]
    with pytest.raises(TraceError, match=says) as caught:
        EventRegistration.from_wire([reg])
    assert caught.value.errno == number


@pytest.mark.parametrize(
    "reg",
    [
        {"flags": 8},
        {"flags": 1 << 16},
        {"flags": -1},
        {"flags": "1"},
        {"flags": True},
        {"size": 0},
        {"size": -1},
        {"size": "28"},
        {"size": 28.0},
        {**ENABLER, "enable_size": 0},
        {**ENABLER, "enable_size": 16},
        {**ENABLER, "enable_size": None},
        {**ENABLER, "enable_size": 8, "enable_addr": 12},
        {**ENABLER, "enable_size": 8, "enable_bit": 64},
        {**ENABLER, "enable_bit": -1},
        {**ENABLER, "enable_addr": -4},
        {**ENABLER, "enable_addr": 1 << 64},
        {**ENABLER, "enable_addr": "0"},
        {**ENABLER, "enable_fd": -1},
        {**ENABLER, "enable_fd": "0"},
        {**ENABLER, "enable_fd": 256},
        {"enable_bit": 3},
        {"enable_fd": 0},
        {"name_args": 5},
        {"name_args": ["test"]},
        {"name_args": "\ud800"},
    ],
)
def test_registration_of_wrong_shape(reg: dict[str, Any]) -> None:
    with pytest.raises(TraceError) as caught:
        EventRegistration.from_wire([{"name_args": "test", **reg}])
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("params", [[], [{}, {}], [[]], ["test"], [None], [b"test"], [{}]])
@pytest.mark.parametrize("kind", [EventRegistration, EventUnregistration, PerfAttr])
def test_params_of_wrong_shape(kind: type[EventRegistration], params: list[Any]) -> None:
    with pytest.raises(TraceError) as caught:
        kind.from_wire(params)
    assert caught.value.errno == errno.EINVAL


def test_enabler_bits() -> None:
    for size, bit in ((4, 31), (8, 63)):
        reg = {"name_args": "x", "enable_fd": 0, "enable_size": size, "enable_bit": bit}
        assert EventRegistration.from_wire([reg]).enabler == Enabler(0, 0, bit, size)


def test_unregistration_there_and_back() -> None:
    unregistration = EventUnregistration(fd=1, addr=12, bit=31)
    assert EventUnregistration.from_wire(over_the_wire(unregistration.to_wire())) == unregistration
    assert EventUnregistration.from_wire([{"disable_fd": 0, "reserved": 0, "size": 16}]) == (
        EventUnregistration(0, 0, 0)
    )


@pytest.mark.parametrize(
    ("members", "number"),
    [
        ({"size": 4097}, errno.E2BIG),  # U2
        ({"size": 15}, errno.EINVAL),  # U3
        ({"reserved": 1}, errno.EINVAL),  # U4
        ({"__reserved2": 1}, errno.EINVAL),
        ({"later": 1}, errno.E2BIG),  # U5
        ({"later": 1, "reserved": 1}, errno.E2BIG),
        ({"disable_fd": None}, errno.EINVAL),
        ({"disable_fd": "0"}, errno.EINVAL),
        ({"disable_bit": 256}, errno.EINVAL),
        ({"disable_addr": -1}, errno.EINVAL),
    ],
)
def test_unregistration_refused(members: dict[str, Any], number: int) -> None:
    with pytest.raises(TraceError) as caught:
        EventUnregistration.from_wire([{"disable_fd": 0, "disable_addr": 0, "disable_bit": 0, **members}])
    assert caught.value.errno == number


def test_registered() -> None:
    registered = Registered(status_index=1, write_index=0, id=20)
    assert Registered.from_wire(registered.to_wire()) == registered
    assert Registered.from_wire({**registered.to_wire(), "later": 5}) == registered
    for wrong in (
        {"status_index": 0},
        {"write_index": -1},
        {"write_index": 1 << 31},
        {"id": None},
        {"id": 1 << 16},
    ):
        with pytest.raises(TraceError):
            Registered.from_wire({**registered.to_wire(), **wrong})
    with pytest.raises(TraceError):
        Registered.from_wire(None)


PERF = PerfAttr(
    config=1039,
    sample_period=10,
    pid=0,
    cpu=3,
    filter=b"a == 1",
    data_pages=8,
    wakeup_watermark=4096,
    disabled=True,
    sample_type=SampleType.RAW | SampleType.TIME,
)


@pytest.mark.parametrize(
    "attr",
    [
        PERF,
        PerfAttr(name=b"user_events:test"),
        PerfAttr(name=b"user_events:\xff", sample_freq=99, data_pages=1),
    ],
)
def test_perf_attr_there_and_back(attr: PerfAttr) -> None:
    assert PerfAttr.from_wire(over_the_wire(attr.to_wire())) == attr


def test_perf_attr_defaults() -> None:
    attr = PerfAttr.from_wire([{"config": 20}])
    assert (attr.pid, attr.cpu, attr.sample_period, attr.data_pages, attr.sample_type) == (
        -1,
        -1,
        0,
        0,
        0x10587,
    )


@pytest.mark.parametrize(
    ("members", "number"),
    [
        ({"config": None}, errno.EINVAL),
        ({"name": "user_events:x"}, errno.EINVAL),
        ({"config": -1}, errno.EINVAL),
        ({"config": 65536}, errno.EINVAL),
        ({"config": "1"}, errno.EINVAL),
        ({"sample_freq": 5}, errno.EINVAL),
        ({"sample_period": 0, "sample_freq": 100_001}, errno.EINVAL),
        ({"sample_period": -1}, errno.EINVAL),
        ({"pid": -2}, errno.EINVAL),
        ({"cpu": -2}, errno.EINVAL),
        ({"cpu": "all"}, errno.EINVAL),
        ({"data_pages": 3}, errno.EINVAL),
        ({"data_pages": 0}, errno.EINVAL),
        ({"data_pages": 2048}, errno.EINVAL),
        ({"wakeup_watermark": 1 << 32}, errno.EINVAL),
        ({"disabled": 2}, errno.EINVAL),
        ({"disabled": "yes"}, errno.EINVAL),
        ({"filter": 1}, errno.EINVAL),
        ({"sample_type": 0x8}, errno.EINVAL),
        ({"inherit": 1}, errno.E2BIG),
        ({5: 1}, errno.E2BIG),
    ],
)
def test_perf_attr_refused(members: dict[Any, Any], number: int) -> None:
    with pytest.raises(TraceError) as caught:
        PerfAttr.from_wire([PERF.to_wire()[0] | members])
    assert caught.value.errno == number


def test_perf_attr_by_either_name() -> None:
    with pytest.raises(TraceError, match="either config"):
        PerfAttr.from_wire([{}])
    assert PerfAttr.from_wire([{"config": 5, "name": None, "inherit": False}]) == PerfAttr(config=5)


def test_perf_opened() -> None:
    opened = PerfOpened(handle=3, id=7, size=8192)
    assert PerfOpened.from_wire(opened.to_wire()) == opened
    assert PerfOpened.from_wire({"handle": 3}) == PerfOpened(3)
    with pytest.raises(TraceError):
        PerfOpened.from_wire({"id": 3})


@given(st.binary(max_size=20))
def test_names_there_and_back(name: bytes) -> None:
    (value,) = over_the_wire([wire_text(name)])
    assert text_bytes(value, "name") == name


def test_names() -> None:
    assert (wire_text(b"a\xc3\xa4"), wire_text(b"\xff")) == ("aä", b"\xff")
    assert text_bytes("\udcff", "name") == b"\xff"
    with pytest.raises(TraceError, match="name must be str or bin, not nil"):
        text_bytes(None, "name")


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (wire_int, [0, 2**64 - 1], [-1, 2**64, True, 1.0, "1", None, b"1", [], {}]),
        (wire_bool, [True, False, 0, 1], [2, "x", None, 1.0]),
        (wire_bytes, [b"", b"x"], ["x", None, 1]),
        (wire_map, [{}, {1: 2}], [[], None, "x"]),
    ],
)
def test_single_values(function: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert function(value, "x") == value
    for value in bad:
        with pytest.raises(TraceError, match=r"^x ") as caught:
            function(value, "x")
        assert caught.value.errno == errno.EINVAL


def test_number_of_params() -> None:
    assert params_of("read", [1, 2], "handle", "size") == [1, 2]
    with pytest.raises(TraceError, match=r"read takes \[handle, size\], not 1 params"):
        params_of("read", [1], "handle", "size")


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(
                [*(field.name for field in attrs.fields(PerfAttr)), "name_args", "flags", "size", *ENABLER]
            ),
            st.none() | st.booleans() | st.integers(-2, 70000) | st.text(max_size=3) | st.binary(max_size=3),
        ),
        max_size=2,
    )
)
def test_any_map_is_read_or_refused(params: list[Any]) -> None:
    for kind in (EventRegistration, EventUnregistration, PerfAttr):
        try:
            kind.from_wire(params)
        except TraceError as error:
            assert error.errno in (errno.EINVAL, errno.E2BIG)
