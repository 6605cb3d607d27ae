from collections.abc import Callable

from utracefsd.events._tracepoint import Probe

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
