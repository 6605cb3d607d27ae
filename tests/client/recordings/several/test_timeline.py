"""The times of several recordings on one line."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs.recordings.origin import ClockPair, Origin
from utracefs.recordings.several.timeline import Clocked, NotMergeableError, Timeline, timelines

SECOND = 10**9
DAY = 86_400 * SECOND


def clocked(boot: str, *pairs: ClockPair, clock: str = "mono", added_ns: int = 0) -> Clocked:
    return Clocked(f"{boot}.dat", Origin(f"host {boot}", boot, pairs), clock, True, added_ns)


def test_of_one_boot_and_clock_they_stay_without_the_time_of_day() -> None:
    assert timelines([clocked("a"), clocked("a")]) == [Timeline(), Timeline()]


def test_of_two_boots_they_are_times_of_day() -> None:
    a, b = timelines(
        [
            clocked("a", ClockPair(SECOND, DAY, error_ns=500)),
            clocked("b", ClockPair(7 * SECOND, DAY + SECOND)),
        ]
    )
    assert (a.place(2 * SECOND), b.place(7 * SECOND)) == (DAY + SECOND, DAY + SECOND)
    assert (a.uncertainty_ns, b.uncertainty_ns) == (500, None)


def test_of_one_boot_they_share_the_first_offset_beside_another_host() -> None:
    """The second one's own pairs are 3 us off; it keeps its order among the first one's records."""
    of_a = [
        clocked("a", ClockPair(SECOND, DAY, error_ns=1)),
        clocked("a", ClockPair(2 * SECOND, DAY + SECOND + 3000, error_ns=1)),
    ]
    first, second, _ = timelines([*of_a, clocked("b", ClockPair(0, DAY, error_ns=0))])
    assert attrs.evolve(first) == second


def test_a_drift_is_interpolated() -> None:
    drift = clocked(
        "a", ClockPair(0, DAY, error_ns=5), ClockPair(1000 * SECOND, DAY + 1000 * SECOND + 1000, error_ns=7)
    )
    line, _ = timelines([drift, clocked("b", ClockPair(0, DAY))])
    assert [line.place(n * SECOND) - DAY - n * SECOND for n in (0, 500, 1000, 2000)] == [0, 500, 1000, 1000]
    assert line.uncertainty_ns == 7


def test_a_step_is_a_part_of_the_uncertainty() -> None:
    step = clocked("a", ClockPair(0, DAY, error_ns=5), ClockPair(SECOND, 2 * DAY + SECOND, error_ns=7))
    line, _ = timelines([step, clocked("b", ClockPair(0, DAY))])
    assert [line.place(n) - DAY - n for n in (0, SECOND, 2 * SECOND)] == [0, 0, 0]
    assert line.uncertainty_ns == 7 + DAY


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (clocked("a"), "its time of day is unknown"),
        (Clocked("a.dat", Origin(), "mono", True), "its time of day is unknown"),
        (
            Clocked("a.dat", Origin("h", "a", (ClockPair(0, 0),)), "x86-tsc", False),
            "its clock, x86-tsc, does not",
        ),
    ],
)
def test_what_cannot_be_merged(one: Clocked, why: str) -> None:
    with pytest.raises(NotMergeableError, match=f"a.dat: cannot be merged with other recordings: {why}"):
        timelines([clocked("b", ClockPair(0, DAY)), one])


def test_a_recording_of_an_unknown_boot_is_of_another_one() -> None:
    """perf's own recordings have no boot id."""
    unknown = Clocked("p", Origin("h", "", (ClockPair(0, DAY),)), "mono", True)
    assert [one.tells_day for one in timelines([unknown, unknown])] == [True, True]


@given(
    st.builds(
        Timeline,
        shift_ns=st.integers(-(10**6), 10**6),
        begin_ns=st.integers(0, 10**9),
        span_ns=st.integers(1, 10**9),
        offset_ns=st.integers(-(10**6), 10**18),
        step_ns=st.integers(-1000, 1000),
    ).map(lambda t: attrs.evolve(t, span_ns=max(t.span_ns, abs(t.step_ns) * 1000))),
    st.lists(st.integers(10**7, 10**10), min_size=1),
    st.integers(0, 10**10),
)
def test_order_is_kept_and_no_time_is_missed(line: Timeline, times: list[int], limit: int) -> None:
    placed = [line.place(time) for time in sorted(times)]
    assert placed == sorted(placed)
    limit += line.offset_ns
    for time in times:
        assert line.place(time) < limit or time >= line.since(limit)
        assert line.place(time) >= limit or time < line.until(limit)
