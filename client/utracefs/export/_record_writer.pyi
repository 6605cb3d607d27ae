from utracefs.recordings._output_buffer import Pieces
from utracefs.recordings._records import Records

class RecordWriter(Pieces):
    def __init__(self, records: Records) -> None: ...
