"""The files that show what a ring buffer holds: `trace`, `trace_pipe`, `trace_pipe_raw`.

    trace             walks over the records and leaves them there; rendered piece by piece as it is read
    trace_pipe        consumes; whole lines; one opener for each cpu
    trace_pipe_raw    consumes; one sub-buffer after the other, as the ring buffer holds them

The rules are those of kernel/trace/trace.c (`tracing_open`, `tracing_read_pipe`, `tracing_buffers_read`). A
record is gone from the buffer when it was formatted or copied, not when its bytes were read; what an opener
had formatted and never read is lost when it closes, as in the kernel.
"""

import errno
import os

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace._ring_buffer import Cursor
from utracefsd.consumers.ftrace._text import TextRenderer
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.tree.nodes import OpenFile

__all__ = ["RawPipe", "Trace", "TracePipe"]

_PIECE_MIN = 4096
_PIECE_MAX = 1 << 20
"""Bytes of text rendered at once: enough to be quick, little enough that others have their turn."""

_PIPE_TEXT_MAX = 8155
"""A trace_pipe read returns at most this much: the kernel's line buffer (TRACE_SEQ_BUFFER_SIZE) less one."""


def _is_filled(instance: Instance, cpu: int) -> bool:
    """What trace_poll() and ring_buffer_poll_wait() of the kernel wait for.

    With the option `block` nothing. One cpu's buffer: `buffer_percent` of its sub-buffers are filled. All
    cpus together, or a percentage of 0: there is a record.
    """
    buffer, percent = instance.buffer, instance.settings.buffer_percent
    if instance.options["block"]:
        return True
    if cpu < 0 or percent == 0:
        return not buffer.is_empty(cpu)
    return buffer.percent_full(cpu) >= percent


class Trace(OpenFile):
    """`trace` of an instance, or of one of its cpus. Writing does nothing; opening with O_TRUNC clears."""

    seekable = True

    def __init__(self, instance: Instance, cpu: int, flags: int) -> None:
        super().__init__(flags)
        self._instance = instance
        self._cpu = cpu
        self._cursor: Cursor | None = None
        self._renderer: TextRenderer | None = None
        self._text = b""
        self._paused = False
        if self.writable and flags & os.O_TRUNC:
            instance.clear(cpu)
        if self.readable and instance.options["pause-on-trace"]:
            instance.pause()
            self._paused = True

    def _read(self, size: int) -> bytes:
        if self._cursor is None or self._renderer is None:
            self._text = self._instance.header(self._cpu)
            self._cursor = self._instance.buffer.cursor(self._cpu)
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


class TracePipe(OpenFile):
    """`trace_pipe` of an instance, or of one of its cpus.

    EBUSY: another opener has that cpu, or all. Without data: EAGAIN; the end of the file instead if the file
    blocks, tracing is off, and it has returned something before.
    """

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
        self._text = b""
        self._returned_data = False
        self._drained = True
        self._renew()

    def _renew(self) -> None:
        self._generation = self._instance.text_generation
        self._cursor = self._instance.buffer.cursor(self._cpu, consume=True)
        self._renderer = self._instance.renderer()

    def _ready(self) -> bool:
        """Text is left, the end is reached, or the buffer is filled up to `buffer_percent`."""
        return (
            bool(self._text or not self._drained) or self._at_end() or _is_filled(self._instance, self._cpu)
        )

    def _at_end(self) -> bool:
        return self.blocking and self._returned_data and not self._instance.tracing_on

    def _read(self, size: int) -> bytes:
        if size == 0:
            return b""
        wanted = min(size, _PIPE_TEXT_MAX)
        if not self._text:
            # A renderer that was asked for less than there was may hold a record; only an empty one can be
            # replaced.
            if self._drained and self._generation != self._instance.text_generation:
                self._renew()
            self._text = self._renderer.render(self._cursor, wanted)
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
    """`per_cpu/cpuN/trace_pipe_raw`: each read gives the next sub-buffer, or the rest of one that did not
    fit.

    A size of 16 bytes or less, or too small for the first record, returns nothing and consumes nothing.
    """

    def __init__(self, instance: Instance, cpu: int, flags: int) -> None:
        super().__init__(flags)
        self._instance = instance
        self._cpu = cpu
        self._page = b""

    def _ready(self) -> bool:
        return bool(self._page) or _is_filled(self._instance, self._cpu)

    def _read(self, size: int) -> bytes:
        if not self._page:
            page = self._instance.buffer.read_page(self._cpu, size)
            if page is None:
                raise TraceError(errno.EAGAIN, "nothing recorded yet")
            self._page = page
        piece, self._page = self._page[:size], self._page[size:]
        return piece
