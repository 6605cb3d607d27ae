from utracefs._records import Records
from utracefs.export._track_writer import TrackWriter
from utracefs.export.tracks import Tracks

class PerfettoPackets(TrackWriter):
    def __init__(
        self, records: Records, tracks: Tracks, clock: int, unix_offset_ns: int | None = None
    ) -> None: ...
    def head(self) -> bytes: ...
