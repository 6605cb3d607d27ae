from collections.abc import Callable

from utracefsd.intake._index_table import IndexTable

class Lookups: ...

class DataRing:
    fd: int
    doorbell: int
    table: IndexTable
    pid: int
    new_thread: Callable[[int], None] | None
    peer_lives: Callable[[], bool] | None
    lookups: Lookups
    dead: bool
    corrupt: bool
    taken: int
    size: int
    lost_to_death: int
    lost_of_unknown: int
    pending_bytes: int

    @staticmethod
    def create(table: IndexTable, pid: int, size: int) -> DataRing: ...
    @staticmethod
    def adopt(table: IndexTable, pid: int, fd: int, doorbell: int, share: int) -> DataRing: ...
    def check_known_threads(self) -> None: ...
    def key(self) -> tuple[int, int]: ...
    def threads(self) -> list[int]: ...
    def leave_connection(self) -> None: ...
    def want_wakeup(self, wanted: bool) -> None: ...
