"""The record path: per event a tracepoint, per attached consumer a probe; what a write does, record by record."""

from collections.abc import Callable, Sequence

from utracefs_protocol.declaration import Field
from utracefsd._ring_buffer import RingBuffer

class Probe:
    """One consumer's attachment to ONE event. recorded + filtered + lost = records emitted while it was attached."""

    consumer: str
    status_bit: int
    """StatusBit it stands for: 1 ftrace, 2 perf, 0x80 any other."""
    soft_disabled: bool
    """Attached (status bit on) but takes nothing: everything counts as filtered."""
    recorded: int
    filtered: int
    lost: int

class Tracepoint:
    """The compiled side of one event: checks a record as write(2) does and hands it to every attached probe."""

    id: int
    name: bytes
    min_size: int
    """Bytes that a payload must have at least: the sum of the field sizes."""
    emitted: int
    """Records that passed the checks while something was attached."""
    status: int
    """OR of the status bits of the attached probes; 0: nobody listens."""
    past: list[tuple[str, int, int, int]]
    """(consumer, recorded, filtered, lost) of probes that are gone, one per consumer name."""

    def __init__(self, event_id: int, name: bytes, fields: Sequence[Field]) -> None:
        """ValueError: id outside 1..65535."""

    @property
    def probes(self) -> tuple[Probe, ...]: ...
    def attach(self, probe: Probe) -> None:
        """ValueError: attached already."""

    def detach(self, probe: Probe) -> None:
        """Flushes a BatchProbe, then remembers the probe's numbers in `past`. ValueError: not attached."""

    def write(self, payload: bytes, *, ts_ns: int, cpu: int, pid: int, tgid: int | None = None) -> int:
        """0 or -errno: EINVAL payload too short, EBADF nothing attached, EFAULT bad dynamic field (user_events.md 6)."""

    def stats_text(self) -> bytes:
        """protocol.md section 4: `emitted: N`, then `CONSUMER: recorded N filtered N lost N` per consumer, attached ones first.

        All count from 0 in each daemon: they are not taken over from one that died.
        """

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
    generation: int
    """Records and markers stored through this sink; only grows: compare to see whether anything is new."""

    def __init__(self, ring_buffer: RingBuffer) -> None: ...
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

class PerfSink:
    """One perf event: a count, and with data_pages a memfd ring in the kernel's layout (protocol.md 6, exports.md 5.3).

    One sink serves one event (its samples carry its id), through one PerfProbe.
    """

    id: int
    count: int
    """Records counted while enabled, of the chosen pid and cpu."""
    lost: int
    """Samples that did not fit (or were larger than 8192 bytes)."""
    enabled: bool
    """Off: everything counts as filtered; the status bit stays."""
    sample_period: int
    """A sample every so many records; 0 counts only. Settable (ioctl PERIOD)."""
    sample_freq: int
    sample_type: int
    sample_id_all: bool
    pid: int
    cpu: int
    data_pages: int
    fd: int
    """memfd of the ring (sealed against resizing), owned by the sink; -1 without ring. Page 0 is the metadata page."""

    def __init__(
        self,
        id: int,
        *,
        sample_period: int = 1,
        sample_freq: int = 0,
        sample_type: int = 0x10587,
        pid: int = -1,
        cpu: int = -1,
        data_pages: int = 0,
        enabled: bool = True,
        sample_id_all: bool = True,
    ) -> None:
        """ValueError: id 0, data_pages not 0 or a power of two up to 16384, both period > 1 and freq given, unknown sample_type bits."""

    def reset(self) -> None:
        """count = 0."""

    def close(self) -> None:
        """Unmap and close the memfd; counting goes on. Safe twice."""

class PerfProbe(Probe):
    """Status bit 2. recorded: counted (and its sample, if one was due, stored); filtered: pid, cpu, disabled; lost: the due sample did not fit."""

    sink: PerfSink
    def __init__(self, sink: PerfSink, consumer: str) -> None: ...

class BatchProbe(Probe):
    """For consumers written in Python: collects (ts_ns, cpu, pid, tgid, payload) and hands them over in batches. Status bit 0x80.

    Past max_pending records are lost. An exception out of `deliver` never reaches the record path: it is counted in
    `failures`, kept in `last_error`, and that batch counts as lost.
    """

    pending: int
    max_pending: int
    failures: int
    last_error: Exception | None
    def __init__(
        self,
        consumer: str,
        deliver: Callable[[list[tuple[int, int, int, int, bytes]]], object],
        max_pending: int = 65536,
    ) -> None: ...
    def flush(self) -> int:
        """Deliver what is pending; returns how many records that were."""

class IndexTable:
    """The write_index table of one data connection (one open file of user_events_data)."""

    total_refused: int
    @property
    def refused(self) -> dict[tuple[int, int], int]:
        """(errno, write_index) -> count of bare records refused since take_refused(); index -1 for records without one.

        At most 256 keys: what comes beyond is counted under (errno, -1).
        """

    def take_refused(self) -> dict[tuple[int, int], int]:
        """Hand over `refused` and start anew."""

    def append(self, tracepoint: Tracepoint) -> int:
        """The new write_index."""

    def __len__(self) -> int: ...
    def __getitem__(self, write_index: int) -> Tracepoint: ...
    def clear(self) -> None:
        """Drop all tracepoints (the connection closed)."""

    def write(self, record: bytes, pid: int) -> int:
        """The acknowledged form: bytes taken, or -errno: EFAULT < 4 bytes, EINVAL negative, ENOENT unknown, then Tracepoint.write."""

    def take_in(self, buffer: bytes | bytearray | memoryview, offset: int, pid: int) -> int:
        """Take the consecutive complete bare `bin` objects at `offset`; returns the offset of the first byte not consumed.

        Stops at anything else, at an incomplete object and at one of more than MAX_DATA_OBJECT bytes (the caller says EMSGSIZE).
        ValueError: offset outside the buffer.
        """
