"""The rules for a record's drawing, if several apply; shown with Chrome JSON."""

import json
import struct
from typing import Any

from tests.client.export.one_page import records_of
from utracefs.export import Counter, Duration, Slice, Tracks
from utracefs.export.timelines._chrome_text import ChromeText
from utracefs_protocol.events.declaration import Field, FieldKind

FIELDS = [
    Field(b"s32", b"n", 8, 4, True, FieldKind.INTEGER),
    Field(b"u32", b"m", 12, 4, False, FieldKind.INTEGER),
]


def drawn(
    rows: list[tuple[int, int]],
    tracks: Tracks,
    *,
    tids: tuple[int, ...] = (7,),
    comms: Any = None,
    step: int = 10,
) -> list[dict[str, Any]]:
    entries = [struct.pack("<iI", *row) for row in rows]
    writer = ChromeText(records_of(entries, FIELDS, tids=tids, comms=comms, step_ns=step), tracks)
    return [*json.loads(f"[null{writer.read(1 << 24).decode()}]")[1:]]


def kinds(found: list[dict[str, Any]]) -> str:
    return "".join(one["ph"] for one in found)


def test_an_event_that_ends_and_begins() -> None:
    """Each record ends the slice before it and begins the next one."""
    found = drawn([(1, 0)] * 3, Tracks((Slice("ev", ("ev",), ("n",), "turn"),)))
    assert kinds(found[2:]) == "bebeb"
    assert {(one["name"], one["id2"]["local"]) for one in found[2:]} == {("turn", "3")}


def test_all_at_once() -> None:
    tracks = Tracks(
        (Slice("ev", ("x",), ("n",)), Slice("ev", ("x",), ("m",))),
        (Duration("ev", "n"), Duration("ev", "m", 1000)),
        (Counter("ev", "n"), Counter("ev", "m")),
    )
    found = drawn([(0, 0), (5, 8)], tracks)
    assert kinds(found[2:]) == "bbXXCC" * 2
    assert [one["ts"] for one in found[10:12]] == [0.006, 0.0]


def test_two_durations_of_a_record_are_one_in_the_other() -> None:
    tracks = Tracks(durations=(Duration("ev", "m"), Duration("ev", "n")))
    found = drawn([(0, 0), (3, 9)], tracks)
    assert [(one["ph"], one.get("dur")) for one in found[4:]] == [("X", 0.003), ("X", 0.009)]


def test_a_duration_that_is_negative_is_a_point() -> None:
    found = drawn([(-1, 0)], Tracks(durations=(Duration("ev", "n"),)))
    assert kinds(found[2:]) == "i"


def test_what_would_overlap_is_on_a_lane() -> None:
    found = drawn([(0, 0), (9, 0), (15, 0)], Tracks(durations=(Duration("ev", "n"),)))
    assert kinds(found[2:]) == "XXbe"
    begin, end = found[-2:]
    assert (begin["ts"], end["ts"], begin["id2"]) == (0.006, 0.021, end["id2"])
    assert begin["args"] == {"n": 15, "m": 0, "cpu": 3, "instance": "box"} and "args" not in end


def test_without_a_key_slices_are_of_one_thread() -> None:
    tracks = Tracks((Slice("ev", ("ev",)),))
    found = drawn([(0, 0)] * 4, tracks, tids=(7, 8))
    lanes = {(one["tid"], one["id2"]["local"]) for one in found if one["ph"] in "be"}
    assert len(lanes) == 2 and kinds([one for one in found if one["ph"] in "be"]) == "bbebeb"


def named(found: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return [
        (one["name"], one.get("tid", one["pid"]), one["args"]["name"]) for one in found if one["ph"] == "M"
    ]


def test_names() -> None:
    found = drawn([(0, 0)] * 5, Tracks(), tids=(7, 8, 0), comms={7: "c"})
    assert named(found) == [
        ("process_name", 7, "c"),
        ("thread_name", 7, "c"),
        ("process_name", 8, "<...>"),
        ("thread_name", 8, "<...>"),
        ("process_name", 0, "<idle>"),
        ("thread_name", 0, "<idle>"),
    ]


def test_memory_does_not_grow_with_threads() -> None:
    """Threads are forgotten and described again. Slices drawn before remain unchanged: lane 0 is in use up to
    there, and slices get new lanes."""
    tracks = Tracks((Slice("ev", ("ev",)),), (Duration("ev", "n"),), (Counter("ev", "m"),))
    entries = [struct.pack("<iI", 25 if n == 7 else 1, n) for n in range(8)]
    writer = ChromeText(records_of(entries, FIELDS, tids=(7, 8, 9), step_ns=10), tracks)
    writer.max_threads = 1
    found = json.loads(f"[null{writer.read(1 << 20).decode()}]")[1:]
    assert [one[1] for one in named(found) if one[0] == "thread_name"] == [7, 8, 9, 7, 8, 9, 7, 8]
    assert [one["ts"] for one in found if one["ph"] == "X"] == [n / 100 for n in range(7)]
    assert [(one["ts"], one["name"]) for one in found[-3:]] == [
        (0.046, "ev"),
        (0.071, "ev"),
        (0.071, "ev.m"),
    ]
    assert (writer.begins_without_end, writer.ends_without_begin) == (3, 3)
