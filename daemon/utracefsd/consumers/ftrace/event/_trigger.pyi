from utracefs_protocol.filter import Filter
from utracefsd.consumers.ftrace.event._trigger_cells import Cells

UNLIMITED: int

class Trigger:
    stage: int
    needs_record: bool
    filter: Filter | None
    paused: bool
    cells: Cells
    cell: int
    key: int
    def __init__(
        self,
        cells: Cells,
        count: int = ...,
        *,
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
        stage: int = 0,
        needs_record: bool = False,
    ) -> None: ...
    def close(self) -> None: ...
    @property
    def count(self) -> int: ...
    @property
    def is_conditional(self) -> bool: ...
