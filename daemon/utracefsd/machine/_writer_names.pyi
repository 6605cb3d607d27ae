from collections.abc import Callable

from utracefs_protocol.filter import Names

class WriterNames(Names):
    lookups: int
    faults: int

    def __init__(self, read: Callable[[int], bytes], last: Callable[[int], bytes | None] = ...) -> None: ...
    def name(self, pid: int, *, tgid: int, ts_ns: int) -> bytes: ...
