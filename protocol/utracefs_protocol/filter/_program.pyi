from collections.abc import Sequence

from utracefs_protocol.filter.predicate import Predicate

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
