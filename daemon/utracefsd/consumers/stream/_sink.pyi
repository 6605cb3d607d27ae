from collections.abc import Callable

from utracefs_protocol.filter._program import Filter
from utracefsd.consumers.ftrace.buffer._ring_buffer import PageReader
from utracefsd.events._tracepoint import Probe
from utracefsd.machine._writer_names import WriterNames

class StreamSink:
    lost: int
    watermark: int
    memory_fd: int
    bell_fd: int
    def __init__(self, size: int, *, watermark: int = 1, names: WriterNames | None = None) -> None: ...
    def close(self) -> None: ...
    def publish(self) -> None: ...
    position: int
    def ring_bell(self) -> None: ...
    def is_filled(self) -> bool: ...

class StreamPages(PageReader):
    sink: StreamSink
    def __init__(self, sink: StreamSink, lossless_ns: int = 0) -> None: ...
    def describe(self, id: int, text: bytes) -> None: ...

class StreamProbe(Probe):
    sink: StreamSink
    id: int
    filter: Filter | None
    unreported: int
    def __init__(
        self,
        sink: StreamSink,
        consumer: str,
        id: int,
        describe: Callable[[], bytes],
        filter: Filter | None = None,
    ) -> None: ...
    def fail(self, n: int) -> None: ...
