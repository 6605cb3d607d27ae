from collections.abc import Sequence

from utracefs_protocol.declaration import Field

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
