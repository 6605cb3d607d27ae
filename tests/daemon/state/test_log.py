"""The log: its contents, and every error in it."""

from __future__ import annotations

import pytest

from tests.daemon.restarting import packed
from utracefsd.consumers.ftrace.event.event_file import SavedTrigger
from utracefsd.intake.rings import KnownRing
from utracefsd.state.log import MAGIC, VERSION, StateError, parse_log

HEAD = [MAGIC, VERSION]
TOP = ["instance", 0, b""]
START = packed(HEAD, TOP)
EVENT = ["event", 1039, 1, 0, 1000, b"a", b"a u32 n"]


def test_logs_of_older_versions() -> None:
    assert parse_log(packed([MAGIC, 5], TOP)).restarts == 0
    with pytest.raises(StateError, match="has version 4, this daemon reads 5 to 7"):
        parse_log(packed([MAGIC, 4], TOP))


def test_a_torn_last_object_is_left_out() -> None:
    data = START + packed(EVENT)
    for cut in range(len(START), len(data)):
        assert parse_log(data[:cut]).events == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0",
        b"\xc1" * 100,
        START[:5],
        packed(HEAD),
        packed(TOP),
        packed(EVENT),
        packed([MAGIC, VERSION + 1]),
        packed([MAGIC, VERSION + 1], TOP),
        packed([MAGIC, 1, "buffer.1"], TOP),
        packed([MAGIC, VERSION, "buffer.1"], TOP),
        packed([MAGIC], TOP),
        packed(HEAD, EVENT),
        START + packed(EVENT, EVENT),
        START + packed(["gone", 1]),
        START + packed(["on", 0, 1]),
        START + packed(["off", 0, 1]),
        START + packed(EVENT, ["on", 1, 1039]),
        START + packed(["set", 1, "tracing_on", True]),
        START + packed(["set", 0, "colour", 1]),
        START + packed(["set", 0, "tracing_on", 1]),
        START + packed(["set", 0, "clock", ["local"]]),
        START + packed(["set", 0, "pids", [None]]),
        START + packed(["set", 0, "pids"]),
        START + packed(["buffer", 0, "/"]),
        START + packed(["buffer", 0, "../etc"]),
        START + packed(["buffer", 0, "buffer.0.1/x"]),
        START + packed(["buffer", 0, "buffer.1.1"]),
        START + packed(["buffer", 1, "buffer.1.1"]),
        START + packed(TOP),
        START + packed(["instance", 0, b"x"]),
        START + packed(["instance", 1, b""]),
        START + packed(["instance", 1, b".."]),
        START + packed(["instance", 1, b"a/b"]),
        START + packed(["instance", 1, b"a" * 256]),
        START + packed(["instance", 1, "text"]),
        START + packed(["instance", -1, b"x"]),
        START + packed(["instance", 1 << 16, b"x"]),
        START + packed(["instance", 1, b"x"], ["instance", 1, b"y"]),
        START + packed(["instance", 1, b"x"], ["instance", 2, b"x"]),
        START + packed(["removed", 0]),
        START + packed(["removed", 1]),
        START + packed(["event", 1]),
        START + packed(5),
        START + packed({}),
        START + packed([]),
        START + b"\xc1",
        b"[" * 10000,
        b"\x91" * 10000,
        START + b"\xa2\xff\xff",
    ],
)
def test_a_log_that_makes_no_sense(data: bytes) -> None:
    with pytest.raises(StateError):
        parse_log(data)


def test_data_rings() -> None:
    """One with ids of another type, or of an event that is gone, is left out."""
    taken = parse_log(
        packed(
            *(HEAD, TOP, EVENT, ["event", 1040, 2, 0, 1000, b"b", b"b"]),
            *(["ring", 1, 2, 30, 40, 1000, [1039]], ["ring", 1, 3, 0, 0, 0, []]),
            *(["index", 1, 3, 1039], ["index", 1, 3, 0, 1039]),
            *(["ring", 1, 4, 5, 6, 7, []], ["ring gone", 1, 4], ["ring gone", 9, 9]),
            *(["ring", 1, 5, 3, 4, 5, ["x", None, []]], ["ring", 1, 6, 3, 4, 5, [1040]], ["gone", 1040]),
        )
    )
    assert taken.rings == {
        (1, 2): KnownRing(30, 40, 1000, [1039]),
        (1, 3): KnownRing(0, 0, 0, [1039, 0, 1039]),
    }


def test_triggers() -> None:
    """The last line counts; the event's other lines do not affect it."""
    taken = parse_log(
        START
        + packed(
            EVENT,
            ["triggers", 0, 1039, [[b"traceon:5", [[1, 2], [3, 4]], None], [b"stacktrace", [[5, 6]], {}]]],
            ["off", 0, 1039],
            ["ring", 8, 9, 10, 11, 0, [1039]],
            ["fired", 8, 9, 64, [5, 3]],
            ["fired", 8, 10, 0, []],
            ["ring gone", 8, 10],
        )
    )
    assert taken.instances[0].files[1039].triggers == (
        SavedTrigger(b"traceon:5", ((1, 2), (3, 4))),
        SavedTrigger(b"stacktrace", ((5, 6),), {}),
    )
    assert taken.instances[0].files[1039].was_enabled
    assert taken.fired == {(8, 9): (64, {3, 5})}
    taken = parse_log(
        START + packed(EVENT, ["triggers", 0, 1039, [[b"x", [], None]]], ["triggers", 0, 1039, []])
    )
    assert taken.instances[0].files[1039].triggers == ()


@pytest.mark.parametrize(
    "line",
    [
        *(["ring", 1, 2, 3, 4, 5, b""], ["ring", 1], ["ring gone", 1]),
        *(["index", 1, 2, 1039], ["index", 1]),
        ["filter", 0, 1039, "text", True],
        ["filter", 0, 1039, b"n == 1", 1],
        ["filter", 0, 7, b"n == 1", True],
        ["filter", 1, 1039, b"n == 1", True],
        ["filter", 0, 1039, b"n == 1"],
        ["triggers", 0, 7, []],
        ["triggers", 1, 1039, []],
        ["triggers", 0, 1039, {}],
        ["triggers", 0, 1039, [["text", [], None]]],
        ["triggers", 0, 1039, [[b"x", [[1]], None]]],
        ["triggers", 0, 1039, [[b"x", [[1, -2]], None]]],
        ["triggers", 0, 1039, [[b"x", [[1, True]], None]]],
        ["triggers", 0, 1039, [[b"x", []]]],
        ["triggers", 0, 1039, [5]],
        ["fired", 1, 2, 3, ["x"]],
        ["fired", 1, 2, 3],
        ["fired", 1, 2, 3, [1.5]],
    ],
)
def test_a_line_that_makes_no_sense(line: list[object]) -> None:
    with pytest.raises(StateError, match="damaged"):
        parse_log(START + packed(EVENT, line))
