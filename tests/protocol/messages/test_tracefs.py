"""The methods of the tracefs socket: there and back, and every wrong shape."""

import errno
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.messages.test_values import over_the_wire
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.rows import Params
from utracefs_protocol.messages.tracefs import (
    METHODS,
    Cancel,
    Close,
    DirEntry,
    GetMissed,
    ListDir,
    Missed,
    Mkdir,
    Open,
    PerfAttr,
    PerfIoctl,
    PerfOpened,
    Read,
    ReadFile,
    Ready,
    Rmdir,
    Seek,
    Stat,
    StatPath,
    StreamAttr,
    StreamMissed,
    Write,
    WriteFile,
    Writer,
)
from utracefs_protocol.pages.perf_ring import SampleType


@pytest.mark.parametrize(
    ("message", "params"),
    [
        (ReadFile(b"trace"), ["trace"]),
        (ReadFile(b"a/\xff"), [b"a/\xff"]),
        (WriteFile(b"tracing_on", b"1\n", True), ["tracing_on", b"1\n", True]),
        (ListDir(b""), [""]),
        (ListDir(b"events", True), ["events", True]),
        (StatPath(b"trace"), ["trace"]),
        (Mkdir(b"instances/a"), ["instances/a"]),
        (Rmdir(b"instances/a"), ["instances/a"]),
        (Open(b"trace_pipe", 2048), ["trace_pipe", 2048]),
        (Read(3, 4096), [3, 4096]),
        (Read(3, 4096, 2048), [3, 4096, 2048]),
        (Write(3, b"x"), [3, b"x"]),
        (Write(3, b"x", Writer(7, 8)), [3, b"x", {"pid": 7, "start_time": 8}]),
        (Seek(3, 0), [3, 0]),
        (Ready(3), [3]),
        (Cancel(9), [9]),
        (Close(3), [3]),
        (GetMissed(3), [3]),
        (PerfAttr(config=20), [{"config": 20}]),
        (PerfIoctl(3, "PERIOD", 7), [3, "PERIOD", 7]),
        (PerfIoctl(3, "ID"), [3, "ID", 0]),
        (StreamAttr((b"a*", b"\xff")), [{"events": ["a*", b"\xff"], "size": 4 << 20}]),
        (
            StreamAttr((b"a",), (b"web",), b"x > 1", 1 << 20, 4096),
            [{"events": ["a"], "instances": ["web"], "filter": "x > 1", "size": 1 << 20, "watermark": 4096}],
        ),
        (
            StreamAttr((b"a",), (b"web",), filtered=True),
            [{"events": ["a"], "instances": ["web"], "size": 4 << 20, "filtered": True}],
        ),
    ],
)
def test_there_and_back(message: Params, params: list[Any]) -> None:
    assert message.to_params() == params
    assert METHODS[message.METHOD].from_params(over_the_wire(params)) == message


def test_every_method_has_its_class() -> None:
    """The methods of the table in section 4 of the page."""
    page = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")
    section = page[page.index("## 4. ") : page.index("### 4.1")]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `\[", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(METHODS)
    for name, kind in METHODS.items():
        assert name == kind.METHOD


def test_str_does_as_well_for_contents() -> None:
    assert WriteFile.from_params([b"a", "1\udcff", False]) == WriteFile(b"a", b"1\xff", False)
    assert Write.from_params([1, "1"]) == Write(1, b"1")
    assert PerfIoctl.from_params([1, b"ID", None]) == PerfIoctl(1, "ID", None)


@pytest.mark.parametrize(
    ("method", "params", "says"),
    [
        ("read_file", [], r"^read_file takes \[path\], not [0-9] params$"),
        ("read_file", ["a", "b"], r"^read_file takes \[path\], not [0-9] params$"),
        ("stat", [1], "^path must be str or bin, not int$"),
        ("mkdir", ["a\0b"], "^a path holds no NUL$"),
        ("rmdir", ["\ud800"], "UTF-8"),
        ("write_file", ["a", b"x"], r"^write_file takes \[path, bin, truncate\], not [0-9] params$"),
        ("write_file", ["a", b"x", 1], "^truncate must be true"),
        ("write_file", ["a", 1, True], "^bin must be str or bin, not int$"),
        ("open", ["a"], r"^open takes \[path, flags\], not [0-9] params$"),
        ("open", ["a", -1], "^flags -1 is not within 0 to 18446744073709551615$"),
        ("open", ["a", "r"], "^flags must be an integer"),
        ("read", [True, 5], "^handle must be an integer"),
        ("read", [1, None], "^size must be an integer"),
        ("read", [1], r"^read takes \[handle, size, flags\], not [0-9] params$"),
        ("write", [1, []], "^bin must be str or bin, not array$"),
        ("close", [], r"^close takes \[handle\], not [0-9] params$"),
        ("perf_event_open", [], r"^perf_event_open takes \[attr\], not [0-9] params$"),
        ("perf_event_open", [[]], "^attr must be a map$"),
        ("perf_event_open", [{5: 1}], "^key must be str or bin, not int$"),
        ("perf_ioctl", [1, "ID"], r"^perf_ioctl takes \[handle, name, arg\], not [0-9] params$"),
        ("perf_ioctl", [1, 2, 3], "^name must be str or bin, not int$"),
    ],
)
def test_refused(method: str, params: list[Any], says: str) -> None:
    with pytest.raises(TraceError, match=says) as caught:
        METHODS[method].from_params(params)
    assert caught.value.errno == errno.EINVAL


def test_results() -> None:
    for entry in (DirEntry(b"events", "d"), DirEntry(b"odd\xff", "f", 0o640)):
        assert DirEntry.from_wire(over_the_wire([entry.to_wire()])[0]) == entry
    stat = Stat("f", 0o640, 0)
    assert Stat.from_wire({**stat.to_wire(), "later": 1}) == stat
    wrong_entries: list[object] = [None, ["a"], ["a", 1], [1, "d"], "ad"]
    for wrong in wrong_entries:
        with pytest.raises(TraceError):
            DirEntry.from_wire(wrong)
    for wrong in (None, {}, {"kind": "f", "mode": "640", "size": 0}, {"kind": 1, "mode": 0, "size": 0}):
        with pytest.raises(TraceError):
            Stat.from_wire(wrong)


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
    assert PerfAttr.from_params(over_the_wire(attr.to_params())) == attr


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
        ({"data_pages": 32768}, errno.EINVAL),
        ({"wakeup_watermark": 1 << 32}, errno.EINVAL),
        ({"disabled": 2}, errno.EINVAL),
        ({"disabled": "yes"}, errno.EINVAL),
        ({"filter": 1}, errno.EINVAL),
        ({"sample_type": 0x8}, errno.EINVAL),
        ({"inherit": 1}, errno.E2BIG),
        ({5: 1}, errno.EINVAL),
    ],
)
def test_perf_attr_refused(members: dict[Any, Any], number: int) -> None:
    with pytest.raises(TraceError) as caught:
        PerfAttr.from_params([PERF.to_params()[0] | members])
    assert caught.value.errno == number


def test_perf_attr_by_either_name() -> None:
    with pytest.raises(TraceError, match="either config"):
        PerfAttr.from_params([{}])
    assert PerfAttr.from_params([{"config": 5, "name": None, "inherit": False}]) == PerfAttr(config=5)


def test_perf_opened() -> None:
    opened = PerfOpened(handle=3, id=7, size=8192)
    assert PerfOpened.from_wire(opened.to_wire()) == opened
    assert PerfOpened(3).to_wire() == {"handle": 3}
    assert PerfOpened(0, size=1).to_wire() == {"handle": 0, "size": 1}
    assert PerfOpened.from_wire({"handle": 3}) == PerfOpened(3)
    with pytest.raises(TraceError):
        PerfOpened.from_wire({"id": 3})


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(list(PerfAttr.ROWS)),
            st.none() | st.booleans() | st.integers(-2, 70000) | st.text(max_size=3) | st.binary(max_size=3),
        )
        | st.none()
        | st.booleans()
        | st.integers(-2, 70000)
        | st.text(max_size=3)
        | st.binary(max_size=3),
        max_size=3,
    )
)
def test_any_params_are_read_or_refused(params: list[Any]) -> None:
    for kind in METHODS.values():
        try:
            kind.from_params(params)
        except TraceError as error:
            assert error.errno in (errno.EINVAL, errno.E2BIG)


@pytest.mark.parametrize(
    ("attr", "number"),
    [
        ({}, errno.EINVAL),
        ({"events": []}, errno.EINVAL),
        ({"events": "a"}, errno.EINVAL),
        ({"events": [1]}, errno.EINVAL),
        ({"events": ["a"] * 65}, errno.E2BIG),
        ({"instances": ["a"] * 65}, errno.E2BIG),
        ({"instances": {}}, errno.EINVAL),
        ({"filter": "x" * 4097}, errno.E2BIG),
        ({"filter": 1}, errno.EINVAL),
        ({"size": 1}, errno.EINVAL),
        ({"size": 3 << 20}, errno.EINVAL),
        ({"size": 1 << 28}, errno.EINVAL),
        ({"size": "x"}, errno.EINVAL),
        ({"watermark": -1}, errno.EINVAL),
        ({"size": 1 << 18, "watermark": 1 << 19}, errno.EINVAL),
        ({"filtered": True}, errno.EINVAL),
        ({"filtered": True, "instances": ["a", "b"]}, errno.EINVAL),
        ({"filtered": True, "instances": ["a"], "filter": "x > 1"}, errno.EINVAL),
        ({"else": 1}, errno.E2BIG),
    ],
)
def test_streams_that_cannot_be(attr: dict[str, Any], number: int) -> None:
    with pytest.raises(TraceError) as caught:
        StreamAttr.from_params([attr if not attr or "events" in attr else {"events": ["a"], **attr}])
    assert caught.value.errno == number


def test_records_that_a_stream_missed() -> None:
    missed = StreamMissed(b"ab12", 1, (Missed(b"user_events:a", 7, 0), Missed(b"user_events:\xff", 0, 2)))
    (there,) = over_the_wire([missed.to_wire()])
    assert StreamMissed.from_wire(there) == missed
    for events in (7, [7], [["a", 1]], [["a", 1, -1]]):
        with pytest.raises(TraceError):
            StreamMissed.from_wire({"origin": "ab12", "events": events})
