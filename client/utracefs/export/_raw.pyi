from collections.abc import Iterable

from utracefs._pieces import Pieces
from utracefs._records import Records

class PerfSamples(Pieces):
    tasks: dict[tuple[int, int], str]
    first_ns: int
    last_ns: int
    left_out: int
    def __init__(self, records: Records, known: Iterable[int] | None = None) -> None: ...
