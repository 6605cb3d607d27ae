"""Origin of a recording: the host, its boot, and the times of day of its clock.

A recorder reads a pair of clocks, the recording's and CLOCK_REALTIME, at the begin and at the end. Both kinds
of files store that as lines of text:

    host: NAME
    boot id: /proc/sys/kernel/random/boot_id; times of different boots cannot be compared
    clock: NANOSECONDS at NANOSECONDS since 1970-01-01 UTC

in a trace.dat among the statistics (`trace-cmd report --stat` prints them), in a perf.data as a feature
unknown to perf, which it skips.
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
"""Limit of characters of a name; Linux has 64."""

_STEP_NS: Final = 10**9
"""Smaller steps are normal for continuously adjusted clocks."""

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


@attrs.frozen
class ClockPair:
    """Two clocks at one moment, in nanoseconds."""

    clock_ns: int
    unix_ns: int
    """CLOCK_REALTIME, since 1970."""
    uncertainty_ns: int = attrs.field(default=0, eq=False)
    """The two readings are at most that far from one moment; files do not store it."""

    @property
    def offset_ns(self) -> int:
        """Offset from the clock's times to times of day."""
        return self.unix_ns - self.clock_ns

    @property
    def is_sane(self) -> bool:
        """Whether both are in the range of 0 to 63 bits: until 2262."""
        return not (self.clock_ns >> 63 or self.unix_ns >> 63)


def read_clocks(name: str) -> ClockPair | None:
    """Read the trace clock of that name and the time of day between two readings of the former: the closest
    of five tries. None for a clock that cannot be read."""
    clock = _CLOCKS.get(name)
    if clock is None:
        return None
    tries = []
    for _ in range(5):
        before = time.clock_gettime_ns(clock)
        unix_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(clock)
        tries.append((after - before, ClockPair((before + after) // 2, unix_ns, -(-(after - before) // 2))))
    return min(tries, key=lambda one: one[0])[1]


def _one_line(text: str) -> str:
    return "".join(filter(str.isprintable, text))[:_NAME]


@attrs.frozen
class Origin:
    """Host and time of a recording."""

    host: str = attrs.field(default="", converter=_one_line)
    """Printable characters. Empty: unknown."""
    boot_id: str = attrs.field(default="", converter=_one_line)
    clocks: tuple[ClockPair, ...] = ()
    """In the order of time: at the begin, at the end. Empty: the time of day is unknown."""

    @classmethod
    def here(cls, clock: str) -> Self:
        """Origin of a recording by that clock that begins now, on this host."""
        try:
            with open(_BOOT_ID, encoding="ascii") as file:
                boot_id = file.read().strip()
        except OSError:
            boot_id = ""
        pair = read_clocks(clock)
        return cls(os.uname().nodename, boot_id, () if pair is None else (pair,))

    def ended(self, clock: str) -> "Origin":
        """Add the pair at the end of the recording, now."""
        pair = read_clocks(clock)
        return self if pair is None else attrs.evolve(self, clocks=(*self.clocks, pair))

    @property
    def unix_offset_ns(self) -> int | None:
        """Offset from the clock's times to times of day, as at the begin; None if unknown."""
        return self.clocks[0].offset_ns if self.clocks else None

    @property
    def step_ns(self) -> int:
        """Change of the time of day against the clock during the recording."""
        return self.clocks[-1].offset_ns - self.clocks[0].offset_ns if self.clocks else 0

    @property
    def moved(self) -> str:
        """That in words, if it is more than a second; else empty."""
        if abs(self.step_ns) <= _STEP_NS:
            return ""
        step = f"{self.step_ns / 10**9:+,.3f} s"
        return f"time of day and clock moved apart by {step} while it was recorded; the begin's is taken"

    def with_added(self, added_ns: int) -> "Origin":
        """For a recording with an offset that readers add to times. Pairs that then are invalid are
        dropped."""
        pairs = (attrs.evolve(pair, clock_ns=pair.clock_ns + added_ns) for pair in self.clocks)
        return attrs.evolve(self, clocks=tuple(pair for pair in pairs if pair.is_sane))

    def lines(self) -> str:
        """The lines stored in a file."""
        found = [f"host: {self.host}", f"boot id: {self.boot_id}"]
        found += [f"clock: {pair.clock_ns} at {pair.unix_ns}" for pair in self.clocks]
        return "".join(f"{line}\n" for line in found)

    @classmethod
    def of_lines(cls, text: str) -> "Origin | None":
        """Parse `lines`; None for any other text."""
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
