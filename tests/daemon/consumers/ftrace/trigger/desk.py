"""Two events, `a u32 v; char[8] s` and `b u32 v`, in the top instance: read and write their files, emit."""

from __future__ import annotations

import errno
import struct

from tests.daemon.record_path import write
from tests.daemon.tree.world import World
from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.events.event import Event


class Desk:
    """A world and its two events."""

    def __init__(self) -> None:
        self.world = World()
        self.instance = self.world.instance
        self.a = self.world.event(b"a u32 v; char[8] s")
        self.b = self.world.event(b"b u32 v")
        self.now = 0

    def close(self) -> None:
        self.world.close()

    def write(self, event: Event, text: bytes) -> str:
        """The name of the errno of a write to `trigger`; "" if it succeeds."""
        try:
            self.instance.triggers.write(event, text)
        except TraceError as error:
            return errno.errorcode[error.errno]
        return ""

    def lines(self, event: Event) -> list[bytes]:
        """`trigger`, without comments."""
        text = self.instance.triggers.text(event)
        return [line for line in text.splitlines() if not line.startswith(b"#")]

    def enable(self, *events: Event) -> None:
        self.instance.events.set_enabled(events, True)

    def enabled(self, event: Event) -> bytes:
        """`enable`, without its newline."""
        return self.instance.events.of(event).enable_text()[:-1]

    def emit(self, event: Event, v: int = 0, *, pid: int = 46, extra: int = 0) -> int:
        """One record: 0 or -errno."""
        self.now += 1
        payload = struct.pack("<I", v) + bytes(8 if event is self.a else 0) + bytes(extra)
        return write(event.tracepoint, payload, ts_ns=self.now, cpu=0, pid=pid)

    def recorded(self) -> list[int]:
        """The v of each record in the buffer, whatever its event."""
        return _numbers(self.instance.buffer)

    def snapshot(self) -> list[int]:
        """The same of the snapshot; there must be a spare."""
        assert self.instance.snapshot.buffer is not None
        return _numbers(self.instance.snapshot.buffer)


def _numbers(buffer: RingBuffer) -> list[int]:
    return [struct.unpack_from("<I", data, 8)[0] for _, _, data, _ in buffer.cursor()]
