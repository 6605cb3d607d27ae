"""The cost of a record in the compiled core, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.measure import Row, at_most_row, in_turns
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefsd.consumers.counts._count import CountProbe, CountTable
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import Trigger
from utracefsd.consumers.ftrace.trigger._triggers import Stacktrace, TracingSwitch
from utracefsd.events._tracepoint import Tracepoint

RECORD = (200).to_bytes(8, "little") + (1834).to_bytes(8, "little")


def rows() -> Iterator[Row]:
    buffer = RingBuffer(1, 4096)
    for size in (24, 64):

        def append(size: int = size) -> float:
            return buffer._bench_append(1_000_000, size)

        best = in_turns({"append": append})["append"]
        yield at_most_row(f"ring buffer append, {size} byte entry", best, 60, "ns")
    yield from filtered(buffer)
    yield from triggered(buffer)
    yield from counted(buffer)


def filtered(buffer: RingBuffer) -> Iterator[Row]:
    """A record of two u64 from the tracepoint on: stored without a filter, or filtered by one of two
    fields."""
    declaration = parse(b"bench u64 status; u64 usec")

    def emit(text: bytes | None) -> float:
        event = Tracepoint(1000, declaration.name, declaration.fields)
        probe = FtraceProbe(FtraceSink(buffer))
        probe.filter = None if text is None else parse_filter(text, declaration.fields)
        event.attach(probe)
        return event._bench_emit(1_000_000, RECORD)

    best = in_turns(
        {
            "no filter": lambda: emit(None),
            "rejected": lambda: emit(b"status == 200 && usec > 5000"),
            "recorded": lambda: emit(b"status == 200 && usec < 5000"),
        }
    )
    yield at_most_row("a record of two u64 in the core, no filter", best["no filter"], 60, "ns")
    yield at_most_row("a filter on two fields rejects it", best["rejected"], 40, "ns")
    yield at_most_row("a filter on two fields lets it pass, and it is stored", best["recorded"], 80, "ns")


def triggered(buffer: RingBuffer) -> Iterator[Row]:
    """The same record, stored, of an event with one trigger."""
    declaration = parse(b"bench u64 status; u64 usec")

    def emit(make: Callable[[FtraceSink], Trigger] | None) -> float:
        event = Tracepoint(1000, declaration.name, declaration.fields)
        probe = FtraceProbe(FtraceSink(buffer))
        probe.triggers = () if make is None else (make(probe.sink),)
        event.attach(probe)
        # The difference is small: rounds short enough that some are not interrupted.
        return min(event._bench_emit(10_000, RECORD) for _ in range(100))

    never = parse_filter(b"usec == 0", declaration.fields)
    best = in_turns(
        {
            "none": lambda: emit(None),
            "idle": lambda: emit(lambda sink: TracingSwitch(sink, False, filter=never)),
            "counts": lambda: emit(lambda sink: Stacktrace(sink.cells)),
        }
    )
    more = {name: best[name] - best["none"] for name in ("idle", "counts")}
    yield at_most_row("a trigger whose filter does not match adds", more["idle"], 40, "ns")
    yield at_most_row("a trigger that fires for each record adds", more["counts"], 40, "ns")


def counted(buffer: RingBuffer) -> Iterator[Row]:
    """The same record, stored, while `utracefs top` counts it."""
    declaration = parse(b"bench u64 status; u64 usec")

    def emit(counts: bool) -> float:
        event = Tracepoint(1000, declaration.name, declaration.fields)
        event.attach(FtraceProbe(FtraceSink(buffer)))
        if counts:
            event.attach(CountProbe("counts:1", CountTable(), 1000))
        return min(event._bench_emit(10_000, RECORD) for _ in range(100))

    best = in_turns({"alone": lambda: emit(False), "counted": lambda: emit(True)})
    more = best["counted"] - best["alone"]
    yield at_most_row("counting it by event and process adds", more, 5, "ns")
