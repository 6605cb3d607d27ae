from collections.abc import Callable

class WriterNames:
    lookups: int
    faults: int

    def __init__(self, read: Callable[[int], bytes]) -> None: ...
    def name(self, pid: int, *, tgid: int, ts_ns: int) -> bytes: ...
