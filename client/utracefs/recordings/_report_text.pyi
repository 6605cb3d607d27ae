from collections.abc import Callable

from utracefs.recordings._output_buffer import Pieces
from utracefs.recordings._records import Records
from utracefs_protocol.events._event_printer import EventPrinter

class ReportText(Pieces):
    def __init__(
        self,
        records: Records,
        prefixes: list[bytes],
        in_ns: list[bool],
        printer: Callable[[int], tuple[bytes, EventPrinter]],
        task: Callable[[int, int], bytes],
        *,
        full_ns: bool = False,
    ) -> None: ...
