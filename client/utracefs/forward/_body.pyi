from collections.abc import Callable

from utracefs.recordings._records import RecordSource
from utracefs_protocol.pages._stream_ring import StreamRing

class Cutter:
    def __init__(self, allows: Callable[[int], bool], max_records: int, max_bytes: int) -> None: ...
    def cut(
        self, ring: StreamRing, room: int
    ) -> tuple[list[tuple[bytes, dict[int, int], set[int], int, int]], dict[int, int]]: ...

class BodyRecords(RecordSource):
    def __init__(self, body: bytes, comms: dict[int, str], gap: bool = False) -> None: ...
