from typing import Self

from utracefs.recordings._records import EventDecoder, Records

COMMON_COLUMNS: tuple[str, ...]
PLACE_COLUMNS: tuple[str, ...]

class Values: ...

class Column(Values):
    name: str
    type: str
    values: memoryview
    offsets: memoryview | None
    dictionary: list[str] | None
    validity: memoryview | None
    nulls: int

class Batch:
    event: EventDecoder
    rows: int
    columns: list[Column]
    commons: int
    def __init__(
        self,
        event: EventDecoder,
        text_as_bytes: bool = False,
        with_place: bool = False,
        coded: bool = False,
    ) -> None: ...

class CleanNames: ...

class ColumnBatches:
    def __init__(self, records: Records, text_as_bytes: bool = False, coded: bool = False) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Batch: ...
