from utracefs.export.timelines._track_writer import TrackWriter
from utracefs.export.timelines.tracks import Tracks
from utracefs.recordings._records import Records

class PerfettoPackets(TrackWriter):
    def __init__(
        self, records: Records, tracks: Tracks, clock: int, unix_offset_ns: int | None = None
    ) -> None: ...
    def head(self) -> bytes: ...
