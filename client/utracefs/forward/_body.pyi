from collections.abc import Callable

from utracefs.recordings._records import RecordSource
from utracefs_protocol.events.declaration import Field
from utracefs_protocol.pages._stream_ring import StreamRing

class Edit:
    def __init__(self, field: Field, digest: Callable[[bytes], bytes] | None = None) -> None: ...

class Cutter:
    sampled: dict[int, int]
    def __init__(
        self,
        allows: Callable[[int], bool | tuple[Edit, ...]],
        max_records: int,
        max_bytes: int,
        sample: Callable[[int], int] | None = None,
    ) -> None: ...
    def cut(
        self, ring: StreamRing, room: int
    ) -> tuple[list[tuple[bytes, dict[int, int], set[int], int, int]], dict[int, int]]: ...

class BodyRecords(RecordSource):
    def __init__(self, body: bytes, comms: dict[int, str], gap: bool = False) -> None: ...
