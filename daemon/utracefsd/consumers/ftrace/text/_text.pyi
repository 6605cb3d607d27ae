from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

from utracefs_protocol.events.declaration import Field
from utracefsd.consumers.ftrace.buffer._ring_buffer import Cursor

LINE_LIMIT: Final[int]

class BodyPlan:
    def __init__(self, event: tuple[bytes, Sequence[Field]] | None) -> None: ...

class TextRenderer:
    def __init__(
        self,
        events: Mapping[int, tuple[bytes, Sequence[Field]]]
        | Callable[[int], tuple[bytes, Sequence[Field]] | tuple[bytes, Sequence[Field], bool] | None],
        comm: Callable[[int], bytes],
        tgid: Callable[[int], int | None],
        options: Container[str],
        clock_is_ns: bool,
        *,
        time_start: int = 0,
        one_line: bool = False,
    ) -> None: ...
    def render(self, cursor: Cursor, max_bytes: int) -> bytes: ...
    def render_entry(self, cpu: int, ts: int, data: bytes) -> bytes: ...
