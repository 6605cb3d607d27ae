"""Taking in: the daemon's side of the data rings, merged by time into the probes."""

from utracefsd._probes import IndexTable

class DataRing:
    """One producer's ring. The memfd and the doorbell (an eventfd) belong to it and are closed with it."""

    fd: int
    doorbell: int
    table: IndexTable
    pid: int
    """The peer's process, by SO_PEERCRED."""
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

    def ring_doorbell_seen(self) -> None:
        """Empty the doorbell, so that it wakes again."""

    def want_wakeup(self, wanted: bool) -> None:
        """Ask this ring's producer to ring the doorbell, or not to."""

class Intake:
    """All data rings of a daemon. `nr_cpus` bounds the cpu number that a record may claim."""

    rings: list[DataRing]
    nr_cpus: int

    def __init__(self, nr_cpus: int) -> None: ...
    def add(self, ring: DataRing) -> None: ...
    def remove(self, ring: DataRing) -> None:
        """Forget a ring, after what it still holds was taken in."""

    def want_wakeup(self, wanted: bool) -> None:
        """Ask every producer to ring its doorbell, or not to. Call take_in once more before sleeping."""

    def take_in(self, budget: int = ...) -> int:
        """Take what was committed when this was called, oldest first over all rings; at most `budget` records."""
