from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._writers import Writers

class DataRing:
    fd: int
    doorbell: int
    table: IndexTable
    pid: int
    writers: Writers
    dead: bool
    corrupt: bool
    is_held: bool
    taken: int
    size: int
    lost_to_death: int
    lost_of_unknown: int
    pending_bytes: int

    @staticmethod
    def create(table: IndexTable, pid: int, size: int) -> DataRing: ...
    @staticmethod
    def adopt(table: IndexTable, pid: int, fd: int, doorbell: int, share: int) -> DataRing: ...
    def key(self) -> tuple[int, int]: ...
    def leave_connection(self) -> None: ...
    def close(self) -> None: ...
    def set_wait(self, wait_us: int) -> None: ...
    def want_wakeup(self, wanted: bool) -> None: ...
