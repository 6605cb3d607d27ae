from utracefs.export.timelines._track_writer import TrackWriter
from utracefs.export.timelines.tracks import Tracks
from utracefs.recordings._records import Records

class ChromeText(TrackWriter):
    def __init__(self, records: Records, tracks: Tracks) -> None: ...
