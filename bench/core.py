"""What the compiled core costs a record, without sockets."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Row, at_most_row, in_turns
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer


def rows() -> Iterator[Row]:
    buffer = RingBuffer(1, 4096)
    for size in (24, 64):

        def append(size: int = size) -> float:
            return buffer._bench_append(1_000_000, size)

        best = in_turns({"append": append})["append"]
        yield at_most_row(f"ring buffer append, {size} byte entry", best, 60, "ns")
