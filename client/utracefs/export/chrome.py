"""Chrome JSON ("Trace Event Format"), which ui.perfetto.dev, chrome://tracing and speedscope open.

    {"displayTimeUnit":"ns","traceEvents":[
    {"ph":"M","name":"thread_name","pid":11,"tid":12,"args":{"name":"beta task"}},
    {"ph":"i","s":"t","cat":"user_events","name":"rpc","pid":11,"tid":12,"ts":100000000.351,"args":{...}}
    ]}

| ph | what | of |
|---|---|---|
| i | a point on its thread's track | every record that is nothing of the below |
| b, e | a slice of its own track, from one record to another one with the same key | `Tracks.slices` |
| X | a slice on its thread's track, which ends with the record | `Tracks.durations` |
| C | a counter track of its process, besides the point | `Tracks.counters` |
| M | the name of a process or thread, in front of its first record and where it changes | |

Times are microseconds with three decimals, made from integers: nothing is rounded. Readers have signed 64 bit
at most, so integers from 2^63 on are strings. Bytes are lower-case hex; U+FFFD stands for what is not UTF-8.
"""

import functools
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

import attrs

from utracefs.export.common import Exported, Progress, clean, json_text, plain, watched
from utracefs.recording import Record, Recording

__all__ = ["Slice", "Tracks", "write_chrome"]

_LINES_AT_ONCE: Final = 1000


@attrs.frozen
class Slice:
    """Two events that are the begin and the end of something."""

    begin: str
    """Name of the event; the slice is called so."""
    end: str
    key: str
    """A field that both have; equal values belong together."""


@attrs.frozen
class Tracks:
    """What becomes something else than a point. Events are named without their system."""

    slices: tuple[Slice, ...] = ()
    durations: Mapping[tuple[str, str], int] = attrs.field(factory=dict[tuple[str, str], int])
    """(event, field) to the nanoseconds that the field counts: 1, 1000 for microseconds."""
    counters: frozenset[tuple[str, str]] = frozenset()
    """(event, field)."""


def write_chrome(
    recording: Recording, out: BinaryIO, *, tracks: Tracks | None = None, progress: Progress | None = None
) -> Exported:
    """Write all records. OSError from `out`; TraceError at what is broken, after all before it is written and
    the file is complete."""
    reading = recording.reading()
    made = _Lines(tracks or Tracks())
    pending = ['{"displayTimeUnit":"ns","traceEvents":[\n{"ph":"M","name":"utracefs","pid":0,"args":{}}']
    try:
        for record in watched(reading, progress):
            pending += made.of(record)
            if len(pending) > _LINES_AT_ONCE:
                out.write((",\n".join(pending) + ",\n").encode("ascii"))
                pending.clear()
    finally:
        if not pending:
            pending.append('{"ph":"M","name":"utracefs","pid":0,"args":{}}')
        out.write((",\n".join(pending) + "\n]}\n").encode("ascii"))
    return Exported.of(reading)


class _Lines:
    """Records to JSON objects."""

    def __init__(self, tracks: Tracks) -> None:
        self._names: dict[tuple[int, int], str] = {}
        self._processes: set[int] = set()
        # Names of events, fields and systems: as many as the file has formats.
        self._clean = functools.cache(clean)
        self._text = functools.cache(lambda text: json_text(clean(text)))
        self._slices: list[tuple[str, dict[str, Slice]]] = []
        if tracks.slices:
            self._slices = [
                ("b", {pair.begin: pair for pair in tracks.slices}),
                ("e", {pair.end: pair for pair in tracks.slices}),
            ]
        self._durations: dict[str, tuple[str, int]] = {
            event: (field, unit) for (event, field), unit in tracks.durations.items()
        }
        self._counters: dict[str, list[str]] = {}
        for event, field in sorted(tracks.counters):
            self._counters.setdefault(event, []).append(field)

    def of(self, r: Record) -> Iterator[str]:
        name = self._clean(r.name)
        if self._names.get((r.pid, r.tid)) != r.comm:
            yield from self._named(r)
        if r.lost:
            number = r.lost if r.lost > 0 else "not counted"
            yield (
                f'{{"ph":"i","s":"g","cat":"utracefs","name":"lost records","pid":{r.pid},"tid":{r.tid},'
                f'"ts":{_us(r.time_ns)},"args":{{"number":{json_text(number)}}}}}'
            )
        args = {self._clean(field): _argument(value) for field, value in r.fields.items()}
        args.setdefault("cpu", r.cpu)
        if r.instance:
            args.setdefault("instance", clean(r.instance))
        about = f'"cat":{self._text(r.system)},"pid":{r.pid},"tid":{r.tid},"args":{json_text(args)}'
        yield f"{{{self._kind(r, name)},{about}}}"
        for field in self._counters.get(name, ()):
            value = r.fields.get(field)
            if isinstance(value, int):
                yield (
                    f'{{"ph":"C","name":{json_text(f"{name}.{clean(field)}")},"pid":{r.pid},'
                    f'"ts":{_us(r.time_ns)},"args":{{"value":{value}}}}}'
                )

    def _kind(self, r: Record, name: str) -> str:
        """The members that say what it is, and when."""
        for ph, pairs in self._slices:
            pair = pairs.get(name)
            if pair is not None and pair.key in r.fields:
                key = f"{pair.key}={plain(r.fields[pair.key])}"
                return (
                    f'"ph":"{ph}","id":{json_text(key)},"name":{json_text(clean(pair.begin))},'
                    f'"ts":{_us(r.time_ns)}'
                )
        if name in self._durations:
            field, unit = self._durations[name]
            duration = r.fields.get(field)
            if isinstance(duration, int) and duration >= 0:
                ns = min(duration * unit, r.time_ns)
                return f'"ph":"X","name":{json_text(name)},"ts":{_us(r.time_ns - ns)},"dur":{_us(ns)}'
        return f'"ph":"i","s":"t","name":{self._text(name)},"ts":{_us(r.time_ns)}'

    def _named(self, r: Record) -> Iterator[str]:
        """A process is called as its first thread, or as the one seen first until that is known."""
        args = f'"args":{{"name":{json_text(clean(r.comm))}}}'
        if r.tid == r.pid or r.pid not in self._processes:
            self._processes.add(r.pid)
            yield f'{{"ph":"M","name":"process_name","pid":{r.pid},{args}}}'
        self._names[r.pid, r.tid] = r.comm
        yield f'{{"ph":"M","name":"thread_name","pid":{r.pid},"tid":{r.tid},{args}}}'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03}"


def _argument(value: int | str | bytes) -> int | str:
    if isinstance(value, int):
        return value if value < 1 << 63 else str(value)
    return plain(value)
