"""Streams: records taken in from a data ring, into the ring of a reader, and read there, on one core.

The last rows are a real daemon with a program that emits as fast as it can, and a reader beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import utracefs
from bench.measure import Row, at_least_row, daemon
from bench.rings import taken_in_s
from utracefs.recordings._records import EventDecoder, Records
from utracefs.streaming._columns import columns_of
from utracefs.streaming._records import RingRecords
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.filter import parse_filter
from utracefs_protocol.limits import STREAM_RING_SIZE
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefsd.consumers.plugins.contract import RawBatch
from utracefsd.consumers.plugins.plugins import Plugin
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.events.event import CommandString
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile

RECORDS = 80_000
"""Number of records of 48 bytes: they fit into the default ring."""

DECLARED = parse(b"bench_in u64 a; u64 b")
DECODERS = {2000: EventDecoder("user_events", "bench_in", DECLARED.fields)}


def records(ring: StreamRing) -> Records:
    return Records(RingRecords(ring), DECODERS.get)


def as_columns(ring: StreamRing) -> None:
    (columns,) = columns_of(records(ring)).values()
    assert len(columns["a"]) == RECORDS


def as_objects(ring: StreamRing) -> None:
    count = 0
    for record in records(ring):
        count += record.fields is not None
    assert count == RECORDS


def counted(ring: StreamRing) -> None:
    assert ring.counts() == {2000: RECORDS}


def rate(read: Callable[[StreamRing], None], filter_text: bytes = b"") -> float:
    """Records per second, from the data ring to the result of `read`."""
    filter_ = parse_filter(filter_text, DECLARED.fields) if filter_text else None
    sink = StreamSink(STREAM_RING_SIZE)
    probe = StreamProbe(sink, "stream:1", 2000, lambda: b"user_events\0", filter_)
    tracepoint = Tracepoint(2000, DECLARED.name, DECLARED.fields)
    tracepoint.attach(probe)
    ring = StreamRing(sink.memory_fd)
    took: list[float] = []

    def take() -> None:
        begin = time.perf_counter()
        sink.publish()
        ring.next_batch()
        read(ring)
        took.append(time.perf_counter() - begin)
        ring.next_batch()

    taken_in = taken_in_s(tracepoint, RECORDS, take)
    assert not probe.lost
    ring.close()
    sink.close()
    return RECORDS / (RECORDS / taken_in + min(took))


def in_one_process() -> Iterator[Row]:
    yield at_least_row("stream: taken in and counted by event", rate(counted), 5_000_000, "records/s")
    filtered = rate(counted, b"a == 0 || b > 5")
    yield at_least_row("the same behind a filter", filtered, 5_000_000, "records/s")
    yield at_least_row("taken in and decoded into columns", rate(as_columns), 1_000_000, "records/s")
    yield at_least_row("taken in and as Record objects", rate(as_objects), 300_000, "records/s")


class Counting:
    """A plug-in that counts by event."""

    def __init__(self) -> None:
        self.count = 0

    def take_raw(self, batch: RawBatch) -> None:
        self.count += sum(batch.counts.values())


class Iterating(Counting):
    """A plug-in that takes an object for each record."""

    def take_raw(self, batch: RawBatch) -> None:
        for record in batch:
            self.count += record.cpu >= 0


def into_plugin(kind: type[Counting]) -> float:
    """Records per second, until the plug-in's thread has taken them."""
    made: list[Counting] = []

    def make() -> Counting:
        made.append(kind())
        return made[-1]

    status = StatusFile(f"/dev/shm/utracefs-bench-{os.getpid()}")
    table = EventTable(status)
    event = table.register(CommandString.parse(b"bench_in u64 a; u64 b"), privileged=True)
    plugin = Plugin("bench", lambda: make, table, now_ns=time.monotonic_ns)
    plugin.attach(event)
    took: list[float] = []

    def take() -> None:
        begin = time.perf_counter()
        plugin.flush()
        plugin.drain(60)
        took.append(time.perf_counter() - begin)

    taken_in = taken_in_s(event.tracepoint, RECORDS, take)
    assert made[0].count == len(took) * RECORDS
    plugin.close()
    status.close()
    return RECORDS / (RECORDS / taken_in + min(took))


def plugins() -> Iterator[Row]:
    yield at_least_row(
        "plug-in: taken in and counted by event", into_plugin(Counting), 5_000_000, "records/s"
    )
    yield at_least_row("plug-in: taken in and as objects", into_plugin(Iterating), 300_000, "records/s")


LIVE = 4_000_000


def produce(directory: str, go: Any) -> None:
    os.environ["UTRACEFS_RING_KB"] = "32768"
    with utracefs.Session(directory) as session:
        event = session.event("bench_in u64 a; u64 b")
        while not (event.registered and event):
            time.sleep(0.001)
        emit = event.emit
        go.wait()
        for i in range(LIVE):
            emit(i, i)
        session.flush(60)


def live() -> Iterator[Row]:
    """Records per second when the program, the daemon and the reader share the machine."""
    context: Any = multiprocessing.get_context("fork")
    best = 0.0
    for _ in range(3):
        with daemon() as directory, utracefs.attach("bench_in", ring_bytes=16 << 20) as stream:
            go = context.Event()
            process = context.Process(target=produce, args=(directory, go))
            process.start()
            go.set()
            got = 0
            begin = None
            for batch in stream.batches():
                begin = begin or time.perf_counter()
                got += sum(batch.counts.values())
                if got + sum(stream.lost.values()) >= LIVE:
                    break
            assert begin is not None
            best = max(best, got / (time.perf_counter() - begin))
            process.join()
            if got + sum(stream.lost.values()) != LIVE:
                raise SystemExit(f"bench: {LIVE} emitted, {got} came, {stream.lost} were lost")
    yield at_least_row("a reader beside a program flat out, counted", best, 0, "records/s")


def rows() -> Iterator[Row]:
    yield from in_one_process()
    yield from plugins()
    yield from live()
