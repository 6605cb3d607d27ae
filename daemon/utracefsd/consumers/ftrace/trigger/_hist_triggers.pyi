from utracefs_protocol.filter import Filter
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.event._trigger import Trigger
from utracefsd.consumers.ftrace.hist._hist import Hist

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
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None: ...
    def finish(self) -> None: ...

class HistSwitch(Trigger):
    def __init__(
        self,
        target: FtraceProbe,
        on: bool,
        count: int = ...,
        *,
        filter: Filter | None = None,
        kept: tuple[int, int] | None = None,
    ) -> None: ...
