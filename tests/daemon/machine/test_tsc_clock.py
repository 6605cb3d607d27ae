"""tsc_clock.h against exact arithmetic: between two looks, before them, jumps, any claim."""

from __future__ import annotations

import platform
import random
import subprocess
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "daemon" / "utracefsd" / "machine" / "include"
MS = 1_000_000
BEGIN_TSC, BEGIN_NS = 7_000_000_000_000, 5_000_000_000_000
GHZ = Fraction(2596, 1000)
"""Ticks a nanosecond."""


class Clock:
    """The C code, over a pipe."""

    def __init__(self, program: Path) -> None:
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        return [int(word) for word in self.process.stdout.readline().split()]

    def look(self, tsc: float | Fraction, ns: float) -> int:
        return self.ask("look", int(tsc), int(ns))[0]

    def ns(self, tsc: float | Fraction) -> int:
        return self.ask("ns", int(tsc))[0]

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tsc") / "tsc_clock"
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
    subprocess.run([*command, f"-I{INCLUDE}", HERE / "tsc_clock.c", "-o", made], check=True)
    return made


@pytest.fixture
def clock(program: Path) -> Iterator[Clock]:
    made = Clock(program)
    yield made
    made.close()


def tsc_at(ns: float) -> int:
    """A counter without any jitter."""
    return BEGIN_TSC + int((int(ns) - BEGIN_NS) * GHZ)


def test_between_two_looks_time_goes_in_a_straight_line(clock: Clock) -> None:
    generator = random.Random(1)
    before = BEGIN_NS
    assert clock.look(tsc_at(before), before) == 0
    for _ in range(200):
        now = before + generator.randrange(200, 40 * MS)
        assert clock.look(tsc_at(now), now) == 0
        asked = sorted(generator.randrange(before, now) for _ in range(5))
        told = [clock.ns(tsc_at(ns)) for ns in asked]
        assert all(abs(t - ns) <= 2 for t, ns in zip(told, asked, strict=True))
        assert told == sorted(told)
        assert clock.ns(tsc_at(before)) == before
        assert clock.ns(tsc_at(now)) == now
        before = now


def test_a_kernel_that_steers_its_clock_is_followed(clock: Clock) -> None:
    """500 ppm, the most that NTP does: no error adds up, because each line ends where the clock is."""
    tsc, ns = Fraction(BEGIN_TSC), BEGIN_NS
    clock.look(tsc, ns)
    for i in range(1000):
        rate = GHZ * (1 + Fraction(500 if i // 100 % 2 else -500, 10**6))
        tsc, ns = tsc + 2 * MS * rate, ns + 2 * MS
        assert clock.look(tsc, ns) == 0
        assert abs(clock.ns(tsc - MS * rate) - (ns - MS)) <= 2


def test_a_record_from_before_the_look_before_is_counted_back(clock: Clock) -> None:
    for ns in range(BEGIN_NS, BEGIN_NS + 100 * MS, 2 * MS):
        clock.look(tsc_at(ns), ns)
    for age in (5 * MS, 1000 * MS, 60_000 * MS):
        assert abs(clock.ns(tsc_at(ns - age)) - (ns - age)) <= 50 + age // 10**7


def test_a_daemon_that_has_just_begun_knows_the_rate_well_enough(clock: Clock) -> None:
    """Records that waited for it: each keeps its own time, however wrong."""
    clock.look(tsc_at(BEGIN_NS), BEGIN_NS)
    clock.look(tsc_at(BEGIN_NS + 100_000), BEGIN_NS + 100_000)
    asked = [BEGIN_NS - age for age in (2000 * MS, 1000 * MS, 1000 * MS - 100, 10)]
    told = [clock.ns(tsc_at(ns)) for ns in asked]
    assert all(abs(t - ns) <= 50_000 for t, ns in zip(told, asked, strict=True))
    assert told == sorted(set(told))


def test_a_line_of_no_length_and_a_first_look_divide_by_nothing(clock: Clock) -> None:
    assert clock.ns(12345) == 0, "before any look"
    assert clock.look(1000, 5 * MS) == 0
    assert clock.ns(0) == 5 * MS, "nothing is known about its rate yet"
    assert clock.ns(1 << 63) == 5 * MS
    assert clock.look(1000, 5 * MS) == 0
    assert clock.look(1000, 6 * MS) == 0, "no counter: it does not move"
    assert clock.ns(0) <= 6 * MS


@pytest.mark.parametrize("claim", [0, 1, 1 << 32, 1 << 63, (1 << 64) - 1, BEGIN_TSC])
def test_any_claim_is_some_time_and_in_its_order(clock: Clock, claim: int) -> None:
    for now in range(BEGIN_NS, BEGIN_NS + 20 * MS, 2 * MS):
        clock.look(tsc_at(now), now)
        told = clock.ns(claim)
        assert 0 <= told < 1 << 64
        if claim <= tsc_at(now):
            assert told <= now
        elif now > BEGIN_NS:  # before the second look there is no rate
            assert told > now


def test_a_time_later_than_the_last_look_stays_later(clock: Clock) -> None:
    """Its caller may make it wait for the next look."""
    for now in range(BEGIN_NS, BEGIN_NS + 100 * MS, 2 * MS):
        clock.look(tsc_at(now), now)
    for later in (10, 1000, 5 * MS):
        assert abs(clock.ns(tsc_at(now + later)) - (now + later)) <= 3


def test_a_suspended_machine_is_noticed_and_gone_on_from(clock: Clock) -> None:
    """The counter ran for an hour while CLOCK_MONOTONIC was stopped."""
    for now in range(BEGIN_NS, BEGIN_NS + 20 * MS, 2 * MS):
        clock.look(tsc_at(now), now)
    hour = int(3600 * 10**9 * GHZ)
    before, now = now, now + 2 * MS
    assert clock.look(tsc_at(now) + hour, now) == 1
    for tsc in (tsc_at(before + MS), tsc_at(before + MS) + hour // 2, tsc_at(now) + hour):
        assert before <= clock.ns(tsc) <= now
    clock.look(tsc_at(now + 2 * MS) + hour, now + 2 * MS)
    now += 4 * MS
    assert clock.look(tsc_at(now) + hour, now) == 0
    assert abs(clock.ns(tsc_at(now - MS) + hour) - (now - MS)) <= 2


def test_a_counter_that_begins_anew_is_noticed(clock: Clock) -> None:
    for now in range(BEGIN_NS, BEGIN_NS + 20 * MS, 2 * MS):
        clock.look(tsc_at(now), now)
    assert clock.look(1000, now + 2 * MS) == 1
    assert clock.ns(tsc_at(now)) >= now + 2 * MS
    assert clock.look(1000 + int(2 * MS * GHZ), now + 4 * MS) == 0
    assert abs(clock.ns(1000 + int(MS * GHZ)) - (now + 3 * MS)) <= 2


def test_a_counter_at_another_speed_is_noticed(clock: Clock) -> None:
    for now in range(BEGIN_NS, BEGIN_NS + 20 * MS, 2 * MS):
        assert clock.look(tsc_at(now), now) == 0
    assert clock.look(tsc_at(now) + int(2 * MS * GHZ * Fraction(102, 100)), now + 2 * MS) == 1


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no rdtsc")
def test_on_this_machine(clock: Clock) -> None:
    """A stamp between two readings of the clock becomes a time between them."""
    for _ in range(20):
        clock.look(*clock.ask("now"))
        time.sleep(0.002)
    begin = time.monotonic_ns()
    stamp, _ = clock.ask("now")
    end = time.monotonic_ns()
    time.sleep(0.002)
    jumped = clock.look(*clock.ask("now"))
    told = clock.ns(stamp)
    # A machine that its host stopped for a while may stop the counter, too.
    assert jumped or begin - 50_000 <= told <= end + 50_000


def test_going_on_with_the_clock_of_another(clock: Clock) -> None:
    """Records that waited while no daemon looked get the times that they would have got. A clock that has
    looked once, 20 ns off, and then again after a millisecond would move a record two seconds old by 40
    us."""
    first, last, now = BEGIN_NS, BEGIN_NS + 60_000 * MS, BEGIN_NS + 62_000 * MS
    clock.ask("resume", tsc_at(first), first, tsc_at(last), last)
    assert clock.look(tsc_at(now), now + 20) == 0
    assert clock.look(tsc_at(now + MS), now + MS) == 0
    for ns in (last - 2000 * MS, last, last + 1000 * MS, now):
        assert abs(clock.ns(tsc_at(ns)) - ns) <= 100


@pytest.mark.parametrize(
    "saved", [(0, 0, 0, 0), (5, 5, 5, 5), (9, 1, 5, 5), (1, 9, 5, 5), (1, 1, (1 << 64) - 1, (1 << 64) - 1)]
)
def test_a_clock_that_makes_no_sense_is_not_gone_on_with(clock: Clock, saved: tuple[int, ...]) -> None:
    clock.ask("resume", *saved)
    clock.look(BEGIN_TSC, BEGIN_NS)
    clock.look(tsc_at(BEGIN_NS + 10 * MS), BEGIN_NS + 10 * MS)
    assert abs(clock.ns(tsc_at(BEGIN_NS + 5 * MS)) - BEGIN_NS - 5 * MS) <= 2


def test_a_counter_that_began_anew_meanwhile_is_detected(clock: Clock) -> None:
    clock.ask("resume", BEGIN_TSC, BEGIN_NS, tsc_at(BEGIN_NS + 1000 * MS), BEGIN_NS + 1000 * MS)
    assert clock.look(12345, BEGIN_NS + 2000 * MS) == 1
