from utracefs_protocol.filter._program import Filter
from utracefsd.events._tracepoint import Probe

class PerfSink:
    id: int
    count: int
    lost: int
    enabled: bool
    filter: Filter | None
    sample_period: int
    sample_freq: int
    sample_type: int
    sample_id_all: bool
    pid: int
    cpu: int
    data_pages: int
    fd: int
    def __init__(
        self,
        id: int,
        *,
        sample_period: int = 1,
        sample_freq: int = 0,
        sample_type: int = 0x10587,
        pid: int = -1,
        cpu: int = -1,
        data_pages: int = 0,
        enabled: bool = True,
        sample_id_all: bool = True,
    ) -> None: ...
    def is_filled(self, watermark: int) -> bool: ...
    def reset(self) -> None: ...
    def take_fd(self) -> int: ...
    def close(self) -> None: ...

class PerfProbe(Probe):
    sink: PerfSink
    def __init__(self, sink: PerfSink, consumer: str) -> None: ...
