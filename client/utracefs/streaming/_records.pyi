from utracefs.recordings._records import RecordSource
from utracefs_protocol.pages._stream_ring import StreamRing

class RingRecords(RecordSource):
    def __init__(self, ring: StreamRing, release: bool = False) -> None: ...
