"""The ftrace consumer: instances, each with a ring buffer, enable switches and options of its own.

An instance is an object and nothing else; there is one, the top one, and a further one is a further object. What an
administrator does through the tree lands here as a method; what a record does on its way is compiled (`FtraceProbe`
writes through the instance's `FtraceSink` into its `RingBuffer`) and does not pass through this file.

    enable(event)    FtraceProbe ──▶ table.attach      the status byte and the producers' words flip there
    a record         FtraceProbe ──▶ FtraceSink (tracing_on, clock, cpumask, pids) ──▶ RingBuffer
    trace            RingBuffer.cursor ──▶ TextRenderer, made by `renderer()`

When is a buffer cleared by itself? Ids are given again after an event is removed, so records of a removed event could
be printed with the format of the next one. The kernel does this about it, and so do we: the removal of an event that
was ever enabled here marks the buffer (`clear_pending`); a removal through dynamic_events, of whatever event, clears
the buffers that are marked by then (kernel/trace/trace.c, `tracing_reset_all_online_cpus`). Removals of other kinds,
such as the last reference of an event going away, only mark.

Where does the buffer live? In files of the `storage`, which a successor takes over, as long as there is room for them (a
container's /dev/shm is often 64 MiB). When there is not, it goes to memory of this process, with all that is in it, and
stays there. Only then can the want of memory itself make an operation fail.

Nothing here waits, reads a clock or looks into /proc: `now_ns` and the rest are given at construction.
"""

import errno
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import translate
from typing import TYPE_CHECKING, Any, Protocol

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import SUBBUF_HEADER_SIZE, SUBBUF_SIZE
from utracefs_protocol.subbuf import MARKER_IP, PRINT_ID, RAW_DATA_ID
from utracefsd.consumers.ftrace import text as trace_text
from utracefsd.consumers.ftrace._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace._sink import CLOCKS, FtraceSink
from utracefsd.consumers.ftrace._text import TextRenderer
from utracefsd.consumers.ftrace.event_file import EventFiles
from utracefsd.consumers.ftrace.event_words import first_word, glob_matches, select
from utracefsd.consumers.ftrace.options import Options

if TYPE_CHECKING:
    from utracefs_protocol.declaration import Field
    from utracefsd.events.event import Event
    from utracefsd.events.event_table import EventTable
    from utracefsd.machine.comms import CommTable

__all__ = ["EXPANDED_SIZE_KB", "BufferStorage", "Instance"]

EXPANDED_SIZE_KB = 1408
"""KiB per cpu once something is recorded (TRACE_BUF_SIZE_DEFAULT is 1441792 bytes); until then a buffer has two pages."""

_MARKER_HEADER = 16
_MARKER_TAIL = 2
_MARKER_MAX = 4096
"""A marker's entry is common fields and ip, the text, room for a newline and a NUL; more than 4096 bytes are cut
(TRACE_MARKER_MAX_SIZE)."""

_RAW_HEADER = 8
_MAX_SUBBUF_KB = 512
_ERROR_LOG_ENTRIES = 8
"""TRACING_LOG_ERRS_MAX."""

_CLOCKS_NOT_NS = frozenset({"counter", "uptime", "x86-tsc"})
"""Clocks that count something other than nanoseconds; their stamps are printed as bare numbers."""

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Of posix_fallocate(3), open(2), mkdir(2): the file system is full, our share of it is, or a file may not be so large
(RLIMIT_FSIZE). In all three cases memory may still be had."""

logger = logging.getLogger("utracefsd")


class BufferStorage(Protocol):
    """Where an instance's ring buffer lives, so that another process can take it over (state.StateFolder)."""

    @property
    def adopted(self) -> RingBuffer | None:
        """The one that was taken over; None: make one."""

    def new_folder(self) -> str:
        """An empty folder for another one. OSError."""

    def used(self, folder: str) -> None:
        """From now on it is the one in `folder`."""

    def unused(self, folder: str) -> None:
        """`folder` is not needed after all."""

    def left(self, why: OSError) -> None:
        """The ring buffer is in memory of this process alone from now on, and no folder of any use: `why`."""


class Instance:
    """One ftrace instance.

    name: b"" for the top one. The top one starts with the smallest buffer and gets its real one when it is first
    needed (`expand`), further ones start with theirs.
    """

    def __init__(
        self,
        table: "EventTable",
        comms: "CommTable",
        now_ns: Callable[[], int],
        *,
        nr_cpus: int,
        name: bytes = b"",
        storage: BufferStorage | None = None,
        current_cpu: Callable[[], int] = lambda: 0,
        free_memory_kb: Callable[[], int] | None = None,
    ) -> None:
        """now_ns: CLOCK_MONOTONIC. nr_cpus: how many per-cpu buffers (/sys/devices/system/cpu/possible).

        storage: where the ring buffer lives; None: in memory of this process alone.
        current_cpu: where markers are recorded; free_memory_kb: what a larger buffer may take (None: unbounded).
        """
        self.name = name
        consumer = "ftrace" if not name else "ftrace:" + name.decode("utf-8", "backslashreplace")
        self.table = table
        self.comms = comms
        self.now_ns = now_ns
        self.nr_cpus = nr_cpus
        self.options = Options(top=not name)
        self.expanded = bool(name)
        self._storage = storage
        """None from the moment that it has no room."""
        self._adopted = storage is not None and storage.adopted is not None
        if storage is not None and storage.adopted is not None:
            self.buffer = storage.adopted
        else:
            self.buffer, in_use = self._new_buffer([EXPANDED_SIZE_KB if name else 1] * nr_cpus)
            in_use()
        self.sink = FtraceSink(self.buffer)
        self.clear_pending = False
        self.text_generation = 0
        """Grows whenever what `renderer` was made from changes: options, clock, the buffer object."""
        self.buffer_percent = 50
        self.time_start = 0
        """When the buffer was last cleared, in its clock: latency-format counts from there."""
        self.pipe_readers: set[int] = set()
        """Cpus that an open trace_pipe consumes, -1 for all of them."""

        self._current_cpu = current_cpu
        self._free_memory_kb = free_memory_kb
        self._tracing_on = True
        self._paused = 0
        self.events = EventFiles(
            table, self.sink, consumer, now_ns, before_enabling=self.expand, recorded_event_gone=self._mark
        )
        self._standing: dict[bytes, None] = {}
        self._pids: set[int] = set()
        self._notrace_pids: set[int] = set()
        self._error_log: list[bytes] = []

        self.system_sizes = Counter(event.system for event in table.events())
        """How many events each system has, so that nobody needs to walk over all of them to know that there is one."""

        table.on_created.append(self._created)
        table.on_removed.append(self._removed)
        table.on_dynamic_removed.append(self._dynamic_removed)

    def close(self) -> None:
        """Let go of all events and of the table; what was recorded stays readable as long as somebody has it open."""
        self.events.close()
        self.table.on_created.remove(self._created)
        self.table.on_removed.remove(self._removed)
        self.table.on_dynamic_removed.remove(self._dynamic_removed)

    # Events by their names.

    def set_event(self, data: bytes) -> int:
        """One write to `set_event`: takes one word, returns how many bytes that used. EINVAL: see `event_words`."""
        word, used = first_word(data)
        if word:
            name = word.removeprefix(b"!")
            self.events.set_enabled(select(name, self.table.events(), self.table.get), name is word)
        return used

    # Standing subscriptions: events that may not exist yet (ours; the kernel's users poll instead).

    def standing_text(self) -> bytes:
        """`standing_events`: the globs, one a line, in the order they were written."""
        return b"".join(b"%s\n" % glob for glob in self._standing)

    def set_standing(self, data: bytes) -> int:
        """One write to `standing_events`: takes one word, returns how many bytes that used.

        A glob enables what it matches now and from then on. `!` and a glob that is listed takes it off the list: events
        registered later are not enabled any more, those enabled already stay so. EINVAL: not listed, or not a glob.
        """
        word, used = first_word(data)
        if not word:
            return used
        glob = word.removeprefix(b"!")
        if glob is not word:
            if glob not in self._standing:
                raise TraceError(
                    errno.EINVAL, "standing_events does not list it; repeat the line as it is shown"
                )
            del self._standing[glob]
            return used
        _check_glob(glob)
        self.expand()
        self._standing[glob] = None
        self.events.set_enabled([event for event in self.table.events() if glob_matches(glob, event)], True)
        return used

    def clear_standing(self) -> None:
        """What truncating standing_events does. Events that are enabled stay so."""
        self._standing.clear()

    def _created(self, event: "Event") -> None:
        self.system_sizes[event.system] += 1
        if any(glob_matches(glob, event) for glob in self._standing):
            self.events.enable(event)

    def _removed(self, event: "Event") -> None:
        self.system_sizes[event.system] -= 1

    def _mark(self) -> None:
        self.clear_pending = True

    def _dynamic_removed(self) -> None:
        if self.clear_pending:
            self.clear()

    # Handing over to a daemon that comes after this one.

    def saved(self) -> dict[str, Any]:
        """The settings, as plain values; `state.SETTINGS` says what each looks like. Sizes are the buffer's own, except when
        it cannot be taken over: then `in_memory` is the size of a sub-buffer in bytes and each cpu's KiB."""
        in_memory = []
        if self.buffer.folder is None:
            in_memory = [self.buffer.subbuf_size, *(self.buffer.size_kb(cpu) for cpu in range(self.nr_cpus))]
        return {
            "in_memory": in_memory,
            "expanded": self.expanded,
            "tracing_on": self._tracing_on,
            "clock": self.clock,
            "options": sorted(self.options.on),
            "cpumask": f"{self.cpumask:x}",
            "pids": sorted(self._pids),
            "notrace_pids": sorted(self._notrace_pids),
            "standing": list(self._standing),
            "clear_pending": self.clear_pending,
            "buffer_percent": self.buffer_percent,
            "time_start": self.time_start,
            "error_log": list(self._error_log),
        }

    def restore(
        self, settings: Mapping[str, Any], *, enabled: Iterable["Event"], ever_enabled: Iterable["Event"]
    ) -> None:
        """Be as the instance was that `saved` these; the buffer is adopted already, and nothing is cleared. Or there was none
        to adopt: then an empty one gets the size of the one that was lost.

        Of an interrupted `saved`, what is not there stays at its default.
        """
        self.options.restore(settings.get("options", self.options.on))
        self.buffer.overwrite = self.options["overwrite"]
        self.comms.record_tgid = self.options["record-tgid"]
        self.sink.clock = settings.get("clock", self.sink.clock)
        self.cpumask = int(settings.get("cpumask", f"{self.cpumask:x}"), 16)
        self.add_pids(settings.get("pids", ()), notrace=False)
        self.add_pids(settings.get("notrace_pids", ()), notrace=True)
        self._standing.update(dict.fromkeys(settings.get("standing", ())))
        self.clear_pending = settings.get("clear_pending", False)
        self.buffer_percent = settings.get("buffer_percent", self.buffer_percent)
        self.time_start = settings.get("time_start", 0)
        self._error_log.extend(settings.get("error_log", ()))
        self.expanded = settings.get("expanded", False)
        if not self._adopted:
            self._restore_sizes(settings.get("in_memory", ()))
        self.tracing_on = settings.get("tracing_on", True)
        self.events.set_enabled(enabled, True)
        for event in ever_enabled:
            self.events.restore_was_enabled(event)
        self.text_generation += 1

    def _restore_sizes(self, in_memory: Sequence[int]) -> None:
        if not in_memory:
            self.expanded = False  # torn log: the buffer gets its size when it is needed
            return
        subbuf_size, *sizes_kb = in_memory
        if (
            subbuf_size == self.buffer.subbuf_size
            and [self.buffer.size_kb(n) for n in range(self.nr_cpus)] == sizes_kb
        ):
            return
        try:
            self._replace(sizes_kb, subbuf_size)
        except TraceError as error:
            logger.warning(
                "the ring buffer stays at its smallest size, write to buffer_size_kb: %s", error.text
            )

    # Recording.

    @property
    def tracing_on(self) -> bool:
        """`tracing_on`: records reach the buffer. A reader may pause that (`pause`) without this changing."""
        return self._tracing_on

    @tracing_on.setter
    def tracing_on(self, value: bool) -> None:
        self._tracing_on = value
        self._apply_tracing_on()

    def pause(self) -> None:
        """Stop recording until `resume`; calls nest."""
        self._paused += 1
        self._apply_tracing_on()

    def resume(self) -> None:
        """The other half of `pause`."""
        self._paused -= 1
        self._apply_tracing_on()

    def _apply_tracing_on(self) -> None:
        self.sink.tracing_on = self._tracing_on and not self._paused

    @property
    def cpumask(self) -> int:
        """Bit per cpu that records."""
        mask = self.sink.cpumask
        return (1 << self.nr_cpus) - 1 if mask is None else mask

    @cpumask.setter
    def cpumask(self, mask: int) -> None:
        self.sink.cpumask = None if mask == (1 << self.nr_cpus) - 1 else mask

    def pids_text(self, *, notrace: bool) -> bytes:
        """`set_event_pid`, or with notrace `set_event_notrace_pid`."""
        return b"".join(b"%d\n" % pid for pid in sorted(self._notrace_pids if notrace else self._pids))

    def add_pids(self, pids: Iterable[int], *, notrace: bool) -> None:
        """Only (notrace: not) these threads' events are recorded from now on; an empty list means no filtering."""
        (self._notrace_pids if notrace else self._pids).update(pids)
        self._apply_pids()

    def clear_pids(self, *, notrace: bool) -> None:
        """What truncating the file does."""
        (self._notrace_pids if notrace else self._pids).clear()
        self._apply_pids()

    def _apply_pids(self) -> None:
        self.sink.pids = frozenset(self._pids) or None
        self.sink.notrace_pids = frozenset(self._notrace_pids) or None

    @property
    def clock(self) -> str:
        """The clock of the time stamps."""
        return self.sink.clock

    @property
    def clock_is_ns(self) -> bool:
        """Whether it counts nanoseconds."""
        return self.sink.clock not in _CLOCKS_NOT_NS

    def clock_text(self) -> bytes:
        """`trace_clock`."""
        return " ".join(f"[{name}]" if name == self.sink.clock else name for name in CLOCKS).encode() + b"\n"

    def set_clock(self, name: bytes) -> None:
        """Every success clears the buffer, naming the present clock included. EINVAL: unknown."""
        text = name.decode("ascii", "replace")
        if text not in CLOCKS:
            raise TraceError(errno.EINVAL, f"no clock {text!r}; trace_clock lists them")
        self.sink.clock = text
        self.text_generation += 1
        self.clear()
        self.sink.now()  # the kernel resets the spare buffer, too: with `counter` that is a tick, the first record has 3

    # Options.

    def set_option(self, name: str, value: bool) -> None:
        """Change an option and do what hangs on it. EINVAL as `Options.set`."""
        self.options.set(name, value)
        self.text_generation += 1
        if name == "overwrite":
            self.buffer.overwrite = value
        elif name == "record-tgid":
            self.comms.record_tgid = value

    # The buffer: sizes.

    def expand(self) -> None:
        """Give the top instance its real buffer, once. ENOMEM."""
        if not self.expanded:
            self.resize(EXPANDED_SIZE_KB)

    def resize(self, size_kb: int, cpu: int = -1) -> None:
        """KiB per cpu, of one cpu or all; keeps what fits. EINVAL for 0, ENOMEM with the old buffer intact."""
        if size_kb < 1:
            raise TraceError(errno.EINVAL, "a buffer needs at least 1 KiB per cpu")
        cpus = range(self.nr_cpus) if cpu < 0 else (cpu,)
        growth_kb = sum(max(0, size_kb - self.buffer.size_kb(n)) for n in cpus)
        if self._free_memory_kb is not None and growth_kb > self._free_memory_kb():
            raise TraceError(errno.ENOMEM, f"{growth_kb} KiB more are not to be had")
        self._resize(size_kb, cpu)
        self.expanded = True

    def _resize(self, size_kb: int, cpu: int = -1) -> None:
        with _memory_errors():
            try:
                self.buffer.resize(size_kb, cpu)
            except OSError as error:
                if self._storage is None or error.errno not in _NO_ROOM:
                    raise
                self.buffer.resize(size_kb, cpu, in_memory=True)
                self._leave_storage(error)

    def _leave_storage(self, why: OSError) -> None:
        """The buffer is in memory by now."""
        storage, self._storage = self._storage, None
        if storage is not None:
            storage.left(why)

    def shrink_to_minimum(self) -> None:
        """What closing free_buffer does; tracing ends, too, with the option disable_on_free."""
        if self.options["disable_on_free"]:
            self.tracing_on = False
        self._resize(1)
        self.expanded = True

    def size_text(self) -> bytes:
        """`buffer_size_kb`."""
        sizes = {self.buffer.size_kb(cpu) for cpu in range(self.nr_cpus)}
        if len(sizes) > 1:
            return b"X\n"
        return self._size_text(sizes.pop(), EXPANDED_SIZE_KB)

    def total_size_text(self) -> bytes:
        """`buffer_total_size_kb`."""
        return self._size_text(
            sum(self.buffer.size_kb(cpu) for cpu in range(self.nr_cpus)), EXPANDED_SIZE_KB * self.nr_cpus
        )

    def _size_text(self, size_kb: int, expanded_kb: int) -> bytes:
        return b"%d\n" % size_kb if self.expanded else b"%d (expanded: %d)\n" % (size_kb, expanded_kb)

    def set_subbuf_size(self, size_kb: int) -> None:
        """Sub-buffers of so many KiB, rounded up to a power of two of pages; contents are lost, sizes stay.

        EINVAL: 0, or more than 512. ENOMEM.
        """
        if not 0 < size_kb <= _MAX_SUBBUF_KB:
            raise TraceError(errno.EINVAL, f"a sub-buffer has 1 to {_MAX_SUBBUF_KB} KiB")
        pages = -(-size_kb * 1024 // SUBBUF_SIZE)
        size = SUBBUF_SIZE << (pages - 1).bit_length()
        if size == self.buffer.subbuf_size:
            return
        # As in ring_buffer_subbuf_order_set of kernel/trace/ring_buffer.c: whole sub-buffers that hold at least as much.
        payload = self.buffer.subbuf_size - SUBBUF_HEADER_SIZE
        room_kb = [
            -(-self.buffer.nr_subbufs(cpu) * payload // (size - SUBBUF_HEADER_SIZE))
            * (size - SUBBUF_HEADER_SIZE)
            // 1024
            for cpu in range(self.nr_cpus)
        ]
        self._replace(room_kb, size)

    def _replace(self, sizes_kb: Sequence[int], subbuf_size: int) -> None:
        """Go on with an empty buffer. ENOMEM, with the old one intact."""
        with _memory_errors():
            buffer, in_use = self._new_buffer(sizes_kb, subbuf_size)
        self.sink.ring_buffer = self.buffer = buffer
        self.text_generation += 1
        in_use()

    def _new_buffer(
        self, sizes_kb: Sequence[int], subbuf_size: int = SUBBUF_SIZE
    ) -> tuple[RingBuffer, Callable[[], None]]:
        """An empty buffer, in a folder of its own where there is storage, and what to call once it is in use: a process that
        is killed until then leaves the old one, afterwards the new one, never half of each. MemoryError, OSError."""
        if self._storage is None:
            return self._sized_buffer(sizes_kb, subbuf_size, None), lambda: None
        storage = self._storage
        try:
            folder = storage.new_folder()
            try:
                buffer = self._sized_buffer(sizes_kb, subbuf_size, folder)
            except BaseException:
                storage.unused(folder)
                raise
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            why = error
            return self._sized_buffer(sizes_kb, subbuf_size, None), lambda: self._leave_storage(why)
        return buffer, lambda: storage.used(folder)

    def _sized_buffer(self, sizes_kb: Sequence[int], subbuf_size: int, folder: str | None) -> RingBuffer:
        buffer = RingBuffer(self.nr_cpus, sizes_kb[0], subbuf_size=subbuf_size, folder=folder)
        for cpu, size_kb in enumerate(sizes_kb):
            if size_kb != sizes_kb[0]:
                buffer.resize(size_kb, cpu)
        buffer.overwrite = self.options["overwrite"]
        return buffer

    def clear(self, cpu: int = -1) -> None:
        """Forget what is recorded, of one cpu or all."""
        self.buffer.clear(cpu)
        self.time_start = self.sink.now()
        if cpu < 0:
            self.clear_pending = False

    # Markers.

    def write_marker(self, data: bytes, pid: int) -> int:
        """One text record; returns how many bytes fitted into it.

        EINVAL: option markers is off. EBADF: not recording, or full and not overwriting.
        """
        taken = data[: min(_MARKER_MAX, self.buffer.max_entry_size - _MARKER_HEADER - _MARKER_TAIL)]
        tail = b"\0\0" if taken.endswith(b"\n") else b"\n\0"
        self._append_marker(PRINT_ID, MARKER_IP.to_bytes(8, "little") + taken + tail, pid)
        return len(taken)

    def write_raw_marker(self, data: bytes, pid: int) -> int:
        """One binary record, a u32 tag first. EINVAL: shorter than that, or too large; and as `write_marker`."""
        self._check_markers()
        if len(data) < 4:
            raise TraceError(errno.EINVAL, "a raw marker begins with a tag of 4 bytes")
        if len(data) > self.buffer.max_entry_size - _RAW_HEADER:
            raise TraceError(errno.EINVAL, f"{len(data)} bytes do not fit into a sub-buffer")
        self._append_marker(RAW_DATA_ID, data, pid)
        return len(data)

    def _check_markers(self) -> None:
        if not self.options["markers"]:
            raise TraceError(errno.EINVAL, "the option markers is off")

    def _append_marker(self, event_id: int, body: bytes, pid: int) -> None:
        self._check_markers()
        refused = self.sink.append_raw(
            self.now_ns(), min(self._current_cpu(), self.nr_cpus - 1), pid, event_id, body
        )
        if refused:
            raise TraceError(
                errno.EBADF, "not recorded: tracing_on is 0, or the buffer is full and overwrite off"
            )
        self.comms.wrote(pid)

    # Text.

    def header(self, cpu: int = -1) -> bytes:
        """The comment lines of `trace`."""
        return trace_text.header(
            trace_text.TextOptions.from_names(self.options.on),
            entries=self.buffer.entries(cpu),
            overruns=self.buffer.overruns(cpu),
            online_cpus=self.nr_cpus,
            kernel_release=self.comms.kernel_release,
            cpu=max(cpu, 0),
        )

    def renderer(self) -> TextRenderer:
        """What prints records with the options and clock of now."""
        return TextRenderer(
            self._event_by_id,
            self.comms.comm,
            self.comms.tgid,
            trace_text.TextOptions.from_names(self.options.on),
            self.clock_is_ns,
            time_start=self.time_start,
        )

    def _event_by_id(self, event_id: int) -> "tuple[bytes, tuple[Field, ...]] | None":
        event = self.table.by_id(event_id)
        return None if event is None else (event.tracepoint_name, event.declaration.fields)

    def stats_text(self, cpu: int) -> bytes:
        """`per_cpu/cpuN/stats`."""
        return trace_text.stats_text(self.buffer.stats(cpu), self.sink.now(), clock_is_ns=self.clock_is_ns)

    # error_log.

    def log_error(self, location: str, message: str, command: bytes, position: int) -> None:
        """Add an entry to `error_log`; the oldest goes when there are 8. position: the column in the command to point at."""
        seconds, rest_ns = divmod(self.now_ns(), 1_000_000_000)
        self._error_log.append(
            b"[%5d.%06d] %s: error: %s\n  Command: %s\n%s^\n"
            % (seconds, rest_ns // 1000, location.encode(), message.encode(), command, b" " * (11 + position))
        )
        del self._error_log[:-_ERROR_LOG_ENTRIES]

    def error_log_text(self) -> bytes:
        """`error_log`, oldest first."""
        return b"".join(self._error_log)

    def clear_error_log(self) -> None:
        """What truncating it does."""
        self._error_log.clear()


def _check_glob(glob: bytes) -> None:
    """EINVAL for what could never match: more parts than system and name, or a broken bracket expression."""
    try:
        re.compile(translate(glob.decode("latin-1")))
    except re.error as error:
        raise TraceError(errno.EINVAL, f"not a glob: {error}") from None
    if glob.count(b":") > 1 or not glob:
        raise TraceError(errno.EINVAL, "a glob is SYSTEM:NAME, or one part that matches either")


@contextmanager
def _memory_errors() -> Iterator[None]:
    """What a buffer raises when it cannot have its memory, as an errno."""
    try:
        yield
    except MemoryError:
        raise TraceError(errno.ENOMEM, "no memory for a buffer of that size") from None
    except OSError as error:
        raise TraceError(
            error.errno or errno.ENOMEM, f"no room for a buffer of that size: {error.strerror}"
        ) from error
