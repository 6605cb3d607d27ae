from collections.abc import Callable

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
