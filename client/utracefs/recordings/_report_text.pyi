from collections.abc import Callable, Collection

from utracefs.recordings._output_buffer import Pieces
from utracefs.recordings.trace_dat._merge import Merge
from utracefs_protocol._event_printer import EventPrinter
from utracefs_protocol.filter import Filter

class ReportText(Pieces):
    def __init__(
        self,
        merge: Merge,
        prefixes: list[bytes],
        in_ns: list[bool],
        printer: Callable[[int], tuple[bytes, EventPrinter, Filter | None] | None],
        task: Callable[[int], bytes],
        *,
        offset_ns: int = 0,
        full_ns: bool = False,
        comms: dict[int, str] = ...,
        since: int = 0,
        until: int = ...,
        pids: Collection[int] | None = None,
    ) -> None: ...
