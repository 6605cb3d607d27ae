from collections.abc import Iterable

from utracefs.recordings._records import RecordSource
from utracefs.recordings.several.timeline import Timeline

class MergedSources(RecordSource):
    broken: int
    def __init__(self, members: Iterable[tuple[RecordSource, Timeline, int]]) -> None: ...
