"""Markers: writes to `trace_marker` and `trace_marker_raw` of an instance.

Both are records of the kernel's own events `print` and `raw_data` (kernel/trace/trace.c, tracing_mark_write
and tracing_mark_raw_write). They pass `tracing_on` and the cpumask, and no pid list.
"""

import contextlib
import errno
from collections.abc import Callable, Iterable

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.pages.subbuf import MARKER_IP, PRINT_ID, RAW_DATA_ID
from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.settings import Options
from utracefsd.machine.comms import CommTable

_HEADER = 16
_TAIL = 2
_MAX = 4096
"""A marker's entry has common fields, ip, the text, and space for a newline and a NUL; text beyond 4096 bytes
is cut (TRACE_MARKER_MAX_SIZE)."""

_RAW_HEADER = 8


@attrs.define(eq=False)
class Markers:
    """Writes the markers of one instance. current_cpu: of a marker whose writer's cpu is unknown."""

    _sink: FtraceSink
    _options: Options
    _comms: CommTable
    _now_ns: Callable[[], int]
    _current_cpu: Callable[[], int]
    copies: "Callable[[], Iterable[Markers]]" = list
    """Markers of other instances that get the same records (their option copy_trace_marker)."""

    def write(self, data: bytes, pid: int, cpu: int | None = None) -> int:
        """One text record of a thread on that cpu; returns how many bytes of it were stored. EINVAL: option
        markers is off. EBADF: not recording, or full and not overwriting."""
        for copy in self.copies():
            with contextlib.suppress(TraceError):
                copy.write(data, pid, cpu)
        taken = data[: min(_MAX, self._sink.ring_buffer.max_entry_size - _HEADER - _TAIL)]
        tail = b"\0\0" if taken.endswith(b"\n") else b"\n\0"
        self._append(PRINT_ID, MARKER_IP.to_bytes(8, "little") + taken + tail, pid, cpu)
        return len(taken)

    def write_raw(self, data: bytes, pid: int, cpu: int | None = None) -> int:
        """One binary record, a u32 tag first. EINVAL: shorter than that, or too large; and as `write`."""
        for copy in self.copies():
            with contextlib.suppress(TraceError):
                copy.write_raw(data, pid, cpu)
        self._check_option()
        if len(data) < 4:
            raise TraceError(errno.EINVAL, "a raw marker begins with a tag of 4 bytes")
        if len(data) > self._sink.ring_buffer.max_entry_size - _RAW_HEADER:
            raise TraceError(errno.EINVAL, f"{len(data)} bytes do not fit into a sub-buffer")
        self._append(RAW_DATA_ID, data, pid, cpu)
        return len(data)

    def _check_option(self) -> None:
        if not self._options["markers"]:
            raise TraceError(errno.EINVAL, "the option markers is off")

    def _append(self, event_id: int, body: bytes, pid: int, cpu: int | None) -> None:
        self._check_option()
        cpu = min(self._current_cpu() if cpu is None else cpu, self._sink.ring_buffer.nr_cpus - 1)
        if self._sink.append_raw(self._now_ns(), cpu, pid, event_id, body):
            raise TraceError(
                errno.EBADF, "not recorded: tracing_on is 0, or the buffer is full and overwrite off"
            )
        self._comms.wrote(pid)
