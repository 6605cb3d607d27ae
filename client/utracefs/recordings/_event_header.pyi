from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

from utracefs.recordings._records import RecordSource

class Op(int):
    NUMBER: ClassVar[Self]
    TRUTH: ClassVar[Self]
    REAL: ClassVar[Self]
    CHARACTER: ClassVar[Self]
    UUID: ClassVar[Self]
    ADDRESS: ClassVar[Self]
    TEXT: ClassVar[Self]
    LATIN_TEXT: ClassVar[Self]
    MARKED_TEXT: ClassVar[Self]
    BYTES: ClassVar[Self]
    STRUCT: ClassVar[Self]

class Repeated(int):
    ONCE: ClassVar[Self]
    CONSTANT: ClassVar[Self]
    VARIABLE: ClassVar[Self]

class Plan:
    event_id: int
    def __init__(
        self, event_id: int, start: bytes, nodes: list[Any], activity_at: int, related_at: int
    ) -> None: ...

class EventHeaders(RecordSource):
    def __init__(
        self,
        source: RecordSource,
        tracepoints: Iterable[int],
        plans: dict[bytes, Plan | None],
        find_plan: Callable[[int, bytes, int, bytes], Plan | None],
        find_rest: Callable[[int], int | None],
    ) -> None: ...
