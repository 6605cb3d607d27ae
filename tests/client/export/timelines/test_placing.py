"""The lane of a slice, and the bounded memory of open slices."""

import random

import pytest

from utracefs.export.timelines._placing import Nesting, Open, OpenSlices, Track

PROCESS, LANE = 0, 2  # kinds of tracks


class Drawn:
    """OpenSlices as a writer uses it."""

    def __init__(self, **limits: int) -> None:
        self.open = OpenSlices(**limits)
        self.made = 0

    def begin(self, key: object, ns: int, pid: int = 1, tid: int = 1) -> int:
        one = Open(key, "b", "s", Track(PROCESS, pid, "p"), pid, tid, ns)
        track = self.open.free_lane(one)
        if track is None:
            self.made += 1
            track = Track(LANE, self.made, "b")
        self.open.begin(one, track)
        return track.number

    def end(self, key: object, ns: int, pid: int = 1, tid: int = 1) -> int | None:
        ended = self.open.end(key, pid, tid, ns)
        return ended.track.number if ended else None


def test_a_lane_is_taken_again_when_it_is_free() -> None:
    drawn = Drawn()
    assert [drawn.begin(key, 1) for key in range(3)] == [1, 2, 3]
    assert (drawn.end(1, 2), drawn.end(0, 2)) == (2, 1)
    assert [drawn.begin(key, 2) for key in (7, 8, 9)] == [1, 2, 4]
    assert drawn.begin("other process", 3, pid=2) == 5


def test_a_lane_is_not_taken_before_it_was_free() -> None:
    """Records of a broken file may come late."""
    drawn = Drawn()
    drawn.begin(1, 1)
    drawn.end(1, 10)
    assert (drawn.begin(2, 9), drawn.begin(3, 10)) == (2, 1)
    assert drawn.end(3, 9) is None


def test_of_several_with_a_key_the_nearest_ends() -> None:
    drawn = Drawn()
    lanes = [
        drawn.begin(1, n, pid, tid) for n, (pid, tid) in enumerate([(1, 1), (1, 1), (1, 2), (2, 3), (3, 4)])
    ]
    ends = [drawn.end(1, 9, pid, tid) for pid, tid in [(1, 1), (1, 9), (2, 9), (8, 8), (8, 8), (8, 8)]]
    assert ends == [lanes[1], lanes[2], lanes[3], lanes[4], lanes[0], None]
    assert drawn.open.begins_without_end == 0


def test_the_oldest_is_forgotten() -> None:
    drawn = Drawn(max_open=3)
    for key in range(5):
        drawn.begin(key, key)
    assert [drawn.end(key, 9) for key in range(5)] == [None, None, 3, 4, 5]
    assert drawn.open.begins_without_end == 2
    drawn = Drawn(max_same_key=2)
    for ns in range(4):
        drawn.begin("same", ns)
    assert [drawn.end("same", 9) for _ in range(3)] == [4, 3, None]
    assert drawn.open.begins_without_end == 2


def nested(slices: list[tuple[int, int]]) -> bool:
    """Whether a reader that takes them in the order of the file pairs each begin with its end."""
    events = [event for n, (b, e) in enumerate(slices) for event in ((b, n, "b"), (e, n, "e"))]
    stack: list[int] = []
    for _, number, what in sorted(events, key=lambda event: event[0]):
        if what == "b":
            stack.append(number)
        elif not stack or stack.pop() != number:
            return False
    return True


@pytest.mark.parametrize("spread", [3, 20, 200])
def test_what_is_on_a_lane_is_nested(spread: int) -> None:
    rng = random.Random(spread)
    lanes: dict[int, list[tuple[int, int]]] = {}
    nesting, now = Nesting(), 0
    for _ in range(3000):
        now += rng.choice((0, 0, 1, 3, 10))
        begin = max(0, now - rng.randrange(spread))
        lane = nesting.lane(begin, now)
        assert lane >= 0
        lanes.setdefault(lane, []).append((begin, now))
    assert all(nested(slices) for slices in lanes.values())
    assert sorted(lanes) == list(range(len(lanes))) and len(lanes) <= 2 * spread


def test_the_lanes_of_a_thread() -> None:
    nesting = Nesting()
    slices = [(1, 2), (3, 4), (0, 5), (6, 6), (5, 9), (8, 10), (9, 10), (9, 11), (0, 12), (7, 8)]
    assert [nesting.lane(*one) for one in slices] == [0, 0, 0, 0, 0, 1, 0, 2, 1, 3]


def test_many_lanes_and_many_slices_are_bounded() -> None:
    nesting = Nesting()
    assert [nesting.lane(n, n + 1000) for n in range(66)] == [*range(64), -1, -1]
    nesting = Nesting()
    assert {nesting.lane(2 * n, 2 * n + 1) for n in range(10, 200)} == {0}
    assert nesting.lane(23, 500) == 1  # the oldest are one to it: not between them
    assert nesting.lane(1, 500) == 0


def test_before_the_floor_nothing_is_known() -> None:
    nesting = Nesting(floor_ns=100)
    assert [nesting.lane(*one) for one in [(99, 101), (100, 101), (0, 102)]] == [1, 0, 1]
