"""Taking in: the daemon's side of the data rings, merged by time into the probes."""

import os
from collections.abc import Callable

from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace._sink import FtraceSink
from utracefsd.intake._index_table import IndexTable

class DataRing:
    """One producer's ring. The memfd and the doorbell (an eventfd) belong to it and are closed with it."""

    fd: int
    doorbell: int
    table: IndexTable
    pid: int
    """The peer's process, by SO_PEERCRED."""
    new_thread: Callable[[int], None] | None
    """Told of a thread id when it is first seen, while the thread may still be asked for its name."""
    dead: bool
    """The connection is gone: take what is there, step over what never will be committed."""
    corrupt: bool
    """The shared memory says what cannot be: end the connection with EPROTO."""
    taken: int
    """Records taken, those refused included."""
    size: int
    """Bytes of the data area."""
    lost_to_death: int
    """Records that were reserved and never committed, because the producer died."""
    pending_bytes: int
    """Bytes reserved and not yet taken, as the producer's memory says; not to be trusted."""

    @staticmethod
    def create(table: IndexTable, pid: int, size: int) -> DataRing:
        """A new ring with a data area of `size` bytes. ValueError: not a power of two from 64 KiB to 64 MiB. OSError."""

    @staticmethod
    def adopt(table: IndexTable, pid: int, fd: int, doorbell: int) -> DataRing:
        """A ring that an earlier daemon made; takes both descriptors over, also when it fails. ValueError says what is wrong."""

    def key(self) -> tuple[int, int]:
        """(st_dev, st_ino) of its memory: whoever passes it on, and under whatever descriptor, it is this ring."""

    def threads(self) -> list[int]:
        """The threads whose records were taken last, at most a few dozen."""

    def ring_doorbell_seen(self) -> None:
        """Empty the doorbell, so that it wakes again."""

    def want_wakeup(self, wanted: bool) -> None:
        """Ask this ring's producer to ring the doorbell, or not to."""

class Journal:
    """How far each data ring is consumed, in the file `path`, where a successor finds it. One ring has one slot in it.

    What a dead daemon left there is kept for rings that are adopted later; `buffer` is its ring buffer if that was taken
    over, too: then a record that was under way when it died is found in there or not. OSError.
    """

    path: str
    refused: str | None
    """What was wrong with the file that stood there, which then was replaced."""

    def __init__(self, path: str | os.PathLike[str], buffer: RingBuffer | None = None) -> None: ...
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

class Intake:
    """All data rings of a daemon. `nr_cpus` bounds the cpu number that a record may claim."""

    rings: list[DataRing]
    nr_cpus: int
    sink: FtraceSink | None
    """The instance whose ring buffer a successor takes over: what is in there counts as recorded."""

    def __init__(self, nr_cpus: int, sink: FtraceSink | None = None) -> None: ...
    def add(self, ring: DataRing) -> None: ...
    def remove(self, ring: DataRing) -> None:
        """Forget a ring, after what it still holds was taken in."""

    def want_wakeup(self, wanted: bool) -> None:
        """Ask every producer to ring its doorbell, or not to. Call take_in once more before sleeping."""

    def take_in(self, budget: int = ...) -> int:
        """Take what was committed when this was called, oldest first over all rings; at most `budget` records."""
