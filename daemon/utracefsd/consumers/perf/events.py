"""perf events: counting records of one event, and sampling them into a ring that a client maps.

`perf_event_open` on the tracefs socket corresponds to the system call of that name with a tracepoint
(docs/protocol.md, "Perf ring"). One perf event belongs to one event, and is a probe on it from open to close:

    open ──> attached: status bit 1, the programs emit ──────────────────────────> close: detached
                enabled   counts; every sample_period-th record becomes a sample; records that
                          its filter rejects are neither counted nor sampled
                disabled  everything counts as filtered; the status bit stays

So a disabled perf event keeps its event alive and its programs emitting, as in the kernel, where the
tracepoint is registered at open (kernel/trace/trace_event_perf.c, perf_trace_init).
"""

import errno
import os
import struct
from collections.abc import Callable
from typing import Any

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import Filter, FilterError, parse_filter
from utracefs_protocol.messages.tracefs import PerfAttr
from utracefs_protocol.messages.values import text_bytes, wire_int
from utracefs_protocol.pages.perf_ring import MAX_SAMPLE_FREQ, ReadFormat
from utracefsd.consumers.perf._sink import PerfProbe
from utracefsd.events.event import SYSTEM, Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine._writer_names import WriterNames

_MAX_PERIOD = (1 << 63) - 1  # perf_event_open(2): the highest bit of the period must be 0


class PerfEvent:
    """One opened perf event; `close` detaches it."""

    def __init__(
        self, events: "PerfEvents", event: Event, probe: PerfProbe, handle: int, wanted: PerfAttr
    ) -> None:
        self.handle = handle
        self.event = event
        self._table = events.table
        self._probe = probe
        self._now_ns = events.now_ns
        self._parse = events.parse
        self._read_format = wanted.read_format
        self._enabled_ns = 0
        """Enabled time before `_enabled_since_ns`."""
        self._enabled_since_ns = self._now_ns() if probe.enabled else None
        self._closed = False
        size = probe.data_pages * 4096
        self._watermark = min(wanted.wakeup_watermark, size) or size // 2
        self._table.attach(event, self._probe)

    def descriptor(self) -> int:
        """The ring's memfd, the caller's to close; -1 when it only counts, and at every further call: so
        thousands of events cost the daemon no descriptors."""
        return self._probe.take_fd()

    def read(self) -> bytes:
        """perf_read_one() of the kernel: u64 each, the count and the values selected by `read_format`. The
        time runs while it is enabled, whether or not the thread of its `pid` does."""
        probe = self._probe
        enabled_ns = self._time_enabled_ns()
        parts = (
            (ReadFormat.TOTAL_TIME_ENABLED, enabled_ns),
            (ReadFormat.TOTAL_TIME_RUNNING, enabled_ns),
            (ReadFormat.ID, probe.id),
            (ReadFormat.LOST, probe.lost_samples),
        )
        values = [probe.count, *(value for part, value in parts if self._read_format & part)]
        return struct.pack(f"<{len(values)}Q", *values)

    def _time_enabled_ns(self) -> int:
        if self._enabled_since_ns is None:
            return self._enabled_ns
        return self._enabled_ns + self._now_ns() - self._enabled_since_ns

    def _enable(self, enabled: bool) -> None:
        self._enabled_ns = self._time_enabled_ns()
        self._enabled_since_ns = self._now_ns() if enabled else None
        self._probe.enabled = enabled

    def ready(self) -> bool:
        """Whether to wake a reader: `wakeup_watermark` bytes in the ring wait for it (by default half of it,
        as in ring_buffer_init() of kernel/events/ring_buffer.c), or a sample was lost. EINVAL: it only
        counts."""
        if not self._probe.data_pages:
            raise TraceError(errno.EINVAL, "it only counts: open it with data_pages to wait for samples")
        return self._probe.is_filled(self._watermark)

    def ioctl(self, name: str, arg: Any = None) -> Any:
        """The ioctls of perf_event_open(2), without their PERF_EVENT_IOC_.

        | name | arg | result |
        |---|---|---|
        | ENABLE, DISABLE | ignored | nil |
        | RESET | ignored | nil; the count is 0 |
        | PERIOD | the new sample_period, or sample_freq if it was opened with that | nil |
        | ID | ignored | the identifier in its samples |
        | SET_FILTER | an expression | nil |

        EINVAL (PERIOD out of range, or of an event which only counts; no filter for this event), EEXIST (it
        has a filter: ftrace_profile_set_filter() of the kernel takes one), ENOTTY (another name).
        """
        probe = self._probe
        match name:
            case "ENABLE" | "DISABLE":
                self._enable(name == "ENABLE")
            case "RESET":
                probe.reset()
            case "PERIOD":
                if probe.sample_freq:
                    probe.sample_freq = wire_int(arg, "sample_freq", 1, MAX_SAMPLE_FREQ)
                elif probe.sample_period:
                    probe.sample_period = wire_int(arg, "sample_period", 1, _MAX_PERIOD)
                else:
                    raise TraceError(
                        errno.EINVAL, "it was opened to count and takes no samples; open another"
                    )
            case "ID":
                return probe.id
            case "SET_FILTER":
                text = text_bytes(arg, "filter")
                if probe.filter is not None:
                    raise TraceError(errno.EEXIST, "it has a filter, which stays; open another perf event")
                probe.filter = self._parse(self.event, text)
            case _:
                raise TraceError(
                    errno.ENOTTY,
                    f"no perf ioctl {name[:64]!r}; ENABLE, DISABLE, RESET, PERIOD, ID, SET_FILTER exist",
                )
        return None

    def close(self) -> None:
        """Detach and close the ring; mappings of clients stay. A second call is harmless."""
        if not self._closed:
            self._closed = True
            self._table.detach(self.event, self._probe)
            self._probe.close()


@attrs.define(eq=False)
class PerfEvents:
    """The perf consumer: opens perf events."""

    table: EventTable
    now_ns: Callable[[], int]
    """The daemon's clock, for enabled times."""
    _nr_cpus: int
    _names: WriterNames | None = None
    """For filters on COMM; None: there are no names."""
    _last_id: int = 0

    def open(self, wanted: PerfAttr, *, handle: int) -> PerfEvent:
        """perf_event_open; `handle` names the consumer in `stats` (`perf:HANDLE`). EINVAL (out of range),
        ENOENT (no such event), ESRCH (no such process), ENOMEM (no memory for the ring)."""
        if wanted.sample_period > _MAX_PERIOD:
            raise TraceError(errno.EINVAL, f"sample_period {wanted.sample_period}; at most {_MAX_PERIOD}")
        if wanted.cpu >= self._nr_cpus:
            raise TraceError(
                errno.EINVAL, f"cpu {wanted.cpu}; this machine has 0 to {self._nr_cpus - 1}, -1 means all"
            )
        if wanted.pid == 0:
            raise TraceError(errno.EINVAL, "pid 0: give your own process id, or -1 for all")
        event = self._find(wanted)
        if wanted.pid > 0 and not os.path.exists(f"/proc/{wanted.pid}"):
            raise TraceError(errno.ESRCH, f"there is no process {wanted.pid}")
        filter_ = None if wanted.filter is None else self.parse(event, wanted.filter)
        try:
            probe = PerfProbe(
                f"perf:{handle}",
                self._last_id + 1,
                sample_period=wanted.sample_period,
                sample_freq=wanted.sample_freq,
                sample_type=wanted.sample_type,
                pid=wanted.pid,
                cpu=wanted.cpu,
                data_pages=wanted.data_pages,
                enabled=not wanted.disabled,
            )
        except OSError as error:
            raise TraceError(error.errno or errno.ENOMEM, f"no perf ring: {error.strerror}") from error
        self._last_id += 1
        probe.filter = filter_
        try:
            return PerfEvent(self, event, probe, handle, wanted)
        except BaseException:
            probe.close()
            raise

    def parse(self, event: Event, text: bytes) -> Filter:
        """A filter for the event. TraceError(EINVAL).

        For wrong brackets and quotes the kernel's errno is an accidental result of calc_stack(): "no such
        process" for a missing quote. Here all are EINVAL."""
        try:
            return parse_filter(text, event.declaration.fields, nr_cpus=self._nr_cpus, names=self._names)
        except FilterError as error:
            raise TraceError(errno.EINVAL, f"filter: {error.text}") from error

    def _find(self, wanted: PerfAttr) -> Event:
        if wanted.config is not None:
            event = self.table.by_id(wanted.config)
            what = f"id {wanted.config}"
        else:
            name = wanted.name or b""
            system, colon, rest = name.partition(b":")
            event = self.table.get(system, rest) if colon else self.table.get(SYSTEM, name)
            what = repr(name.decode("utf-8", "backslashreplace"))
        if event is None:
            raise TraceError(errno.ENOENT, f"there is no event {what}; available_events lists them")
        return event
