"""Histograms of `hist` triggers as OTLP metrics.

| a column of the histogram | becomes |
|---|---|
| `hitcount`, and sums of fields | a Sum EVENT.hitcount, EVENT.FIELD; the keys are attributes |
| a key FIELD.log2 | a Histogram EVENT.FIELD of hitcount, with bounds 2^N; other keys are attributes |
| `Dropped`, the records without room in the table | a Sum EVENT.dropped |

All have the attribute `utracefs.trigger`, so histograms of one event stay apart. Temporality is cumulative:
each request has all counts since `start_ns`. The kernel's log2 entries and OTLP's buckets both include their
upper bound.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from utracefs.export._protobuf import message, tagged, utf8
from utracefs.tree.histogram import Entry, Histogram

__all__ = ["Counted", "metrics"]

MAX_POINTS: Final = 1000
"""Of a metric; a table may have 131072 entries."""

_CUMULATIVE: Final = 2
_HITS: Final = "hitcount"

# Metric: name, unit, sum, histogram. Sum and Histogram: data_points, aggregation_temporality, is_monotonic.
_NAME, _UNIT, _SUM, _HISTOGRAM = 1 << 3 | 2, 3 << 3 | 2, 7 << 3 | 2, 9 << 3 | 2
_POINT, _TEMPORALITY, _MONOTONIC = 1 << 3 | 2, 2 << 3, 3 << 3
# Both data points: start_time_unix_nano, time_unix_nano. NumberDataPoint: as_double, as_int, attributes.
# HistogramDataPoint: count, sum, bucket_counts, explicit_bounds, attributes.
_START, _TIME, _DOUBLE, _INT, _ATTRIBUTE = 2 << 3 | 1, 3 << 3 | 1, 4 << 3 | 1, 6 << 3 | 1, 7 << 3 | 2
_COUNT, _TOTAL, _COUNTS, _BOUNDS, _KEY = 4 << 3 | 1, 5 << 3 | 1, 6 << 3 | 2, 7 << 3 | 2, 9 << 3 | 2
# KeyValue: value. AnyValue: string_value, int_value.
_VALUE, _TEXT, _NUMBER = 2 << 3 | 2, 1 << 3 | 2, 3 << 3


@attrs.frozen
class Counted:
    """A histogram as it was read."""

    event: str
    histogram: Histogram
    start_ns: int
    """Since 1970: its counts began then, or later."""
    signed: frozenset[str] = frozenset()
    """Fields whose sums may fall."""


def metrics(counted: Counted, now_ns: int) -> Iterator[tuple[bytes, int]]:
    """Each Metric, with its number of data points."""
    found = counted.histogram
    times = _fixed(_START, "Q", counted.start_ns) + _fixed(_TIME, "Q", now_ns)
    log2 = _log2_key(found.trigger)
    names = [name for name in (found.entries[0].values if found.entries else ()) if name != log2]
    if log2 and _HITS in names:
        names.remove(_HITS)
        points = [_distribution(counted, times, log2, those) for those in _grouped(found.entries, log2)]
        yield from _metric(f"{counted.event}.{log2}", points)
    for name in names:
        points = [
            _point(times, entry.values[name], _attributes(_ATTRIBUTE, counted, entry.keys))
            for entry in found.entries
            if isinstance(entry.values.get(name), int)
        ]
        yield from _metric(f"{counted.event}.{name}", points, is_rising=name not in counted.signed)
    point = _point(times, found.dropped, _attributes(_ATTRIBUTE, counted, {}))
    yield from _metric(f"{counted.event}.dropped", [point], is_rising=True)


def _log2_key(trigger: str) -> str:
    """The first one; empty: there is none."""
    keys = re.search(r":keys=([^: ]*)", trigger)
    found = [key for key in (keys[1].split(",") if keys else ()) if key.endswith(".log2")]
    return found[0].removesuffix(".log2") if found else ""


def _grouped(entries: Sequence[Entry], key: str) -> list[list[Entry]]:
    """Entries that differ by this key only."""
    groups: dict[tuple[object, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(tuple(v for name, v in entry.keys.items() if name != key), []).append(entry)
    return list(groups.values())


def _metric(
    name: str, points: Sequence[bytes], *, is_rising: bool | None = None
) -> Iterator[tuple[bytes, int]]:
    """is_rising: of a Sum; None: it is a Histogram."""
    unit = "{record}" if name.endswith((f".{_HITS}", ".dropped")) else ""
    head = message(_NAME, utf8(name)) + (message(_UNIT, utf8(unit)) if unit else b"")
    tail = tagged(_TEMPORALITY, _CUMULATIVE) + (tagged(_MONOTONIC, 1) if is_rising else b"")
    kind = _HISTOGRAM if is_rising is None else _SUM
    for at in range(0, len(points), MAX_POINTS):
        some = points[at : at + MAX_POINTS]
        body = b"".join(message(_POINT, point) for point in some) + tail
        yield head + message(kind, body), len(some)


def _point(times: bytes, value: float | str, attributes: bytes) -> bytes:
    assert isinstance(value, int)
    fits = -(1 << 63) <= value < 1 << 63
    return times + (_fixed(_INT, "q", value) if fits else _fixed(_DOUBLE, "d", value)) + attributes


def _distribution(counted: Counted, times: bytes, key: str, entries: Sequence[Entry]) -> bytes:
    """A HistogramDataPoint; the last bucket, above all bounds, is empty."""
    hits = {int(str(one.keys[key]).removeprefix("2^")): int(one.values[_HITS]) for one in entries}
    powers = range(min(hits), max(hits) + 1)
    counts = [hits.get(power, 0) for power in powers] + [0]
    if min(hits) > 0:  # values up to half of the first bound are another bucket
        powers, counts = range(min(hits) - 1, max(hits) + 1), [0, *counts]
    sums = [one.values.get(key) for one in entries]
    total = b""
    if key not in counted.signed and all(isinstance(one, int) for one in sums):
        total = _fixed(_TOTAL, "d", sum(float(one) for one in sums if one is not None))
    others = {name: value for name, value in entries[0].keys.items() if name != key}
    return (
        times
        + _fixed(_COUNT, "Q", sum(counts))
        + total
        + message(_COUNTS, struct.pack(f"<{len(counts)}Q", *counts))
        + message(_BOUNDS, struct.pack(f"<{len(powers)}d", *(2.0**power for power in powers)))
        + _attributes(_KEY, counted, others)
    )


def _attributes(tag: int, counted: Counted, keys: dict[str, int | float | str]) -> bytes:
    parts = []
    for name, value in {"utracefs.trigger": counted.histogram.trigger, **keys}.items():
        if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
            packed = tagged(_NUMBER, value % (1 << 64))
        else:
            packed = message(_TEXT, utf8(str(value)))
        parts.append(message(tag, message(_NAME, utf8(name)) + message(_VALUE, packed)))
    return b"".join(parts)


def _fixed(tag: int, kind: str, value: float) -> bytes:
    return bytes([tag]) + struct.pack(f"<{kind}", value)
