"""The times of several recordings on one line.

    time of a recording ─ shift ─▶ the clock's own time ─ offset ─▶ time of day

Recordings of one boot and clock share one offset, so their records are in the exact order of that clock. If
all are of one boot and clock, their times stay unchanged.

The offset comes from the pairs of `origin`. CLOCK_MONOTONIC follows NTP as the time of day does, so its
offset changes by steps only (the time was set, the machine was suspended); that of `mono_raw` drifts. A
change of at most _DRIFT of the time between the first and the last pair is a drift, and interpolated; before
the first and after the last pair it is constant. A larger one is a step at an unknown moment: the first
pair's offset is used, and the step is a part of the uncertainty.
"""

import errno
from collections.abc import Sequence
from typing import Final

import attrs

from utracefs.recordings.origin import ClockPair, Origin, clock_id
from utracefs_protocol.errors import TraceError

_DRIFT: Final = 1 / 1000
"""Largest drift: twice the maximum correction by NTP."""


class NotMergeableError(TraceError):
    """EINVAL: the times of a recording cannot be compared with those of another one."""


@attrs.frozen
class Clocked:
    """Description of the times of a recording."""

    path: str
    origin: Origin
    """With pairs of the clock's own times."""
    clock: str
    in_ns: bool
    """The clock counts nanoseconds."""
    added_ns: int = 0
    """The recording's times minus the clock's own."""


@attrs.frozen
class Timeline:
    """Converts a recording's times to the common times."""

    shift_ns: int = 0
    """Added to a time first."""
    begin_ns: int = 0
    """Then times before that have offset_ns,"""
    span_ns: int = 0
    """those this much later offset_ns + step_ns, and those between an offset between."""
    offset_ns: int = 0
    step_ns: int = 0
    uncertainty_ns: int | None = None
    """Limit of the difference to UTC; None: unknown."""
    tells_day: bool = False
    """Whether the result is a time of day."""

    def place(self, time_ns: int) -> int:
        """Convert a time to the common times; `_sources.placed` is the compiled function."""
        time_ns += self.shift_ns
        passed = min(max(time_ns - self.begin_ns, 0), self.span_ns)
        part = passed / self.span_ns if self.span_ns else 0.0
        return time_ns + self.offset_ns + int(self.step_ns * part)

    def since(self, time_ns: int) -> int:
        """A time of the recording before which none is placed at `time_ns` or later."""
        return time_ns - self.shift_ns - self.offset_ns - max(self.step_ns, 0)

    def until(self, time_ns: int) -> int:
        """A time of the recording from which on none is placed before `time_ns`."""
        return time_ns - self.shift_ns - self.offset_ns - min(self.step_ns, 0)


def timelines(recordings: Sequence[Clocked]) -> list[Timeline]:
    """One for each of several recordings. NotMergeableError: the time of day is unknown for one."""
    groups: dict[object, list[Clocked]] = {}
    for number, one in enumerate(recordings):
        groups.setdefault(_group(number, one), []).append(one)
    if len(groups) == 1 and not any(one.added_ns for one in recordings):
        return [Timeline()] * len(recordings)
    found = {key: _timeline(those) for key, those in groups.items()}
    return [
        attrs.evolve(found[_group(number, one)], shift_ns=-one.added_ns)
        for number, one in enumerate(recordings)
    ]


def _group(number: int, one: Clocked) -> object:
    """Equal for recordings whose times can be compared."""
    known = one.origin.boot_id and clock_id(one.clock) is not None
    return (one.origin.boot_id, clock_id(one.clock)) if known else number


def _timeline(recordings: Sequence[Clocked]) -> Timeline:
    for one in recordings:
        if not one.in_ns:
            raise _cannot(one, f"its clock, {one.clock}, does not count nanoseconds")
    pairs = sorted((pair for one in recordings for pair in one.origin.clocks), key=lambda pair: pair.clock_ns)
    if not pairs:
        raise _cannot(
            recordings[0],
            "its time of day is unknown, as for older recordings and those of trace-cmd without --date",
        )
    first, last = pairs[0], pairs[-1]
    span, step = last.clock_ns - first.clock_ns, last.offset_ns - first.offset_ns
    is_drift = abs(step) <= _DRIFT * span
    return Timeline(
        begin_ns=first.clock_ns,
        span_ns=span if is_drift else 0,
        offset_ns=first.offset_ns,
        step_ns=step if is_drift else 0,
        uncertainty_ns=_uncertainty_ns(pairs, 0 if is_drift else abs(step)),
        tells_day=True,
    )


def _uncertainty_ns(pairs: Sequence[ClockPair], step_ns: int) -> int | None:
    known = [pair.error_ns for pair in pairs if pair.error_ns is not None]
    return max(known) + step_ns if len(known) == len(pairs) else None


def _cannot(one: Clocked, why: str) -> NotMergeableError:
    return NotMergeableError(
        errno.EINVAL, f"{one.path}: cannot be merged with other recordings: {why}; read it alone"
    )
