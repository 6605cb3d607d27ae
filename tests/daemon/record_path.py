"""Helpers for tests of the record path: an event, a write, an ftrace buffer, a probe's counts."""

from collections.abc import Callable
from typing import Any, ClassVar
from weakref import WeakSet

from utracefs_protocol.events.declaration import parse
from utracefs_protocol.limits import MIN_STREAM_RING
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink
from utracefsd.events._tracepoint import Probe, Tracepoint
from utracefsd.intake._index_table import IndexTable

PID = 46


def tracepoint(command: bytes = b"test u32 a", event_id: int = 1039) -> Tracepoint:
    declaration = parse(command)
    return Tracepoint(event_id, declaration.name, declaration.fields)


def write(
    to: Tracepoint,
    payload: bytes,
    *,
    ts_ns: int = 1000,
    cpu: int = 0,
    pid: int = PID,
    tgid: int | None = None,
) -> int:
    """0, or -errno."""
    table = IndexTable()
    table.append(to)
    return min(table.write(bytes(4) + payload, pid, ts_ns, tgid, cpu), 0)


def ftrace(nr_cpus: int = 2, size_kb: int = 64) -> FtraceSink:
    return FtraceSink(RingBuffer(nr_cpus, size_kb))


def numbers(probe: Probe) -> tuple[int, int, int]:
    return probe.recorded, probe.filtered, probe.lost


class Collecting(StreamProbe):
    """A probe whose records are delivered as (ts_ns, cpu, thread, process, payload) by `flush`."""

    def __init__(
        self,
        consumer: str,
        deliver: Callable[[list[tuple[int, int, int, int, bytes]]], Any],
        ring_bytes: int = MIN_STREAM_RING,
    ) -> None:
        super().__init__(StreamSink(ring_bytes), consumer, 1, bytes)
        self._deliver = deliver
        self._ring = StreamRing(self.sink.memory_fd)
        self.made.add(self)

    made: ClassVar["WeakSet[Collecting]"] = WeakSet()

    @classmethod
    def close_all(cls) -> None:
        """Close descriptors and memory; probes still attached lose their records."""
        for one in list(cls.made):
            one.sink.close()
            one._ring.close()
        cls.made.clear()

    def flush(self) -> None:
        """Deliver the records since the last call."""
        self.sink.publish()
        while self._ring.next_batch():
            self._deliver([(ts, cpu, tid, pid, data) for _, ts, cpu, pid, tid, data in self._ring.tuples()])
