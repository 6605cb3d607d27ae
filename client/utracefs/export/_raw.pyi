from utracefs._pieces import Pieces
from utracefs._records import Records

class PerfSamples(Pieces):
    tasks: dict[tuple[int, int], str]
    first_ns: int
    last_ns: int
    too_large: int
    def __init__(self, records: Records) -> None: ...
