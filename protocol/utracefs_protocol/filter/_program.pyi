from collections.abc import Sequence
from typing import ClassVar, Self

from utracefs_protocol.filter.parse import Predicate

class Subject(int):
    NOTHING: ClassVar[Self]
    COMMON: ClassVar[Self]
    NUMBER: ClassVar[Self]
    CPU: ClassVar[Self]
    ARRAY: ClassVar[Self]
    DATA_LOC: ClassVar[Self]
    REL_LOC: ClassVar[Self]
    COMM: ClassVar[Self]

class How(int):
    EQUAL: ClassVar[Self]
    UNEQUAL: ClassVar[Self]
    LESS: ClassVar[Self]
    LESS_OR_EQUAL: ClassVar[Self]
    GREATER: ClassVar[Self]
    GREATER_OR_EQUAL: ClassVar[Self]
    COMMON_BITS: ClassVar[Self]
    IN_CPUS: ClassVar[Self]
    FULL: ClassVar[Self]
    FRONT: ClassVar[Self]
    END: ClassVar[Self]
    MIDDLE: ClassVar[Self]
    GLOB: ClassVar[Self]

class Names: ...

class Filter:
    text: bytes
    names: Names | None

    def __init__(
        self,
        text: bytes,
        steps: Sequence[tuple[Predicate, int, int]],
        names: Names | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def test(
        self, payload: bytes, *, event_id: int = 1, ts_ns: int = 0, cpu: int = 0, pid: int = 0, tgid: int = 0
    ) -> bool: ...
