"""What tests of the record path begin with: an event, a write, an ftrace buffer, a probe's numbers."""

from utracefs_protocol.declaration import parse
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace._sink import FtraceSink
from utracefsd.events._tracepoint import Probe, Tracepoint

PID = 46


def tracepoint(command: bytes = b"test u32 a", event_id: int = 1039) -> Tracepoint:
    declaration = parse(command)
    return Tracepoint(event_id, declaration.name, declaration.fields)


def write(to: Tracepoint, payload: bytes, *, ts_ns: int = 1000, cpu: int = 0, pid: int = PID) -> int:
    return to.write(payload, ts_ns=ts_ns, cpu=cpu, pid=pid)


def ftrace(nr_cpus: int = 2, size_kb: int = 64) -> FtraceSink:
    return FtraceSink(RingBuffer(nr_cpus, size_kb))


def numbers(probe: Probe) -> tuple[int, int, int]:
    return probe.recorded, probe.filtered, probe.lost
