from utracefs._records import Records
from utracefs.export._track_writer import TrackWriter
from utracefs.export.tracks import Tracks

class ChromeText(TrackWriter):
    def __init__(self, records: Records, tracks: Tracks) -> None: ...
