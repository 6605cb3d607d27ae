from typing import Self

from utracefs.recordings._records import EventDecoder, Records

class CtfPackets:
    events: list[EventDecoder]
    count: int
    def __init__(self, records: Records, uuid: bytes) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, bytes]: ...

def declared_fields(
    event: EventDecoder,
) -> list[tuple[str, str, int | None]]: ...
