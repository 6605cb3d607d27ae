"""Origin of a recording: the host, its boot, and the times of day of its clock.

A recorder reads a pair of clocks, the recording's and CLOCK_REALTIME, at the begin and at the end. Both kinds
of files store that as lines of text:

    host: NAME
    boot id: /proc/sys/kernel/random/boot_id; times of different boots cannot be compared
    clock: NANOSECONDS at NANOSECONDS since 1970-01-01 UTC
    uncertainty: NANOSECONDS; of the time of day in the line before, if known

in a trace.dat among the statistics (`trace-cmd report --stat` prints them), in a perf.data as a feature
unknown to perf, which it skips.
"""

import ctypes
import os
import time
from typing import Final, Self

import attrs

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

_STA_UNSYNC: Final = 0x40

_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"

_LIBC: Final = ctypes.CDLL(None)


@attrs.frozen
class ClockPair:
    """Two clocks at one moment, in nanoseconds."""

    clock_ns: int
    unix_ns: int
    """CLOCK_REALTIME, since 1970."""
    uncertainty_ns: int = attrs.field(default=0, eq=False)
    """Maximum time between the two readings; not stored in files."""
    error_ns: int | None = None
    """Limit of the difference between unix_ns and UTC: the kernel's own (`maxerror` of adjtimex(2), which NTP
    keeps small), and half the time that reading took. None: unknown, as without NTP."""

    @property
    def offset_ns(self) -> int:
        """Offset from the clock's times to times of day."""
        return self.unix_ns - self.clock_ns

    @property
    def is_sane(self) -> bool:
        """Whether both are from 0 to 2^63: until 2262."""
        return not (self.clock_ns >> 63 or self.unix_ns >> 63 or (self.error_ns or 0) >> 63)


def clock_id(name: str) -> int | None:
    """The clock of clock_gettime(2) that a trace clock of that name is here; None: it is none of them."""
    return _CLOCKS.get(name)


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
        tries.append((after - before, (before + after) // 2, unix_ns))
    took, clock_ns, unix_ns = min(tries)
    error_ns = _max_error_ns()
    half_ns = (took + 1) // 2
    error_ns = None if error_ns is None else error_ns + half_ns
    return ClockPair(clock_ns, unix_ns, half_ns, error_ns)


class _Timex(ctypes.Structure):
    """The begin of struct timex of adjtimex(2), with room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_char * 256),
    )


def _max_error_ns() -> int | None:
    """The kernel's limit of the error of CLOCK_REALTIME; None: the clock is not synchronized."""
    timex = _Timex()
    try:
        state = _LIBC.adjtimex(ctypes.byref(timex))
    except (OSError, AttributeError):
        return None
    if state < 0 or timex.status & _STA_UNSYNC or timex.maxerror < 0:
        return None
    return int(timex.maxerror) * 1000


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
        """The step in words, if it is more than a second; else empty."""
        if abs(self.step_ns) <= _STEP_NS:
            return ""
        step = f"{self.step_ns / 10**9:+,.3f} s"
        return (
            f"time of day and clock moved apart by {step} during the recording; times of day are its begin's"
        )

    def with_added(self, added_ns: int) -> "Origin":
        """Adapt the pairs to a recording whose readers add an offset to its times. Pairs that become invalid
        are dropped."""
        pairs = (attrs.evolve(pair, clock_ns=pair.clock_ns + added_ns) for pair in self.clocks)
        return attrs.evolve(self, clocks=tuple(pair for pair in pairs if pair.is_sane))

    def lines(self) -> str:
        found = [f"host: {self.host}", f"boot id: {self.boot_id}"]
        for pair in self.clocks:
            found.append(f"clock: {pair.clock_ns} at {pair.unix_ns}")
            found += [] if pair.error_ns is None else [f"uncertainty: {pair.error_ns}"]
        return "".join(f"{line}\n" for line in found)

    @classmethod
    def of_lines(cls, text: str) -> "Origin | None":
        """Parse `lines`; None for any other text."""
        words = [line.partition(": ")[::2] for line in text.splitlines()]
        if [key for key, _ in words[:2]] != ["host", "boot id"]:
            return None
        try:
            pairs: list[ClockPair] = []
            for key, value in words[2:]:
                if key == "clock":
                    pairs.append(ClockPair(*map(int, value.split(" at ", 1))))
                elif key == "uncertainty" and pairs:
                    pairs[-1] = attrs.evolve(pairs[-1], error_ns=int(value))
        except (TypeError, ValueError):
            return None
        found = cls(words[0][1], words[1][1], tuple(pairs))
        return found if all(pair.is_sane for pair in pairs) else None
