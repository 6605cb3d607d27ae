"""What the compiled core costs a record, without sockets."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Row, at_most_row, in_turns
from utracefs_protocol.declaration import parse
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.filter import parse_filter
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


def filtered(buffer: RingBuffer) -> Iterator[Row]:
    """A record of two u64 from the tracepoint on: stored without a filter, or judged by one of two fields."""
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
