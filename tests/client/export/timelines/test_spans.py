"""Spans are slices without any option, in their parents; drawn as Chrome JSON, and as packets for Perfetto's
own judge. (What a record becomes is _track_writer's; which events are spans, `tracks`.)"""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.export.timelines.trace_processor import ask
from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import sample, write
from utracefs.export import Exported, Slice, Tracks, write_chrome, write_perfetto

EVENTS = Events(
    100,
    b"order_begin u64 span_id; u64 parent_id; u32 order",
    b"order_end u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error; u32 order",
    b"otel_begin u64 span_id; u64 parent_id; __rel_loc char[] span_name",
    b"otel_end u64 span_id; u64 parent_id; u64 duration_ns; __rel_loc char[] error; "
    b"__rel_loc char[] span_name",
    b"half_begin u64 span_id; u64 parent_id",
    b"other_begin u32 span_id; u64 parent_id",
    b"other_end u64 span_id; u64 parent_id; u64 duration_ns",
)
BEGIN, END, NAMED_BEGIN, NAMED_END, *_ = EVENTS.declared

Step = tuple[str, int, int, int, int]
"""begin or end, span, parent or duration, time, thread."""


def recording(path: Path, steps: list[Step]) -> Path:
    data = []
    for what, span, number, time, tid in steps:
        if what == "begin":
            entry = EVENTS.entry(BEGIN, tid, span, number, 5)
        else:
            entry = EVENTS.entry(END, tid, span, 0, number, "", 5)
        data.append(sample(time, 0, 10, tid, entry))
    return write(path, EVENTS, data)


def drawn(tmp_path: Path, *steps: Step, tracks: Tracks | None = None) -> tuple[list[Any], Exported]:
    """(ph, name, ts, lane) of each object but the names."""
    out = io.BytesIO()
    with utracefs.open(recording(tmp_path / "perf.data", list(steps))) as read:
        done = write_chrome(read, out, tracks=tracks)
    found = [one for one in json.loads(out.getvalue())["traceEvents"] if one["ph"] != "M"]
    lanes: dict[str, int] = {}
    rows = []
    for one in found:
        lane = lanes.setdefault(one.get("id2", {}).get("local", ""), len(lanes))
        rows.append((one["ph"], one["name"], round(one["ts"] * 1000), lane))
    return rows, done


def test_a_span_in_its_parent(tmp_path: Path) -> None:
    found, done = drawn(
        tmp_path,
        ("begin", 1, 0, 100, 11),
        ("begin", 2, 1, 110, 11),
        ("end", 2, 10, 120, 11),
        ("begin", 3, 1, 130, 11),
        ("end", 3, 10, 140, 11),
        ("end", 1, 50, 150, 11),
        ("begin", 4, 0, 160, 11),
    )
    times = [("b", 100), ("b", 110), ("e", 120), ("b", 130), ("e", 140), ("e", 150), ("b", 160)]
    assert found == [(ph, "order", time, 0) for ph, time in times]
    assert (done.begins_without_end, done.ends_without_begin) == (1, 0)


def test_spans_side_by_side_and_of_another_thread_have_lanes(tmp_path: Path) -> None:
    found, _ = drawn(
        tmp_path,
        ("begin", 1, 0, 100, 11),
        ("begin", 2, 1, 110, 11),
        ("begin", 3, 1, 120, 11),
        ("begin", 4, 1, 130, 12),
        ("begin", 5, 77, 140, 11),
    )
    assert [lane for *_, lane in found] == [0, 0, 1, 2, 3]


def test_a_parent_that_ends_first_cuts_the_spans_in_it(tmp_path: Path) -> None:
    found, done = drawn(
        tmp_path,
        ("begin", 1, 0, 100, 11),
        ("begin", 2, 1, 110, 11),
        ("begin", 3, 2, 120, 11),
        ("end", 1, 30, 130, 11),
        ("begin", 4, 3, 135, 11),
        ("end", 4, 5, 140, 11),
        ("end", 2, 40, 150, 11),
        ("end", 3, 40, 160, 11),
    )
    assert found == [
        ("b", "order", 100, 0),
        ("b", "order", 110, 0),
        ("b", "order", 120, 0),
        *[("e", "order", 130, 0)] * 3,
        ("b", "order", 130, 0),
        ("b", "order", 130, 1),
        ("b", "order", 135, 1),
        ("e", "order", 140, 1),
        ("e", "order", 150, 0),
        ("e", "order", 160, 1),
    ]
    assert (done.begins_without_end, done.ends_without_begin) == (0, 0)


def test_an_end_without_a_begin_is_drawn_by_its_duration(tmp_path: Path) -> None:
    found, done = drawn(tmp_path, ("end", 2, 30, 120, 11), ("end", 3, 500, 130, 11))
    assert [(ph, ts) for ph, _, ts, _ in found] == [("X", 90), ("X", 0)]
    assert done.ends_without_begin == 0


def test_a_name_of_its_own(tmp_path: Path) -> None:
    entries = [
        EVENTS.entry(NAMED_BEGIN, 11, 1, 0, "GET /"),
        EVENTS.entry(NAMED_BEGIN, 11, 2, 1, ""),
        EVENTS.entry(NAMED_END, 11, 2, 1, 5, "", ""),
        EVENTS.entry(NAMED_END, 11, 3, 1, 5, "", "lost begin"),
    ]
    samples = [sample(100 + n, 0, 10, 11, entry) for n, entry in enumerate(entries)]
    out = io.BytesIO()
    with utracefs.open(write(tmp_path / "perf.data", EVENTS, samples)) as read:
        write_chrome(read, out)
    found = [one["name"] for one in json.loads(out.getvalue())["traceEvents"] if one["ph"] != "M"]
    assert found == ["GET /", "otel", "otel", "lost begin"]


def test_which_events_are_spans(tmp_path: Path) -> None:
    with utracefs.open(recording(tmp_path / "perf.data", [("begin", 1, 0, 100, 11)])) as read:
        span, _named = Tracks().with_spans(read).slices
        assert (span.begin, span.ends, span.name) == (
            "user_events:order_begin",
            ("user_events:order_end",),
            "order",
        )
        own = Tracks((Slice("o*_begin", ("order_end",)),))
        assert own.with_spans(read) == own


@pytest.mark.parametrize("seed", range(3))
def test_the_judge_sees_every_span_once_and_right(tmp_path: Path, seed: int) -> None:
    """Threads with stacks of spans, of which some outlive their parents."""
    rng = random.Random(seed)
    steps: list[Step] = []
    stacks: dict[int, list[tuple[int, int]]] = {11: [], 12: []}
    now = number = length = 0
    for _ in range(300):
        now += rng.randrange(1, 5)
        tid = rng.choice((11, 12))
        stack = stacks[tid]
        if stack and rng.random() < 0.5:
            span, begin = stack.pop() if rng.random() < 0.9 else stack.pop(rng.randrange(len(stack)))
            steps.append(("end", span, now - begin, now, tid))
            length += now - begin
        else:
            number += 1
            steps.append(("begin", number, stack[-1][0] if stack else 0, now, tid))
            stack.append((number, now))
    for tid, stack in stacks.items():
        for span, begin in reversed(stack):
            steps.append(("end", span, now - begin, now, tid))
            length += now - begin
    path = tmp_path / "out.pftrace"
    with utracefs.open(recording(tmp_path / "perf.data", steps)) as read, path.open("wb") as out:
        write_perfetto(read, out)
    (slices,) = ask(path, "select dur from slice")
    # (One that was cut has several pieces.)
    assert sum(int(row["dur"]) for row in slices) == length
