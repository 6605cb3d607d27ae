import mmap

from utracefs._records import RecordSource

class Samples(RecordSource):
    read_bytes: int
    def __init__(
        self,
        file: mmap.mmap | bytes,
        offset: int,
        size: int,
        sample_type: int,
        sample_id_all: bool,
        *,
        comms: dict[int, str],
        window: int = ...,
        recover: bool = False,
    ) -> None: ...
