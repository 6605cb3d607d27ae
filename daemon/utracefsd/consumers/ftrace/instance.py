"""An ftrace instance: a ring buffer, and enable switches, options and a clock of its own.

An instance is an object and nothing else. What an administrator does through the tree lands here as a method;
what a record does on its way is compiled (`FtraceProbe` writes through the instance's `FtraceSink` into its
`RingBuffer`) and does not pass through this file.

    events.enable(event)   FtraceProbe ──▶ table.attach      status byte and enable words flip there
    a record               FtraceProbe ──▶ FtraceSink (tracing_on, clock, cpumask, pids) ──▶ RingBuffer
    trace                  RingBuffer.cursor ──▶ TextRenderer, made by `renderer()`

    settings    what a successor gets to know        settings.py
    events      EventFiles: what is enabled          event/event_file.py
    store       BufferStore: the buffer, its sizes   buffer/buffer_store.py
    snapshot    Snapshot: the spare buffer           buffer/snapshot.py
    options     Options                              options.py
    pids        PidLists: whose events are wanted    pid_lists.py
    markers     Markers                              markers.py
    error_log   ErrorLog                             error_log.py
    standing_*  StandingFile: for new events         standing_files.py
    triggers    Triggers                             trigger/commands.py
    here        set_event and standing_events, what is recorded and how it is printed

When is a buffer cleared by itself? The kernel gives ids again after an event is removed, so records of a
removed event could be printed with the format of the next one. It does this about it, and so do we: the
removal of an event that was ever attached here marks the buffer (`clear_pending`); a removal through
dynamic_events, of whatever event, clears the buffers that are marked by then (kernel/trace/trace.c,
`tracing_reset_all_online_cpus`). Removals of other kinds, such as the last reference of an event going away,
only mark. While a buffer is marked, the event table keeps the ids of removed events from others.

There may be hundreds of instances that are not used, so one listens to the event table only from when it has
something to hear: new events while it has standing lines, removed ones from its first event file on.

Nothing here waits, reads a clock or looks into /proc: `now_ns` and the rest are given at construction.
"""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from utracefs_protocol.declaration import Field
from utracefs_protocol.errors import TraceError
from utracefs_protocol.filter import FilterError
from utracefs_protocol.filter.errors import BAD_SYSTEM_FILTER
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.buffer.buffer_store import BufferStorage, BufferStore
from utracefsd.consumers.ftrace.buffer.snapshot import Snapshot
from utracefsd.consumers.ftrace.buffer.stats import stats_text
from utracefsd.consumers.ftrace.error_log import ErrorLog
from utracefsd.consumers.ftrace.event._sink import FtraceSink
from utracefsd.consumers.ftrace.event._trigger_cells import Cells
from utracefsd.consumers.ftrace.event.event_file import EventFiles, SavedEventFile
from utracefsd.consumers.ftrace.event.event_words import check_glob, first_word, glob_matches, select
from utracefsd.consumers.ftrace.hist.tables import Tables
from utracefsd.consumers.ftrace.markers import Markers
from utracefsd.consumers.ftrace.options import Options, default_options
from utracefsd.consumers.ftrace.pid_lists import PidLists
from utracefsd.consumers.ftrace.settings import CLOCKS, Settings
from utracefsd.consumers.ftrace.standing_files import StandingFile
from utracefsd.consumers.ftrace.text import headers
from utracefsd.consumers.ftrace.text._text import TextRenderer
from utracefsd.consumers.ftrace.trigger.commands import Triggers
from utracefsd.consumers.ftrace.trigger.kind import Place
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine._writer_names import WriterNames
from utracefsd.machine.comms import CommTable

__all__ = ["Instance"]

_CLOCKS_NOT_NS = frozenset({"counter", "uptime", "x86-tsc"})
"""Clocks that count something other than nanoseconds; their stamps are printed as bare numbers."""


class Instance:
    """One ftrace instance. `Instances` makes and numbers them.

    name: b"" for the top one. number: 0 for the top one.
    """

    def __init__(
        self,
        table: EventTable,
        comms: CommTable,
        now_ns: Callable[[], int],
        *,
        nr_cpus: int,
        name: bytes = b"",
        number: int = 0,
        top_options: Options | None = None,
        storage: BufferStorage | None = None,
        current_cpu: Callable[[], int] = lambda: 0,
        free_memory_kb: Callable[[], int] | None = None,
        cells: Cells | None = None,
        names: WriterNames | None = None,
        tables: Tables | None = None,
    ) -> None:
        """now_ns: CLOCK_MONOTONIC. nr_cpus: how many per-cpu buffers (/sys/devices/system/cpu/possible).

        top_options: those of the top instance; None: this is it. storage: where the ring buffer lives; None:
        in memory of this process alone. current_cpu: where markers are recorded; free_memory_kb: what a
        larger buffer may take (None: unbounded). cells: of all triggers; tables: of all histograms; names:
        for filters on the writer's name, shared by all instances; None: some of its own. MemoryError,
        OSError: no room for the buffer.
        """
        self.name = name
        self.number = number
        self.table = table
        self.comms = comms
        self.nr_cpus = nr_cpus
        is_top = top_options is None
        self.settings = Settings(options=default_options(top=is_top), expanded=not is_top)
        self.options = Options(self.settings, top_options)
        self.store = BufferStore(
            self.settings, nr_cpus=nr_cpus, storage=storage, free_memory_kb=free_memory_kb
        )
        self.store.on_replaced = self._replaced
        self.snapshot = Snapshot(self.store)
        self.sink = FtraceSink(self.store.buffer, number, cells)
        self.events = EventFiles(
            table,
            self.sink,
            "ftrace" if not name else "ftrace:" + name.decode("utf-8", "backslashreplace"),
            now_ns,
            before_enabling=self.store.expand,
            recorded_event_gone=self._mark,
            nr_cpus=nr_cpus,
            names=WriterNames(comms.comm, comms.last_comm) if names is None else names,
        )
        self.pids = PidLists(self.settings, self.sink, comms)
        self._current_cpu = current_cpu
        self.markers = Markers(self.sink, self.options, comms, now_ns, current_cpu)
        self.error_log = ErrorLog(self.settings, now_ns)
        self.triggers = Triggers(
            Place(
                table,
                self.sink,
                self.events,
                self.error_log,
                self.snapshot,
                tracing_switched=self._note_tracing_on,
                set_clock=self.set_clock,
                tables=Tables() if tables is None else tables,
            )
        )
        self.pipe_readers: set[int] = set()
        """Cpus that an open trace_pipe consumes, -1 for all of them."""
        self.closed = False
        """The instance was removed."""
        self._paused = 0
        self._text_changes = 0
        self.standing_filters = StandingFile(
            self.settings, "standing_filters", self.set_filter, self._listen, last_only=True
        )
        self.standing_triggers = StandingFile(
            self.settings, "standing_triggers", self.triggers.write, self._listen, last_only=False
        )
        self._hears_created = False
        self._hears_dynamic_removed = False

    def close(self) -> None:
        """Let go of all events and of the table; what was recorded stays readable as long as a reader has it
        open."""
        self.closed = True
        self.events.close()
        self.comms.want_tgids(self, False)
        self.clear_standing()
        self.standing_filters.clear()
        self.standing_triggers.clear()
        if self._hears_dynamic_removed:
            self.table.on_dynamic_removed.remove(self._dynamic_removed)
            self._hears_dynamic_removed = False

    @property
    def buffer(self) -> RingBuffer:
        """The ring buffer in use; another one after `buffer_subbuf_size_kb` was written."""
        return self.store.buffer

    def _replaced(self, buffer: RingBuffer) -> None:
        self.sink.ring_buffer = buffer
        self._text_changes += 1

    # Events by their names.

    def set_event(self, data: bytes) -> int:
        """One write to `set_event`: takes one word, returns how many bytes that used. EINVAL: see
        `event_words`."""
        word, used = first_word(data)
        if word:
            name = word.removeprefix(b"!")
            self.events.set_enabled(select(name, self.table.events(), self.table.get), name is word)
        return used

    # Filters of events.

    def set_filter(self, event: Event, text: bytes) -> None:
        """One write to an event's `filter`. FilterError, which is in `error_log` then."""
        try:
            self.events.set_filter(event, text)
        except FilterError as error:
            self._log_filter_error(text, error)
            raise

    def set_filters(self, events: Iterable[Event], text: bytes) -> None:
        """One write to a system's `filter`, for all its events. Those that it does not fit lose theirs and
        show that; it is no error even if that is all of them (process_system_preds() in the kernel)."""
        refused = FilterError(BAD_SYSTEM_FILTER, 0)
        for event in list(events):
            try:
                self.events.set_filter(event, text, instead=refused)
            except FilterError:
                self._log_filter_error(text, refused)

    def _log_filter_error(self, text: bytes, error: FilterError) -> None:
        self.error_log.add("event filter parse error", error.message or "Error", text, error.position or 0)

    def inject(self, event: Event, command: bytes, pid: int) -> None:
        """What writing to `inject` does: see `EventFiles.inject`."""
        self.events.inject(event, command, min(self._current_cpu(), self.nr_cpus - 1), pid)
        self.comms.wrote(pid)

    # Standing subscriptions: events that may not exist yet (ours; the kernel's users poll instead).

    def standing_text(self) -> bytes:
        """`standing_events`: the globs, one a line, in the order they were written."""
        return b"".join(b"%s\n" % glob for glob in self.settings.standing)

    def set_standing(self, data: bytes) -> int:
        """One write to `standing_events`: takes one word, returns how many bytes that used.

        A glob enables what it matches now and from then on. `!` and a glob that is listed takes it off the
        list: events registered later are not enabled any more, those enabled already stay so. EINVAL: not
        listed, or not a glob.
        """
        word, used = first_word(data)
        if not word:
            return used
        glob = word.removeprefix(b"!")
        if glob is not word:
            if glob not in self.settings.standing:
                raise TraceError(
                    errno.EINVAL, "standing_events does not list it; repeat the line as it is shown"
                )
            self._stand_by([other for other in self.settings.standing if other != glob])
            return used
        check_glob(glob)
        self.store.expand()
        self._stand_by([*self.settings.standing, glob])
        self.events.set_enabled([event for event in self.table.events() if glob_matches(glob, event)], True)
        return used

    def clear_standing(self) -> None:
        """What truncating standing_events does. Events that are enabled stay so."""
        self._stand_by(())

    def _stand_by(self, globs: Iterable[bytes]) -> None:
        self.settings.standing = tuple(dict.fromkeys(globs))
        self._listen()

    def _listen(self) -> None:
        """New events are heard of while a line of any standing file may mean one."""
        settings = self.settings
        wanted = bool(settings.standing or settings.standing_filters or settings.standing_triggers)
        if wanted != self._hears_created:
            self._hears_created = not self._hears_created
            if self._hears_created:
                self.table.on_created.append(self._created)
                self.table.idle.subscribers.append(self)
            else:
                self.table.on_created.remove(self._created)
                self.table.idle.subscribers.remove(self)

    def _created(self, event: Event) -> None:
        self.standing_filters.created(event)
        self.standing_triggers.created(event)
        if any(glob_matches(glob, event) for glob in self.settings.standing):
            self.events.enable(event)

    def would_attach(self, event: Event) -> bool:
        """The event is enabled here or has triggers, and that is what the standing lines say. Not with
        triggers that other events need: which switch it, or read its histograms' variables."""
        file = self.events.get(event)
        return (
            file is not None
            and file.probe is not None
            and not file.switches
            and (not file.enabled or any(glob_matches(glob, event) for glob in self.settings.standing))
            and (not file.triggers or (self.standing_triggers.means(event) and self.triggers.may_go(event)))
        )

    def let_go(self, event: Event) -> None:
        """Detach from it; its histograms and counts go with it."""
        self.events.let_go(event)

    # Events that are gone.

    def _mark(self) -> None:
        self.settings.clear_pending = True
        if not self._hears_dynamic_removed:
            self._hears_dynamic_removed = True
            self.table.on_dynamic_removed.append(self._dynamic_removed)

    def _dynamic_removed(self) -> None:
        if self.settings.clear_pending:
            self.snapshot.clear()
            self.clear()

    # Recording.

    @property
    def tracing_on(self) -> bool:
        """`tracing_on`: records reach the buffer. A reader may pause that (`pause`) without this changing."""
        return self.sink.tracing_on

    @tracing_on.setter
    def tracing_on(self, value: bool) -> None:
        self.sink.tracing_on = value
        self._note_tracing_on()

    def _note_tracing_on(self) -> None:
        """Triggers switch the sink alone; as long as there are such, a successor asks their cell."""
        self.settings.tracing_on = self.sink.tracing_on

    def pause(self) -> None:
        """Stop recording until `resume`; calls nest."""
        self._paused += 1
        self.sink.paused = True

    def resume(self) -> None:
        """The other half of `pause`."""
        self._paused -= 1
        self.sink.paused = self._paused > 0

    def _apply(self) -> None:
        """Copy the settings to where they take effect."""
        settings, sink = self.settings, self.sink
        sink.cpumask = settings.cpumask
        self.pids.apply(inherit=self.options["event-fork"])
        if sink.clock != settings.clock:
            sink.clock = settings.clock
        self.buffer.overwrite = self.options["overwrite"]
        self.comms.want_tgids(self, self.options["record-tgid"])
        self.comms.record_cmd = self.options["record-cmd"]

    @property
    def cpumask(self) -> int:
        """Bit per cpu that records."""
        mask = self.settings.cpumask
        return (1 << self.nr_cpus) - 1 if mask is None else mask

    @cpumask.setter
    def cpumask(self, mask: int) -> None:
        self.settings.cpumask = None if mask == (1 << self.nr_cpus) - 1 else mask
        self._apply()

    @property
    def clock(self) -> str:
        """The clock of the time stamps."""
        return self.settings.clock

    @property
    def clock_is_ns(self) -> bool:
        """Whether it counts nanoseconds."""
        return self.settings.clock not in _CLOCKS_NOT_NS

    def clock_text(self) -> bytes:
        """`trace_clock`."""
        return " ".join(f"[{name}]" if name == self.clock else name for name in CLOCKS).encode() + b"\n"

    def set_clock(self, name: bytes) -> None:
        """Every success clears the buffer, naming the present clock included. EINVAL: unknown."""
        text = name.decode("ascii", "replace")
        if text not in CLOCKS:
            raise TraceError(errno.EINVAL, f"no clock {text!r}; trace_clock lists them")
        self.settings.clock = text
        self._apply()
        self._text_changes += 1
        self.snapshot.clear()
        self.clear()
        # The kernel resets the spare buffer, too: with `counter` that is a tick, and the first record has 3.
        self.sink.now()

    def set_option(self, name: str, value: bool) -> None:
        """Change an option. EINVAL as `Options.set`."""
        self.options.set(name, value)
        self._apply()

    def take_snapshot(self, cpu: int = -1) -> None:
        """What writing 1 to `snapshot` does, or to that of one cpu. ENOMEM."""
        self.snapshot.take(cpu)

    def free_buffer(self) -> None:
        """What closing free_buffer does; tracing ends, too, with the option disable_on_free."""
        if self.options["disable_on_free"]:
            self.tracing_on = False
        self.store.shrink_to_minimum()

    def clear(self, cpu: int = -1) -> None:
        """Forget what is recorded, of one cpu or all."""
        self.buffer.clear(cpu)
        self.settings.time_start = self.sink.now()
        if cpu < 0 and (self.snapshot.buffer is None or self.snapshot.buffer.is_empty()):
            self.settings.clear_pending = False

    # Going on where an instance of a daemon before this one was.

    def restore(self, settings: Mapping[str, Any], files: Iterable[tuple[Event, SavedEventFile]]) -> None:
        """Be as the instance was that had these settings (by name, see `parse_setting`) and event files.

        Nothing is cleared: the buffer is adopted already. Or there was none to adopt: then an empty one gets
        the size of the one that was lost. What is missing, because the log was torn, stays at its default.
        """
        wanted = dict(settings)
        in_memory = wanted.pop("in_memory", ())
        expanded = wanted.pop("expanded", self.settings.expanded)
        snapshot = wanted.pop("snapshot", False)
        for name, value in wanted.items():
            setattr(self.settings, name, value)
        self._stand_by(self.settings.standing)
        if self.settings.clear_pending:
            self._mark()
        self.store.restore_sizes(in_memory, expanded=expanded, snapshot=snapshot)
        self.sink.tracing_on = self.settings.tracing_on
        self._apply()
        files = list(files)
        for event, saved in files:
            self.events.restore(event, saved)
        self.triggers.restore_all(
            (event, saved.triggers) for event, saved in files
        )  # may switch other events

    # Text.

    @property
    def text_generation(self) -> int:
        """Another number whenever what `renderer` is made from has changed: options, clock, the buffer
        object."""
        return self._text_changes + self.options.changes

    def header(self, cpu: int = -1, *, snapshot: bool = False) -> bytes:
        """The comment lines of `trace`, or of `snapshot`."""
        buffer = self.snapshot.buffer if snapshot else self.buffer
        if snapshot and (buffer is None or buffer.is_empty(cpu)):
            return headers.TRACER + self.snapshot.help_text(cpu)
        assert buffer is not None
        # All cpus are counted in the file of one, too, as print_event_info() of kernel/trace/trace.c does it.
        return headers.header(
            headers.TextOptions.from_names(self.options.on),
            entries=buffer.entries(),
            overruns=buffer.overruns(),
            empty=buffer.is_empty(cpu),
            online_cpus=self.nr_cpus,
            kernel_release=self.comms.kernel_release,
        )

    def renderer(self, *, one_line: bool = False) -> TextRenderer:
        """What prints records with the options and clock of now. one_line: each is one line, always."""
        return TextRenderer(
            self._event_by_id,
            self.comms.comm,
            self.comms.tgid,
            headers.TextOptions.from_names(self.options.on),
            self.clock_is_ns,
            time_start=self.settings.time_start,
            one_line=one_line,
        )

    def _event_by_id(self, event_id: int) -> tuple[bytes, tuple[Field, ...], bool] | None:
        event = self.table.by_id(event_id)
        if event is None:
            return None
        return event.tracepoint_name, event.declaration.fields, event.synthetic

    def stats_text(self, cpu: int) -> bytes:
        """`per_cpu/cpuN/stats`."""
        return stats_text(self.buffer.stats(cpu), self.sink.now(), clock_is_ns=self.clock_is_ns)
