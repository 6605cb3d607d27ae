from collections.abc import Mapping

from utracefs.recordings._records import Records

class RingWriter:
    fd: int
    unknown: int
    records: Records
    def __init__(
        self, records: Records, ids: Mapping[int, int], described: Mapping[int, bytes], size: int
    ) -> None: ...
    def write(self) -> int | None: ...
