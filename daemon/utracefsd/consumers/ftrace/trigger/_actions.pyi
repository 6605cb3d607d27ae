from utracefs_protocol.filter import Filter
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger import Trigger
from utracefsd.consumers.ftrace.event._trigger_cells import Cells

class TracingSwitch(Trigger):
    def __init__(
        self,
        sink: FtraceSink,
        on: bool,
        count: int = ...,
        *,
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None: ...

class EventSwitch(Trigger):
    def __init__(
        self,
        target: FtraceProbe,
        on: bool,
        count: int = ...,
        *,
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None: ...

class Stacktrace(Trigger):
    def __init__(
        self,
        cells: Cells,
        count: int = ...,
        *,
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None: ...

class SnapshotTrigger(Trigger):
    def __init__(
        self,
        sink: FtraceSink,
        count: int = ...,
        *,
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None: ...
