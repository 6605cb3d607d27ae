"""Where and when a recording was made: the host, its boot, and which times of day the times of its clock
were.

A recorder takes a pair of clocks, the recording's and CLOCK_REALTIME, at the begin and at the end. Both
kinds of files keep that as lines of text:

    host: NAME
    boot id: what /proc/sys/kernel/random/boot_id says; times of other boots cannot be compared
    clock: NANOSECONDS at NANOSECONDS since 1970-01-01 UTC

in a trace.dat among the statistics (`trace-cmd report --stat` prints them), in a perf.data as a feature
that perf does not know and passes over.
"""

import os
import time
from typing import Final, Self

import attrs

__all__ = ["ClockPair", "Origin", "read_clocks"]

_CLOCKS: Final = {
    "local": time.CLOCK_MONOTONIC,
    "global": time.CLOCK_MONOTONIC,
    "perf": time.CLOCK_MONOTONIC,
    "mono": time.CLOCK_MONOTONIC,
    "mono_raw": time.CLOCK_MONOTONIC_RAW,
    "boot": time.CLOCK_BOOTTIME,
    "tai": time.CLOCK_TAI,
}
"""Trace clocks that can be read here; the first three are CLOCK_MONOTONIC in this daemon."""

_NAME: Final = 255
"""Characters of a name; Linux has 64."""

_STEP_NS: Final = 10**9
"""Less is what clocks that are set continuously do."""

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@attrs.frozen
class ClockPair:
    """Two clocks at one moment, in nanoseconds."""

    clock_ns: int
    unix_ns: int
    """CLOCK_REALTIME, since 1970."""

    @property
    def offset_ns(self) -> int:
        """Added to times of the clock gives times of day."""
        return self.unix_ns - self.clock_ns

    @property
    def is_sane(self) -> bool:
        """Whether both are times from 0 on that fit 63 bits: until 2262."""
        return not (self.clock_ns >> 63 or self.unix_ns >> 63)


def read_clocks(name: str) -> ClockPair | None:
    """The trace clock of that name and the time of day, read in between two readings of the former: the
    closest of five tries. None for a clock that cannot be read."""
    clock = _CLOCKS.get(name)
    if clock is None:
        return None
    tries = []
    for _ in range(5):
        before = time.clock_gettime_ns(clock)
        unix_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(clock)
        tries.append((after - before, ClockPair((before + after) // 2, unix_ns)))
    return min(tries, key=lambda one: one[0])[1]


def _one_line(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:_NAME]


@attrs.frozen
class Origin:
    """What a recording says of its host and time."""

    host: str = attrs.field(default="", converter=_one_line)
    """Printable characters. Empty: not known."""
    boot_id: str = attrs.field(default="", converter=_one_line)
    clocks: tuple[ClockPair, ...] = ()
    """In the order of time: of the begin, of the end. Empty: the time of day is not known."""

    @classmethod
    def here(cls, clock: str) -> Self:
        """Of a recording by that clock which begins now, on this host."""
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                boot_id = file.read().strip()
        except OSError:
            boot_id = ""
        pair = read_clocks(clock)
        return cls(os.uname().nodename, boot_id, () if pair is None else (pair,))

    def ended(self, clock: str) -> "Origin":
        """The recording ends now."""
        pair = read_clocks(clock)
        return self if pair is None else attrs.evolve(self, clocks=(*self.clocks, pair))

    @property
    def unix_offset_ns(self) -> int | None:
        """Added to times of the clock gives times of day, as they were at the begin; None where they are
        not known."""
        return self.clocks[0].offset_ns if self.clocks else None

    @property
    def step_ns(self) -> int:
        """How far the time of day was moved against the clock while the recording ran."""
        return self.clocks[-1].offset_ns - self.clocks[0].offset_ns if self.clocks else 0

    @property
    def moved(self) -> str:
        """That in words, where it is more than a second; else empty."""
        if abs(self.step_ns) <= _STEP_NS:
            return ""
        step = f"{self.step_ns / 10**9:+,.3f} s"
        return f"time of day and clock moved apart by {step} while it was recorded; the begin's is taken"

    def with_added(self, added_ns: int) -> "Origin":
        """Of a recording to whose times readers add that. Pairs that cannot be then are gone."""
        pairs = (attrs.evolve(pair, clock_ns=pair.clock_ns + added_ns) for pair in self.clocks)
        return attrs.evolve(self, clocks=tuple(pair for pair in pairs if pair.is_sane))

    def lines(self) -> str:
        """As a file keeps it."""
        found = [f"host: {self.host}", f"boot id: {self.boot_id}"]
        found += [f"clock: {pair.clock_ns} at {pair.unix_ns}" for pair in self.clocks]
        return "".join(f"{line}\n" for line in found)

    @classmethod
    def of_lines(cls, text: str) -> "Origin | None":
        """What `lines` gave; None for any other text."""
        words = [line.partition(": ")[::2] for line in text.splitlines()]
        if [key for key, _ in words[:2]] != ["host", "boot id"]:
            return None
        try:
            pairs = [
                ClockPair(*map(int, value.split(" at ", 1))) for key, value in words[2:] if key == "clock"
            ]
        except (TypeError, ValueError):
            return None
        found = cls(words[0][1], words[1][1], tuple(pairs))
        return found if all(pair.is_sane for pair in pairs) else None
