"""Random slices and counters, and what a viewer should make of them: a plain model of the rules."""

import random
from pathlib import Path
from typing import Any

import attrs

from tests.client.recordings.events import Events
from tests.client.recordings.perf_data.example import comm, sample, write
from utracefs.export import Counter, Duration, Slice, Tracks

EVENTS = Events(
    100,
    b"begin u32 key; char[4] what",
    b"done u32 key; char[4] what",
    b"failed u32 key; char[4] what",
    b"enter u8 depth",
    b"leave u8 depth",
    b"query u32 nsec",
    b"queue s32 length",
)
BEGIN, DONE, FAILED, ENTER, LEAVE, QUERY, QUEUE = EVENTS.declared

TRACKS = Tracks(
    slices=(
        Slice("begin", ("done", "failed"), ("key", "what"), "request"),
        Slice("enter", ("leave",)),
    ),
    durations=(Duration("query", "nsec"),),
    counters=(Counter("queue", "length"),),
)


@attrs.frozen
class Picture:
    slices: list[tuple[int, int, str, int]]
    """Begin, duration (-1: no end), name, process; sorted."""
    points: list[tuple[int, str, int]]
    """When, what, in which thread; sorted."""
    counters: list[tuple[int, float, str, int]]
    unfinished: int = attrs.field(eq=False)
    unmatched: int = attrs.field(eq=False)

    @classmethod
    def of(cls, slices: list[dict[str, Any]], counters: list[dict[str, Any]]) -> "Picture":
        """The picture of the trace processor's rows."""
        drawn = [row for row in slices if row["name"] in ("request", "enter", "query")]
        points = [row for row in slices if row not in drawn]
        assert all(row["dur"] == "0" for row in points)
        return cls(
            sorted((int(r["ts"]), int(r["dur"]), r["name"], int(r["pid"])) for r in drawn),
            sorted((int(r["ts"]), r["name"], int(r["tid"])) for r in points),
            [(int(r["ts"]), r["value"], r["name"], int(r["pid"])) for r in counters],
            0,
            0,
        )


def draw(path: Path, seed: int, records: int = 600) -> Picture:
    """Write a recording with two processes of three threads each."""
    rng = random.Random(seed)
    made = Picture([], [], [], 0, 0)
    requests: dict[tuple[int, str], tuple[int, int]] = {}
    entered: dict[int, list[int]] = {}
    data = [comm(10 * p, 10 * p + t, b"t%d-%d" % (p, t)) for p in (1, 2) for t in range(3)]
    unfinished = unmatched = 0
    now = 10_000
    for _ in range(records):
        now += rng.choice((0, 0, 1, 1, 5, 40))
        pid = rng.choice((10, 20))
        tid = pid + rng.randrange(3)
        event = rng.choice(list(EVENTS.declared))
        key, what = rng.randrange(8), rng.choice(("get", "put"))
        values: tuple[object, ...] = (key, what)
        if event == BEGIN:
            if (key, what) in requests:
                continue  # which of two ends is not for this model to say
            requests[key, what] = (now, pid)
        elif event in (DONE, FAILED):
            begun = requests.pop((key, what), None)
            if begun is None:
                unmatched += 1
                made.points.append((now, "done" if event == DONE else "failed", tid))
            else:
                made.slices.append((begun[0], now - begun[0], "request", begun[1]))
        elif event == ENTER:
            values = (0,)
            entered.setdefault(tid, []).append(now)
        elif event == LEAVE:
            values = (0,)
            if entered.get(tid):
                since = entered[tid].pop()
                made.slices.append((since, now - since, "enter", pid))
            else:
                unmatched += 1
                made.points.append((now, "leave", tid))
        elif event == QUERY:
            values = (rng.choice((0, 1, 2, 5, 10, 40, 100, 1000)),)
            made.slices.append((now - values[0], values[0], "query", pid))
        else:
            values = (rng.randrange(-50, 50),)
            made.counters.append((now, values[0], "queue.length", pid))
            made.points.append((now, "queue", tid))
        data.append(sample(now, rng.randrange(4), pid, tid, EVENTS.entry(event, tid, *values)))
    for since, pid in requests.values():
        made.slices.append((since, -1, "request", pid))
        unfinished += 1
    for tid, all_since in entered.items():
        made.slices.extend((since, -1, "enter", tid // 10 * 10) for since in all_since)
        unfinished += len(all_since)
    write(path, EVENTS, data)
    made.slices.sort()
    made.points.sort()
    return attrs.evolve(made, unfinished=unfinished, unmatched=unmatched)
