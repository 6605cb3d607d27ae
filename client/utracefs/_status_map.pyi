from typing import Self

class StatusMap:
    size: int
    def __new__(cls, fd: int, size: int) -> Self: ...
