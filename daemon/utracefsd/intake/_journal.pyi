import os
from collections.abc import Mapping

from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake.known_rings import Key

class Journal:
    path: str
    refused: str | None
    cells: Cells
    fired: dict[Key, tuple[int, set[int]]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        buffers: Mapping[int, RingBuffer] = ...,
        cells: Cells | None = None,
        fired: Mapping[Key, tuple[int, set[int]]] = ...,
    ) -> None: ...
    def __len__(self) -> int: ...
    def begin(self, ring: DataRing) -> None: ...
    def resume(self, ring: DataRing) -> None: ...
    def forget_buffer(self, number: int) -> None: ...
    def end(self, ring: DataRing) -> None: ...
    def leave(self, ring: DataRing) -> None: ...
