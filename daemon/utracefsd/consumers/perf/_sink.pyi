from utracefsd.events._tracepoint import Probe

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
