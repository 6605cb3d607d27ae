from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.events._tracepoint import Probe

class FtraceSink:
    """The compiled side of one ftrace instance: what all its FtraceProbes write through."""

    tracing_on: bool
    clock: str
    """One of CLOCKS. Setting it does not clear the buffer: the instance does. ValueError: unknown."""
    cpumask: int | None
    """Bit per cpu that may record; None (default): all."""
    pids: frozenset[int] | None
    """Only these threads' events; None: all. Markers are not concerned."""
    notrace_pids: frozenset[int] | None
    ring_buffer: RingBuffer
    """May be replaced (other sub-buffer size, snapshot swap)."""

    number: int
    """Of the instance; 0 is the top one."""

    def __init__(self, ring_buffer: RingBuffer, number: int = 0) -> None: ...
    def now(self) -> int:
        """The present time in the sink's clock (for `counter` that is a tick, as in the kernel)."""

    def append_raw(self, ts_ns: int, cpu: int, pid: int, id: int, body: bytes) -> int:
        """Store a marker or other internal record: ts_ns is CLOCK_MONOTONIC, body follows the common header.

        0 stored; 1 refused: tracing off, cpu masked, or full with overwrite off; 2 too large for a sub-buffer.
        """

CLOCKS: tuple[str, ...]
"""In the order of the `trace_clock` file; `x86-tsc` only on x86."""

class FtraceProbe(Probe):
    """Status bit 1. recorded: in the ring buffer; filtered: tracing_on, cpumask, pid lists, soft-disabled; lost: full or too large."""

    sink: FtraceSink
    def __init__(self, sink: FtraceSink, consumer: str = "ftrace") -> None: ...
