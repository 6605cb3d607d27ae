from collections.abc import Mapping

from utracefs_protocol.events.event_format import EventFormat

class EventPrinter:
    @property
    def name(self) -> str: ...
    def __init__(
        self,
        event: EventFormat,
        *,
        system: str = "",
        symbols: Mapping[int, str] | None = None,
        one_line: bool = False,
    ) -> None: ...
    def text(self, entry: bytes | bytearray | memoryview) -> str: ...
