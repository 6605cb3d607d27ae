from collections.abc import Sequence

from utracefsd.consumers.ftrace.filter._names import WriterNames
from utracefsd.consumers.ftrace.filter.predicate import Predicate

class Filter:
    text: bytes
    names: WriterNames | None

    def __init__(
        self,
        text: bytes,
        steps: Sequence[tuple[Predicate, int, int]],
        names: WriterNames | None = None,
    ) -> None: ...
    def __len__(self) -> int: ...
    def test(
        self, payload: bytes, *, event_id: int = 1, ts_ns: int = 0, cpu: int = 0, pid: int = 0, tgid: int = 0
    ) -> bool: ...
