import os
from collections.abc import Mapping

from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.intake._data_ring import DataRing

class Journal:
    """How far each data ring is consumed, in the file `path`, where a successor finds it. One ring has one slot in it.

    What a dead daemon left there is kept for rings that are adopted later; `buffer` is its ring buffer if that was taken
    over, too: then a record that was under way when it died is found in there or not. OSError.
    """

    path: str
    refused: str | None
    """What was wrong with the file that stood there, which then was replaced."""

    def __init__(self, path: str | os.PathLike[str], buffers: Mapping[int, RingBuffer] = ...) -> None: ...
    def __len__(self) -> int:
        """Slots that stand for a ring, here or still to be adopted."""

    def begin(self, ring: DataRing) -> None:
        """Keep account of a ring that was just made. OSError, MemoryError: there is no room for it."""

    def resume(self, ring: DataRing) -> None:
        """Go on where the daemon before was in an adopted ring; before anything of it is taken in. Errors as `begin`."""

    def end(self, ring: DataRing) -> None:
        """The ring is given up; its memory says where it stands."""

    def leave(self, ring: DataRing) -> None:
        """Nothing more is taken from the ring here; its slot waits for whoever adopts it from a later daemon."""
