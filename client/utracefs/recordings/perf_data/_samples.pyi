import mmap
from typing import Self

from utracefs.recordings._records import RecordSource
from utracefs_protocol.pages.perf_ring import Sample

class Samples(RecordSource):
    read_bytes: int
    lost: int
    gaps: int
    def __init__(
        self,
        file: mmap.mmap | bytes | bytearray,
        offset: int,
        size: int,
        sample_type: int,
        sample_id_all: bool,
        *,
        comms: dict[int, str],
        window: int = ...,
        recover: bool = False,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Sample: ...
