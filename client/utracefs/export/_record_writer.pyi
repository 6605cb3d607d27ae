from utracefs._pieces import Pieces
from utracefs._records import Records

class RecordWriter(Pieces):
    def __init__(self, records: Records) -> None: ...
