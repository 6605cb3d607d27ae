from collections.abc import Callable

from utracefsd.events._tracepoint import Probe

class BatchProbe(Probe):
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
    def flush(self) -> int: ...
