from typing import Final, Self

MAX_BYTES: Final[int]
WAYS: Final[tuple[str, ...]]

class Memory:
    fingerprint: bytes
    in_use: bool
    stopped_ns: int
    def __new__(cls, tid: int) -> Self: ...
    @property
    def hangs(self) -> bool: ...
    def close(self) -> None: ...
    def read(self, address: int, size: int) -> bytes: ...
    def read_string(self, address: int, limit: int) -> bytes: ...
    def write(self, address: int, data: bytes) -> None: ...
    def set_bit(
        self,
        pid: int,
        address: int,
        size: int,
        bit: int,
        on: bool,
        *,
        ours: int = 0,
        neighbours: bool = False,
    ) -> int: ...

def ended(memories: list[Memory]) -> list[Memory]: ...
def same_memory(one: int, other: int) -> bool: ...
