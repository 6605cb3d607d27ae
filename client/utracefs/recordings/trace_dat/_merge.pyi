import mmap
from collections.abc import Iterable
from typing import Self

class Merge:
    size_bytes: int
    read_bytes: int
    def __init__(
        self,
        file: mmap.mmap | bytes,
        extents: Iterable[tuple[int, int, int, int, int]],
        *,
        recover: bool = False,
    ) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, int, int, int, int, int]: ...
