from collections.abc import Iterable

from utracefs.export._record_writer import RecordWriter
from utracefs.recordings._records import Records

class CsvText(RecordWriter):
    def __init__(self, records: Records, header: Iterable[str], fields: Iterable[str]) -> None: ...
