"""Histograms of `hist` triggers as OTLP metrics.

| a column of the histogram | becomes |
|---|---|
| `hitcount`, and sums of fields | a Sum EVENT.hitcount, EVENT.FIELD.sum; the keys are attributes |
| a key FIELD.log2 | a Histogram EVENT.FIELD of hitcount, with bounds 2^N; other keys are attributes |
| `Dropped`, the records without room in the table | a Sum EVENT.dropped |

The scope is the event's system. All have the attribute `utracefs.trigger`, so histograms of one event stay
apart. Entries with equal attributes are added up, since consumers keep only one of two points with the same
attributes; keys that differ only in bytes that are not UTF-8 give such entries. Temporality is cumulative:
each request has all counts since `start_ns`. The kernel's log2 entries and OTLP's buckets both include their
upper bound. The kernel counts negative numbers in the entry 2^64; here they are in the lowest bucket.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import attrs

from utracefs.export._protobuf import message, tagged, utf8
from utracefs.forward._otlp import attribute
from utracefs.tree.histogram import Entry, Histogram

MAX_POINTS: Final = 1000
"""Limit of a metric's data points in a request; a table may have 131072 entries."""
MAX_BYTES: Final = 1 << 20
"""Limit of a request. Each data point has the trigger's text, and texts as keys."""

_CUMULATIVE: Final = 2
_HITS: Final = "hitcount"
_NEGATIVES: Final = 64
"""N of the entry 2^N that a signed field's negative numbers have."""
_NEGATIVE: Final = -1

# Metric: name, unit, sum, histogram. Sum and Histogram: data_points, aggregation_temporality, is_monotonic.
_NAME, _UNIT, _SUM, _HISTOGRAM = 1 << 3 | 2, 3 << 3 | 2, 7 << 3 | 2, 9 << 3 | 2
_POINT, _TEMPORALITY, _MONOTONIC = 1 << 3 | 2, 2 << 3, 3 << 3
# Both data points: start_time_unix_nano, time_unix_nano. NumberDataPoint: as_double, as_int, attributes.
# HistogramDataPoint: count, sum, bucket_counts, explicit_bounds, attributes.
_START, _TIME, _DOUBLE, _INT, _ATTRIBUTE = 2 << 3 | 1, 3 << 3 | 1, 4 << 3 | 1, 6 << 3 | 1, 7 << 3 | 2
_COUNT, _TOTAL, _COUNTS, _BOUNDS, _KEY = 4 << 3 | 1, 5 << 3 | 1, 6 << 3 | 2, 7 << 3 | 2, 9 << 3 | 2


@attrs.frozen
class Counted:
    """A histogram as it was read."""

    system: str
    event: str
    histogram: Histogram
    start_ns: int
    """Since 1970: its counts began then, or later."""
    signed: frozenset[str] = frozenset()
    """Fields whose sums may fall."""


def metrics(
    counted: Counted, now_ns: int, most: int = MAX_POINTS, max_bytes: int = MAX_BYTES
) -> Iterator[tuple[bytes, int]]:
    """Each Metric of at most that many data points, and bytes unless one data point has more; with its number
    of data points."""
    limits = most, max_bytes
    found = counted.histogram
    times = _fixed(_START, "Q", counted.start_ns) + _fixed(_TIME, "Q", now_ns)
    names = list(found.entries[0].values) if found.entries else []
    log2 = _log2_key(found.trigger) if _HITS in names else ""
    if log2:
        names = [name for name in names if name not in (log2, _HITS)]
        points = [
            _distribution(counted, times, log2, those) + attributes
            for attributes, those in _grouped(_KEY, counted, without=log2).items()
        ]
        yield from _metric(f"{counted.event}.{log2}", points, limits)
    groups = _grouped(_ATTRIBUTE, counted) if names else {}
    for name in names:
        sums = {
            attributes: [value for one in those if isinstance(value := one.values.get(name), int)]
            for attributes, those in groups.items()
        }
        points = [_point(times, sum(values), attributes) for attributes, values in sums.items() if values]
        title = name if name == _HITS else f"{name}.sum"
        yield from _metric(f"{counted.event}.{title}", points, limits, is_rising=name not in counted.signed)
    point = _point(times, found.dropped, _attributes(_ATTRIBUTE, counted, {}))
    yield from _metric(f"{counted.event}.dropped", [point], limits, is_rising=True)


def _log2_key(trigger: str) -> str:
    """The first key FIELD.log2 whose field is not another key, too; empty: there is none."""
    keys = re.search(r":keys=([^: ]*)", trigger)
    words = keys[1].split(",") if keys else []
    fields = [word.partition(".")[0] for word in words]
    found = (word.removesuffix(".log2") for word in words if word.endswith(".log2"))
    return next((field for field in found if fields.count(field) == 1), "")


def _grouped(tag: int, counted: Counted, without: str = "") -> dict[bytes, list[Entry]]:
    """Entries by their attributes. without: a key that is no attribute."""
    groups: dict[bytes, list[Entry]] = {}
    for entry in counted.histogram.entries:
        keys = {name: value for name, value in entry.keys.items() if name != without}
        groups.setdefault(_attributes(tag, counted, keys), []).append(entry)
    return groups


def _metric(
    name: str, points: Sequence[bytes], limits: tuple[int, int], *, is_rising: bool | None = None
) -> Iterator[tuple[bytes, int]]:
    """is_rising: of a Sum; None: it is a Histogram."""
    unit = "{record}" if name.endswith((f".{_HITS}", ".dropped")) else ""
    head = message(_NAME, utf8(name)) + (message(_UNIT, utf8(unit)) if unit else b"")
    tail = tagged(_TEMPORALITY, _CUMULATIVE) + (tagged(_MONOTONIC, 1) if is_rising else b"")
    kind = _HISTOGRAM if is_rising is None else _SUM
    most, max_bytes = limits
    around = len(head) + len(tagged(kind, max_bytes)) + len(tail)
    parts = [message(_POINT, point) for point in points]
    begin, size = 0, around
    for at, part in enumerate(parts, 1):
        size += len(part)
        if at == len(parts) or at - begin == most or size + len(parts[at]) > max_bytes:
            yield head + message(kind, b"".join(parts[begin:at]) + tail), at - begin
            begin, size = at, around


def _point(times: bytes, value: int, attributes: bytes) -> bytes:
    fits = -(1 << 63) <= value < 1 << 63
    return times + (_fixed(_INT, "q", value) if fits else _fixed(_DOUBLE, "d", value)) + attributes


def _distribution(counted: Counted, times: bytes, key: str, entries: Sequence[Entry]) -> bytes:
    """A HistogramDataPoint without attributes; the last bucket, above all bounds, is empty."""
    is_signed = key in counted.signed
    hits: Counter[int] = Counter()
    for one in entries:
        power = int(str(one.keys[key]).removeprefix("2^"))
        hits[_NEGATIVE if is_signed and power == _NEGATIVES else power] += int(one.values[_HITS])
    negative = hits.pop(_NEGATIVE, 0)
    first, last = min(hits, default=0), max(hits, default=0)
    powers = range(first, last + 1)
    counts = [hits[power] for power in powers] + [0]
    if first > 0:  # values up to half of the first bound are another bucket
        powers, counts = range(first - 1, last + 1), [0, *counts]
    counts[0] += negative
    sums = [one.values.get(key) for one in entries]
    total = b""
    if not is_signed and all(isinstance(one, int) for one in sums):
        total = _fixed(_TOTAL, "d", sum(float(one) for one in sums if one is not None))
    return (
        times
        + _fixed(_COUNT, "Q", sum(counts))
        + total
        + message(_COUNTS, struct.pack(f"<{len(counts)}Q", *counts))
        + message(_BOUNDS, struct.pack(f"<{len(powers)}d", *(2.0**power for power in powers)))
    )


def _attributes(tag: int, counted: Counted, keys: dict[str, int | float | str]) -> bytes:
    found = {"utracefs.trigger": counted.histogram.trigger, **keys}
    return b"".join(attribute(tag, *one) for one in found.items())


def _fixed(tag: int, kind: str, value: float) -> bytes:
    return bytes([tag]) + struct.pack(f"<{kind}", value)
