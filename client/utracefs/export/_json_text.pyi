from utracefs.export._record_writer import RecordWriter
from utracefs.recordings._records import Records

class JsonText(RecordWriter):
    def __init__(self, records: Records) -> None: ...

class JsonCache:
    def __init__(self, ascii: bool = True) -> None: ...
