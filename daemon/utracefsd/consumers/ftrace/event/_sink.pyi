from collections.abc import Callable, Collection

from utracefs_protocol.filter._program import Filter
from utracefsd.consumers.ftrace.buffer._ring_buffer import PageReader, RingBuffer
from utracefsd.consumers.ftrace.event._trigger import Trigger
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.events._tracepoint import Probe

def recorded_ids(buffer: RingBuffer) -> set[int]: ...

class FtraceSink:
    tracing_on: bool
    paused: bool
    cells: Cells
    tracing_cell: int
    tracing_switches: int
    clock: str
    ring_buffer: RingBuffer
    page_reader: PageReader | None
    number: int

    def __init__(self, ring_buffer: RingBuffer, number: int = 0, cells: Cells | None = None) -> None: ...
    def set_cpumask(self, mask: int | None) -> None: ...
    def set_threads(
        self,
        pids: Collection[int] | None,
        notrace_pids: Collection[int] | None = None,
        inherits: Callable[[int], None] | None = None,
    ) -> None: ...
    def now(self) -> int: ...
    def append_raw(self, ts_ns: int, cpu: int, pid: int, id: int, body: bytes) -> int: ...

class FtraceProbe(Probe):
    sink: FtraceSink
    soft_disabled: bool
    filter: Filter | None
    soft_cell: int
    triggers: tuple[Trigger, ...]
    def __init__(self, sink: FtraceSink, consumer: str = "ftrace") -> None: ...
    def inject(self, ts_ns: int, cpu: int, pid: int, id: int, payload: bytes) -> bool: ...
