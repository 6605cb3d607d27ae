from collections.abc import Sequence

from utracefs_protocol.events.declaration import Field

class Probe:
    consumer: str
    status_bit: int
    recorded: int
    filtered: int
    lost: int
    def __init__(self, consumer: str, status_bit: int) -> None: ...

class Tracepoint:
    id: int
    name: bytes
    min_size: int
    emitted: int
    missed: int
    payload_bytes: int
    lost_in_rings: int
    rings_gone: int
    refused: dict[bytes, int]
    status: int
    past: list[tuple[str, int, int, int]]

    def __init__(self, event_id: int, name: bytes, fields: Sequence[Field]) -> None: ...
    @property
    def locations(self) -> list[list[int]]: ...
    @property
    def probes(self) -> tuple[Probe, ...]: ...
    def attach(self, probe: Probe) -> None: ...
    def detach(self, probe: Probe) -> None: ...
    def write(self, payload: bytes, *, ts_ns: int, cpu: int, pid: int, tgid: int | None = None) -> int: ...
    def _bench_emit(self, n: int, payload: bytes) -> float: ...
    def stats_text(self) -> bytes: ...
