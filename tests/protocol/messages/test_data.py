"""The methods of the data socket: there and back, and every wrong shape with its errno, in the kernel's
order."""

import errno
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.messages.test_values import over_the_wire
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST
from utracefs_protocol.messages.data import (
    MAX_TOKEN,
    METHODS,
    RING_VERSION,
    AdoptRing,
    Enabler,
    EnablerRegistered,
    EnablersChanged,
    EnablersWritten,
    EventDeletion,
    EventRegistration,
    EventUnregistration,
    LocOffsetQuery,
    MmapStatus,
    NotifyEnablers,
    OpenFor,
    Registered,
    RingMapped,
    StatusMapped,
    Sync,
    Write,
)
from utracefs_protocol.messages.rows import Params

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("message", "params"),
    [
        (EventRegistration(b"test u32 a"), [{"name_args": "test u32 a"}]),
        (EventDeletion(b"test"), ["test"]),
        (EventDeletion(b"\xff"), [b"\xff"]),
        (EventUnregistration(1, 8, 31), [{"disable_fd": 1, "disable_addr": 8, "disable_bit": 31}]),
        (EventUnregistration(token=0), [{"disable_token": 0}]),
        (EventRegistration(b"test", token=MAX_TOKEN), [{"name_args": "test", "enable_token": MAX_TOKEN}]),
        (LocOffsetQuery(), []),
        (MmapStatus(), []),
        (Write(b"\0\0\0\0"), [b"\0\0\0\0"]),
        (Write(b"\0\0\0\0", 5), [b"\0\0\0\0", 5]),
        (NotifyEnablers(), [{}]),
        (OpenFor(7, 0, 1000, 100), [{"pid": 7, "start_time": 0, "uid": 1000, "gid": 100}]),
        (Sync(), []),
        (AdoptRing(), [{}]),
    ],
)
def test_there_and_back(message: Params, params: list[Any]) -> None:
    assert message.to_params() == params
    assert METHODS[message.METHOD].from_params(over_the_wire(params)) == message


def test_every_method_has_its_class() -> None:
    """The methods of the page's section 3, in its words."""
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = page[page.index("## 3. ") : page.index("## 4. ")]
    assert set(re.findall(r"`(\w+)` `\[", section)) | {"adopt_ring"} == set(METHODS)
    for name, kind in METHODS.items():
        assert name == kind.METHOD


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("DIAG_IOCSDEL", [], r"DIAG_IOCSDEL takes \[name\], not 0 params"),
        ("DIAG_IOCSDEL", [5], "name must be str or bin, not int"),
        ("DIAG_IOCQLOCOFFSET", [1], r"takes \[\], not 1 params"),
        ("mmap_status", [{}], r"takes \[\], not 1 params"),
        ("sync", [None], r"takes \[\], not 1 params"),
        ("write", [], r"write takes \[bin\], not 0 params"),
        ("write", ["text"], "record must be bin, not str"),
        ("write", [b"", 0], "tid 0 is not within"),
        ("write", [b"", 1 << 31], "tid 2147483648 is not within"),
        ("write", [b"", None], "tid must be an integer, not nil"),
        ("write", [b"", 1, 2], r"write takes \[bin\], not 3 params"),
        ("notify_enablers", [], r"notify_enablers takes \[map\], not 0 params"),
        ("notify_enablers", [None], "notify_enablers must be a map, not nil"),
        ("open_for", [], r"open_for takes \[process\], not 0 params"),
        ("open_for", [{"pid": 0}], "pid 0 is not within"),
        ("open_for", [{"pid": 1}], "start_time must be an integer, not nil"),
        ("open_for", [{"pid": 1, "start_time": -1}], "start_time -1 is not within"),
        ("open_for", [{"pid": 1, "start_time": 1, "uid": (1 << 32) - 1}], "uid 4294967295 is not within"),
        ("open_for", [{"pid": 1, "start_time": 1, "uid": 0}], "gid must be an integer, not nil"),
        ("DIAG_IOCSREG", [{"name_args": "x", "enable_token": -1}], "enable_token -1 is not within"),
        ("DIAG_IOCSREG", [{"name_args": "x", "enable_token": 1 << 63}], "is not within"),
        ("DIAG_IOCSREG", [{"name_args": "x", "enable_token": True}], "must be an integer, not bool"),
        ("DIAG_IOCSREG", [{"name_args": "x", "enable_token": 0, "enable_bit": 1}], "token and enable_bit"),
        ("DIAG_IOCSUNREG", [{"disable_token": -1}], "disable_token -1 is not within"),
        ("adopt_ring", [], r"adopt_ring takes \[map\], not 0 params"),
        ("adopt_ring", [[]], "adopt_ring must be a map, not array"),
    ],
)
def test_refused(method: str, params: list[Any], says: str) -> None:
    with pytest.raises(TraceError, match=says) as caught:
        METHODS[method].from_params(params)
    assert caught.value.errno == errno.EINVAL


def test_the_rings_version_is_the_headers() -> None:
    header = (ROOT / "protocol/utracefs_protocol/include/data_ring.h").read_text()
    (version,) = re.findall(r"#define DR_VERSION (\d+)u", header)
    assert int(version) == RING_VERSION


def test_results() -> None:
    for result in (StatusMapped(4096), RingMapped(1 << 16)):
        assert type(result).from_wire({**result.to_wire(), "later": 5}) == result
    for wrong in (None, {}, {"size": 0}, {"size": "4096"}, {"size": True}):
        with pytest.raises(TraceError):
            StatusMapped.from_wire(wrong)
    for wrong in (None, {"version": 2}, {"size": 4096}, {"size": 4096, "version": 1}):
        with pytest.raises(TraceError):
            RingMapped.from_wire(wrong)


def test_what_is_not_known_yet_is_refused_only_where_it_means_something() -> None:
    for name, known in (
        ("notify_enablers", {}),
        ("open_for", {"pid": 1, "start_time": 1, "uid": 0, "gid": 0}),
    ):
        METHODS[name].from_params([{**known, "later": 0, "other": None}])
        with pytest.raises(TraceError) as caught:
            METHODS[name].from_params([{**known, "later": 1}])
        assert caught.value.errno == errno.E2BIG


def test_members_of_a_word_may_be_zero_beside_a_token() -> None:
    reg = {"name_args": "x", "enable_token": 5, "enable_fd": 0, "enable_addr": None, "enable_size": 0}
    assert EventRegistration.from_params([reg]) == EventRegistration(b"x", token=5)


def test_notifications_there_and_back() -> None:
    changed = EnablersChanged(3, [(0, True), (MAX_TOKEN, False)])
    assert changed.to_params() == [3, [[0, 1], [MAX_TOKEN, 0]]]
    assert EnablersChanged.from_params(over_the_wire(changed.to_params())) == changed
    assert EnablersWritten.from_params(over_the_wire(EnablersWritten(3).to_params())) == EnablersWritten(3)
    changes: list[Any] = [{}, [5], [[1]], [[1, 2]], [[-1, 0]], None]
    params: list[list[Any]] = [[], [1], [0, []], ["1", []], *([1, wrong] for wrong in changes)]
    for wrong in params:
        with pytest.raises(TraceError):
            EnablersChanged.from_params(wrong)
    params = [[], [1, 2], ["1"], [-1], [None], [1 << 64]]
    for wrong in params:
        with pytest.raises(TraceError):
            EnablersWritten.from_params(wrong)


def test_results_of_registrations() -> None:
    made = EnablerRegistered(1, 20, True)
    assert made.to_wire() == {"status_index": 1, "id": 20, "enabled": 1}
    assert EnablerRegistered.from_wire({**made.to_wire(), "later": 5}) == made
    for wrong in ({"enabled": 2}, {"enabled": None}, {"id": 0}, {"status_index": 0}):
        with pytest.raises(TraceError):
            EnablerRegistered.from_wire({**made.to_wire(), **wrong})


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
    assert EventRegistration.from_params(over_the_wire(registration.to_params())) == registration


def test_registration_with_the_members_of_the_struct() -> None:
    reg = {"name_args": "test u32 a", "size": 28, "flags": 0, **ENABLER, "later": 0, "other": None}
    assert EventRegistration.from_params([reg]) == EventRegistration(b"test u32 a", 0, Enabler(0, 8, 31, 4))
    for size in (28, 29, 4096):
        assert EventRegistration.from_params([{"name_args": "x", "size": size}]).enabler is None


# Every row has all faults of the rows below it as well: the order of the checks is the kernel's.
REGISTRATION_FAULTS: list[tuple[dict[Any, Any], int, str]] = [
    ({"size": 4097}, errno.E2BIG, "size 4097"),
    ({"size": 27}, errno.EINVAL, "size 27"),
    ({"later": 1}, errno.E2BIG, "'later'"),
    ({"flags": 4}, errno.EINVAL, "flags 0x4"),
    ({"enable_size": 2}, errno.EINVAL, "enable_size 2"),
    ({"enable_addr": 10, "enable_size": 4}, errno.EINVAL, "not a multiple"),
    ({"enable_bit": 32, "enable_size": 4}, errno.EINVAL, "enable_bit 32"),
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
        EventRegistration.from_params([reg])
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
        EventRegistration.from_params([{"name_args": "test", **reg}])
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("params", [[], [{}, {}], [[]], ["test"], [None], [b"test"], [{}]])
@pytest.mark.parametrize("kind", [EventRegistration, EventUnregistration])
def test_params_of_wrong_shape(kind: type[EventRegistration], params: list[Any]) -> None:
    with pytest.raises(TraceError) as caught:
        kind.from_params(params)
    assert caught.value.errno == errno.EINVAL


def test_unregistration_there_and_back() -> None:
    unregistration = EventUnregistration(fd=1, addr=12, bit=31)
    assert EventUnregistration.from_params(over_the_wire(unregistration.to_params())) == unregistration
    assert EventUnregistration.from_params([{"disable_fd": 0, "reserved": 0, "size": 16}]) == (
        EventUnregistration(0, 0, 0)
    )


@pytest.mark.parametrize(
    ("members", "number"),
    [
        ({"size": 4097}, errno.E2BIG),
        ({"size": 15}, errno.EINVAL),
        ({"reserved": 1}, errno.EINVAL),
        ({"__reserved2": 1}, errno.EINVAL),
        ({"later": 1}, errno.E2BIG),
        ({"later": 1, "reserved": 1}, errno.E2BIG),
        ({"disable_fd": None}, errno.EINVAL),
        ({"disable_fd": "0"}, errno.EINVAL),
        ({"disable_bit": 256}, errno.EINVAL),
        ({"disable_addr": -1}, errno.EINVAL),
    ],
)
def test_unregistration_refused(members: dict[str, Any], number: int) -> None:
    with pytest.raises(TraceError) as caught:
        EventUnregistration.from_params([{"disable_fd": 0, "disable_addr": 0, "disable_bit": 0, **members}])
    assert caught.value.errno == number


def test_registered() -> None:
    registered = Registered(status_index=1, write_index=0, id=20)
    whole = Registered(1, 0, 20, 12, [[4, 3]]).to_wire()
    assert whole == {"status_index": 1, "write_index": 0, "id": 20, "size": 12, "locs": [[4, 3]]}
    assert "locs" not in Registered(1, 0, 20, 12, []).to_wire()
    for wire in (registered.to_wire(), {**registered.to_wire(), "later": 5}, whole):
        assert Registered.from_wire(wire) == registered
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


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["name_args", "flags", "size", "disable_fd", "disable_addr", *ENABLER]),
            st.none() | st.booleans() | st.integers(-2, 70000) | st.text(max_size=3) | st.binary(max_size=3),
        ),
        max_size=2,
    )
)
def test_any_map_is_read_or_refused(params: list[Any]) -> None:
    for kind in METHODS.values():
        try:
            kind.from_params(params)
        except TraceError as error:
            assert error.errno in (errno.EINVAL, errno.E2BIG)
