from typing import TypedDict, Unpack

from utracefs_protocol.filter import Filter
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger import Trigger
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.hist._hist import Hist

# A class would have to be in the module.
_Options = TypedDict(  # noqa: UP013
    "_Options", {"filter": Filter | None, "kept": tuple[int, int] | None}, total=False
)

class TracingSwitch(Trigger):
    def __init__(self, sink: FtraceSink, on: bool, count: int = ..., **options: Unpack[_Options]) -> None: ...

class OfAnother(Trigger):
    def __init__(
        self, target: FtraceProbe, on: bool, count: int = ..., **options: Unpack[_Options]
    ) -> None: ...

class EventSwitch(OfAnother): ...

class Stacktrace(Trigger):
    def __init__(self, cells: Cells, count: int = ..., **options: Unpack[_Options]) -> None: ...

class SnapshotTrigger(Trigger):
    def __init__(self, sink: FtraceSink, count: int = ..., **options: Unpack[_Options]) -> None: ...

class HistTrigger(Trigger):
    active: bool
    @property
    def hist(self) -> Hist: ...
    @property
    def sink(self) -> FtraceSink: ...
    def __init__(
        self,
        sink: FtraceSink,
        hist: Hist,
        *,
        uses_timestamp: bool = False,
        active: bool = True,
        **options: Unpack[_Options],
    ) -> None: ...
    def finish(self) -> None: ...

class HistSwitch(OfAnother): ...
