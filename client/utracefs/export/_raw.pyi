from collections.abc import Iterable

from utracefs.recordings._output_buffer import Pieces
from utracefs.recordings._records import Records

class PerfSamples(Pieces):
    tasks: dict[tuple[int, int], str]
    first_ns: int
    last_ns: int
    left_out: int
    def __init__(self, records: Records, known: Iterable[int] | None = None) -> None: ...
