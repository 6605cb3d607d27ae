"""The files that show the records of a ring buffer: `trace`, `trace_pipe`, `trace_pipe_raw`.

    trace             shows the records and leaves them there; rendered piece by piece as it is read
    trace_pipe        consumes; whole lines; one opener for each cpu
    trace_pipe_raw    consumes; whole sub-buffers in the ring buffer's binary format
    trace_raw         leaves the records there, as `trace` does, in the format of trace_pipe_raw (not in the
                      kernel)
    snapshot          shows the spare buffer as `trace` shows the live one
    snapshot_raw      consumes the spare buffer as trace_pipe_raw does the live one

The rules are those of kernel/trace/trace.c (`tracing_open`, `tracing_read_pipe`, `tracing_buffers_read`,
`tracing_snapshot_write`). A record leaves the buffer when it is formatted or copied, not when its bytes
are read. Formatted text that is unread when the file closes is lost, as in the kernel.
"""

import errno
import os

from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.tracefs import ONE_LINE
from utracefsd.consumers.ftrace.buffer._ring_buffer import Cursor, RingBuffer
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.text._text import TextRenderer
from utracefsd.tree import values
from utracefsd.tree.nodes import OpenFile

_PIECE_MIN = 4096
_PIECE_MAX = 1 << 20
"""Bytes of text rendered at once: large enough to be fast, small enough to let other tasks run."""

_PIPE_TEXT_MAX = 8155
"""A trace_pipe read returns at most this much: the kernel's line buffer (TRACE_SEQ_BUFFER_SIZE) less one.
With ONE_LINE, which the kernel does not have, it returns as much as wanted."""


def _is_filled(instance: Instance, buffer: RingBuffer | None, cpu: int) -> bool:
    """The condition of the kernel's trace_poll() and ring_buffer_poll_wait(). One cpu's buffer:
    `buffer_percent` of its sub-buffers are filled. All cpus together, or 0 percent: there is a record."""
    percent = instance.settings.buffer_percent
    if instance.options["block"]:
        return True
    if buffer is None:
        return False
    if cpu < 0 or percent == 0:
        return not buffer.is_empty(cpu)
    return buffer.percent_full(cpu) >= percent


class Trace(OpenFile):
    """`trace` of an instance, or of one of its cpus. Writing does nothing; opening with O_TRUNC clears."""

    seekable = True
    snapshot = False

    def __init__(self, instance: Instance, cpu: int, flags: int) -> None:
        super().__init__(flags)
        self._instance = instance
        self._cpu = cpu
        self._cursor: Cursor | None = None
        self._renderer: TextRenderer | None = None
        self._text = b""
        self._paused = False
        if self.snapshot:
            return
        if self.writable and flags & os.O_TRUNC:
            instance.clear(cpu)
        if self.readable and instance.options["pause-on-trace"]:
            instance.pause()
            self._paused = True

    def _read(self, size: int) -> bytes:
        if self._cursor is None or self._renderer is None:
            self._text = self._instance.header(self._cpu, snapshot=self.snapshot)
            self._cursor = self._instance.buffer.cursor(self._cpu, snapshot=self.snapshot)
            self._renderer = self._instance.renderer()
        if len(self._text) < size:
            pieces = [self._text]
            have = len(self._text)
            while have < size:
                piece = self._renderer.render(self._cursor, min(max(size - have, _PIECE_MIN), _PIECE_MAX))
                if not piece:
                    break
                pieces.append(piece)
                have += len(piece)
            self._text = b"".join(pieces)
        piece, self._text = self._text[:size], self._text[size:]
        return piece

    def _write(self, data: bytes) -> int:
        return len(data)

    def _seek(self, offset: int) -> None:
        self._cursor = None
        self._text = b""
        while offset:
            skipped = len(self._read(min(offset, _PIECE_MAX)))
            if not skipped:
                break
            offset -= skipped

    def _close(self) -> None:
        self._cursor = None
        if self._paused:
            self._instance.resume()


class SnapshotFile(Trace):
    """`snapshot` of an instance, or of one of its cpus: shows the spare buffer as `trace` shows the live one;
    writing a number runs a command (`Snapshot.write`). Opening with O_TRUNC does nothing."""

    snapshot = True

    def _write(self, data: bytes) -> int:
        # As in tracing_snapshot_write(), the real buffer is made before the number is parsed.
        self._instance.store.expand()
        self._instance.snapshot.write(values.unsigned_decimal(data), self._cpu)
        return len(data)


class TracePipe(OpenFile):
    """`trace_pipe` of an instance, or of one of its cpus. EBUSY: another opener has that cpu, or all. Without
    data: EAGAIN; the end of the file if it blocks, tracing is off, and it has returned something before."""

    def __init__(self, instance: Instance, cpu: int, flags: int) -> None:
        super().__init__(flags)
        readers = instance.pipe_readers
        if readers and (cpu < 0 or not readers.isdisjoint((cpu, -1))):
            raise TraceError(
                errno.EBUSY, "another reader has this trace_pipe open; a record can go to one only"
            )
        readers.add(cpu)
        self._instance = instance
        self._cpu = cpu
        self._one_line = bool(flags & ONE_LINE)
        self._text = b""
        self._returned_data = False
        self._drained = True
        self._renew()

    def _renew(self) -> None:
        self._generation = self._instance.text_generation
        self._cursor = self._instance.buffer.cursor(self._cpu, consume=True)
        self._renderer = self._instance.renderer(one_line=self._one_line)

    def _ready(self) -> bool:
        """Text is left, the end is reached, or the buffer is filled up to `buffer_percent`."""
        return (
            bool(self._text or not self._drained)
            or self._at_end()
            or _is_filled(self._instance, self._instance.buffer, self._cpu)
        )

    def _at_end(self) -> bool:
        return self.blocking and self._returned_data and not self._instance.tracing_on

    def _read(self, size: int) -> bytes:
        if size == 0:
            return b""
        wanted = size if self._one_line else min(size, _PIPE_TEXT_MAX)
        if not self._text or (self._one_line and len(self._text) < wanted):
            # A renderer whose text was read only in part may hold a record; only an empty one can be
            # replaced.
            if self._drained and self._generation != self._instance.text_generation:
                self._renew()
            self._text += self._renderer.render(self._cursor, wanted - len(self._text))
            self._drained = len(self._text) < wanted
        if not self._text:
            if self._at_end():
                return b""
            raise TraceError(errno.EAGAIN, "nothing recorded yet")
        piece, self._text = self._text[:wanted], self._text[wanted:]
        self._returned_data = True
        return piece

    def _close(self) -> None:
        self._instance.pipe_readers.discard(self._cpu)


class RawPipe(OpenFile):
    """`per_cpu/cpuN/trace_pipe_raw`, and `snapshot_raw` for the spare: each read gives the next sub-buffer,
    or the rest of one that did not fit. A size too small for the first record consumes nothing."""

    def __init__(self, instance: Instance, cpu: int, flags: int, *, snapshot: bool = False) -> None:
        super().__init__(flags)
        self._instance = instance
        self._cpu = cpu
        self._snapshot = snapshot
        self._page = b""

    @property
    def _buffer(self) -> RingBuffer | None:
        return self._instance.snapshot.buffer if self._snapshot else self._instance.buffer

    def _ready(self) -> bool:
        return bool(self._page) or _is_filled(self._instance, self._buffer, self._cpu)

    def _read(self, size: int) -> bytes:
        if not self._page:
            page = None if self._buffer is None else self._buffer.read_page(self._cpu, size)
            if page is None:
                raise TraceError(errno.EAGAIN, "nothing recorded yet")
            self._page = page
        piece, self._page = self._page[:size], self._page[size:]
        return piece


class RawTrace(OpenFile):
    """`per_cpu/cpuN/trace_raw`: the sub-buffers that existed when it was opened, one with each read. One that
    was overwritten before it is read is missing, and the next one counts the loss. A read of less than a
    sub-buffer is EINVAL."""

    is_steady = True

    def __init__(self, instance: Instance, cpu: int, flags: int) -> None:
        super().__init__(flags)
        self._size = instance.buffer.subbuf_size
        self._cursor = instance.buffer.cursor(cpu)

    def _read(self, size: int) -> bytes:
        if size < self._size:
            raise TraceError(errno.EINVAL, f"a read takes a sub-buffer of {self._size} bytes")
        return self._cursor.page() or b""
