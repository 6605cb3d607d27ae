from utracefsd.intake._data_ring import DataRing

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
