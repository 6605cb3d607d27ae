"""An ftrace instance: a ring buffer, and enable switches, options and a clock of its own.

An administrator's operations on the tree are methods of this object; the record path is compiled and does
not pass through this file.

    events.enable(event)   FtraceProbe ──▶ table.attach      status byte and enable words flip there
    a record               FtraceProbe ──▶ FtraceSink (tracing_on, clock, cpumask, pids) ──▶ RingBuffer
    trace                  RingBuffer.cursor ──▶ TextRenderer, made by `renderer()`

    settings    Settings: the next daemon has them   settings.py
    events      EventFiles: what is enabled          event/event_file.py
    store       BufferStore: the buffer, its sizes   buffer/buffer_store.py
    snapshot    Snapshot: the spare buffer           buffer/snapshot.py
    options     Options                              settings.py
    pids        PidLists: threads to record          pid_lists.py
    markers     Markers                              markers.py
    error_log   ErrorLog                             error_log.py
    standing_*  StandingFile: for new events         standing_files.py
    triggers    Triggers                             trigger/commands.py
    here        set_event, recording and printing

When does a buffer clear itself? The kernel reuses ids after an event is removed, so records of a removed
event could be printed with the format of the next one. Its solution, followed here: the removal of an event
that was ever attached marks the buffer (`clear_pending`); a removal through dynamic_events, of any event,
clears the marked buffers (kernel/trace/trace.c, `tracing_reset_all_online_cpus`). While a buffer is marked,
the event table gives the ids of removed events to no other event.

There may be hundreds of unused instances, so an instance observes the event table only when it needs to.
"""

import errno
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import Field
from utracefs_protocol.filter import FilterError
from utracefs_protocol.filter.parse import BAD_SYSTEM_FILTER
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
from utracefsd.consumers.ftrace.pid_lists import PidLists
from utracefsd.consumers.ftrace.settings import CLOCKS, Options, Settings, default_options
from utracefsd.consumers.ftrace.standing_files import StandingFile
from utracefsd.consumers.ftrace.text import headers
from utracefsd.consumers.ftrace.text._text import TextRenderer
from utracefsd.consumers.ftrace.trigger.commands import Triggers, command_of
from utracefsd.consumers.ftrace.trigger.kind import Place
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable
from utracefsd.machine._writer_names import WriterNames
from utracefsd.machine.comms import CommTable

_CLOCKS_NOT_NS = frozenset({"counter", "uptime", "x86-tsc"})
"""Clocks that do not count nanoseconds; their stamps are printed as bare numbers."""


class Instance:
    """One ftrace instance. `Instances` makes and numbers them."""

    def __init__(
        self,
        table: EventTable,
        comms: CommTable,
        now_ns: Callable[[], int],
        *,
        nr_cpus: int,
        name: bytes,
        number: int,
        top_options: Options | None,
        storage: BufferStorage | None,
        current_cpu: Callable[[], int],
        free_memory_kb: Callable[[], int],
        cells: Cells,
        names: WriterNames,
        tables: Tables,
    ) -> None:
        """now_ns: CLOCK_MONOTONIC. nr_cpus: number of per-cpu buffers (/sys/devices/system/cpu/possible).

        top_options: those of the top instance; None: this is it. storage: files for the ring buffer; None: in
        memory of this process alone. current_cpu: the cpu for markers; free_memory_kb: limit of a larger
        buffer. All instances share cells, tables and names. MemoryError, OSError.
        """
        self.name = name
        self.number = number
        self.table = table
        self.comms = comms
        self.nr_cpus = nr_cpus
        # A new instance has its real buffer at once, as in the kernel; the top one when something is enabled.
        is_top = top_options is None
        self.settings = Settings(options=default_options(top=is_top), expanded=not is_top)
        self.options = Options(self.settings, top_options)
        self.store = BufferStore(
            self.settings, nr_cpus=nr_cpus, storage=storage, free_memory_kb=free_memory_kb
        )
        # The sink refers to the ring buffer itself, so it must get the next one when the store replaces that.
        self.store.on_replaced = self._replaced
        self.snapshot = Snapshot(self.store)
        # The record path, and what is attached to it. The sink is shared by the probes of all events.
        self.sink = FtraceSink(self.store.buffer, number, cells)
        self.events = EventFiles(
            table,
            self.sink,
            "ftrace" if not name else "ftrace:" + name.decode("utf-8", "backslashreplace"),
            now_ns,
            before_enabling=self.store.expand,
            recorded_event_gone=self._mark,
            nr_cpus=nr_cpus,
            names=names,
        )
        # They act on the parts above: pid lists and markers on the sink, triggers on nearly all of them.
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
                tables=tables,
            )
        )
        # Its own state: readers and pauses, and the callbacks that it has subscribed at the event table.
        self.pipe_readers: set[int] = set()
        """Cpus consumed by an open trace_pipe, -1 for all of them."""
        self.closed = False
        """The instance was removed."""
        self._paused = 0
        self._text_changes = 0
        # They act when an event is made; `_listen` subscribes only while there are lines.
        self.standing_events = StandingFile(
            self.settings, "standing_events", self._enable, self._listen, last_only=True
        )
        self.standing_filters = StandingFile(
            self.settings, "standing_filters", self.set_filter, self._listen, last_only=True
        )
        self.standing_triggers = StandingFile(
            self.settings, "standing_triggers", self.triggers.write, self._listen, check=command_of
        )
        self._watches_created = self._watches_removed = False

    def close(self) -> None:
        """Detach from all events and from the table; records stay readable while a reader has the buffer
        open."""
        self.closed = True
        self.events.close()
        self.comms.want_tgids(self, False)
        for standing in (self.standing_events, self.standing_filters, self.standing_triggers):
            standing.clear()
        if self._watches_removed:
            self.table.on_dynamic_removed.remove(self._dynamic_removed)
            self._watches_removed = False

    @property
    def buffer(self) -> RingBuffer:
        """The ring buffer in use; writing `buffer_subbuf_size_kb` replaces it."""
        return self.store.buffer

    def _replaced(self, buffer: RingBuffer) -> None:
        self.sink.ring_buffer = buffer
        self._text_changes += 1

    # Events by their names.

    def set_event(self, data: bytes) -> int:
        """One write to `set_event`: takes one word, returns how many bytes it used. EINVAL."""
        word, used = first_word(data)
        if word:
            name = word.removeprefix(b"!")
            self.events.set_enabled(select(name, self.table.events(), self.table.get), name is word)
        return used

    # Filters of events.

    def set_filter(self, event: Event, text: bytes) -> None:
        """One write to an event's `filter`. FilterError, which is also added to `error_log`."""
        try:
            self.events.set_filter(event, text)
        except FilterError as error:
            self.error_log.add_filter(text, error)
            raise

    def set_filters(self, events: Iterable[Event], text: bytes) -> None:
        """One write to a system's `filter`, for all its events. An event for which it is invalid loses its
        filter and shows the error; the write succeeds even if that is every event (process_system_preds() in
        the kernel)."""
        refused = FilterError(BAD_SYSTEM_FILTER, 0)
        for event in list(events):
            try:
                self.events.set_filter(event, text, instead=refused)
            except FilterError:
                self.error_log.add_filter(text, refused)

    def inject(self, event: Event, command: bytes, pid: int) -> None:
        """One write to `inject`: see `EventFiles.inject`."""
        self.events.inject(event, command, min(self._current_cpu(), self.nr_cpus - 1), pid)
        self.comms.wrote(pid)

    # Standing subscriptions.

    def set_standing(self, data: bytes) -> int:
        """One write to `standing_events`: takes one word, returns how many bytes it used.

        A glob enables matching events now and when they are registered. `!` and a listed glob removes it from
        the list: later events are not enabled any more, enabled ones stay enabled. EINVAL: not listed, or not
        a glob.
        """
        word, used = first_word(data)
        if word.startswith(b"!"):
            self.standing_events.remove(word[1:])
        elif word:
            check_glob(word)
            self.store.expand()
            self.standing_events.set_lines(dict.fromkeys([*self.standing_events.lines, word]))
            wanted = [event for event in self.table.events() if glob_matches(word, event)]
            self.events.set_enabled(wanted, True)
        return used

    def _listen(self) -> None:
        """Observe new events while any standing file has lines."""
        settings = self.settings
        wanted = bool(settings.standing or settings.standing_filters or settings.standing_triggers)
        if wanted != self._watches_created:
            self._watches_created = not self._watches_created
            if self._watches_created:
                self.table.on_created.append(self._created)
                self.table.idle.subscribers.append(self)
            else:
                self.table.on_created.remove(self._created)
                self.table.idle.subscribers.remove(self)

    def _enable(self, event: Event, _: bytes) -> None:
        self.events.enable(event)

    def _created(self, event: Event) -> None:
        self.standing_filters.created(event)
        self.standing_triggers.created(event)
        self.standing_events.created(event)

    def would_attach(self, event: Event) -> bool:
        """Whether the event is attached here exactly as the standing lines say. False with triggers on which
        other events depend: enable_event triggers, or histograms whose variables are read."""
        file = self.events.of(event)
        return (
            file.probe is not None
            and not file.switches
            and (not file.enabled or self.standing_events.means(event))
            and (not file.triggers or (self.standing_triggers.means(event) and self.triggers.may_go(event)))
        )

    def let_go(self, event: Event) -> None:
        """Detach from it, and drop its histograms and counts."""
        self.events.let_go(event)

    # Removed events.

    def _mark(self) -> None:
        self.settings.clear_pending = True
        if not self._watches_removed:
            self._watches_removed = True
            self.table.on_dynamic_removed.append(self._dynamic_removed)

    def _dynamic_removed(self) -> None:
        if self.settings.clear_pending:
            self.snapshot.clear()
            self.clear()

    # Recording.

    @property
    def tracing_on(self) -> bool:
        """`tracing_on`: records reach the buffer. `pause` stops that without a change of this."""
        return self.sink.tracing_on

    @tracing_on.setter
    def tracing_on(self, value: bool) -> None:
        self.sink.tracing_on = value
        self._note_tracing_on()

    def _note_tracing_on(self) -> None:
        """Triggers switch only the sink; while there are such triggers, the next daemon reads their cell."""
        self.settings.tracing_on = self.sink.tracing_on

    def pause(self) -> None:
        """Stop recording until `resume`; calls nest."""
        self._paused += 1
        self.sink.paused = True

    def resume(self) -> None:
        """Undo one `pause`."""
        self._paused -= 1
        self.sink.paused = self._paused > 0

    def _apply(self) -> None:
        """Copy the settings to the objects that use them."""
        settings, sink = self.settings, self.sink
        sink.set_cpumask(settings.cpumask)
        self.pids.apply(inherit=self.options["event-fork"])
        if sink.clock != settings.clock:
            sink.clock = settings.clock
        self.buffer.overwrite = self.options["overwrite"]
        self.comms.want_tgids(self, self.options["record-tgid"])
        self.comms.record_cmd = self.options["record-cmd"]

    @property
    def cpumask(self) -> int:
        """Mask of the cpus that record."""
        mask = self.settings.cpumask
        return (1 << self.nr_cpus) - 1 if mask is None else mask

    @cpumask.setter
    def cpumask(self, mask: int) -> None:
        self.settings.cpumask = None if mask == (1 << self.nr_cpus) - 1 else mask
        self._apply()

    @property
    def clock(self) -> str:
        return self.settings.clock

    @property
    def clock_is_ns(self) -> bool:
        return self.settings.clock not in _CLOCKS_NOT_NS

    def clock_text(self) -> bytes:
        """`trace_clock`."""
        return " ".join(f"[{name}]" if name == self.clock else name for name in CLOCKS).encode() + b"\n"

    def set_clock(self, name: bytes) -> None:
        """Every success clears the buffer, naming the present clock included. EINVAL: unknown."""
        text = name.decode("ascii", "replace")
        if text not in CLOCKS:
            raise TraceError(errno.EINVAL, f"no clock {text!r}; there are {', '.join(CLOCKS)}")
        self.settings.clock = text
        self._apply()
        self._text_changes += 1
        self.snapshot.clear()
        self.clear()
        # The kernel clears the spare, too: with `counter` that takes a tick, and the first record has 3.
        self.sink.now()

    def set_option(self, name: str, value: bool) -> None:
        """Change an option. EINVAL as `Options.set`."""
        self.options.set(name, value)
        self._apply()

    def free_buffer(self) -> None:
        """Closing free_buffer calls this; with the option disable_on_free it also stops recording."""
        if self.options["disable_on_free"]:
            self.tracing_on = False
        self.store.shrink_to_minimum()

    def clear(self, cpu: int = -1) -> None:
        """Drop all records of one cpu or all; a reader of pages has got them before."""
        if self.sink.page_reader is not None:
            self.buffer.hand_to(self.sink.page_reader, all_of_them=True)
        self.buffer.clear(cpu)
        self.settings.time_start = self.sink.now()
        if cpu < 0 and (self.snapshot.buffer is None or self.snapshot.buffer.is_empty()):
            self.settings.clear_pending = False

    # Restoring an instance of the previous daemon.

    def restore(self, settings: Mapping[str, Any], files: Iterable[tuple[Event, SavedEventFile]]) -> None:
        """Restore these settings and event files. Clears nothing: the buffer is adopted already, or an empty
        one gets the size of the lost one."""
        wanted = dict(settings)
        in_memory = wanted.pop("in_memory", ())
        expanded = wanted.pop("expanded", self.settings.expanded)
        snapshot = wanted.pop("snapshot", False)
        for name, value in wanted.items():
            setattr(self.settings, name, value)
        self._listen()
        if self.settings.clear_pending:
            self._mark()
        self.store.restore_sizes(in_memory, expanded=expanded, snapshot=snapshot)
        self.sink.tracing_on = self.settings.tracing_on
        self._apply()
        files = list(files)
        for event, saved in files:
            self.events.restore(event, saved)
        self.triggers.restore((event, saved.triggers) for event, saved in files)  # may enable other events
        if not snapshot:
            self.store.remove_spare()  # made by a trigger, whose spare had been freed

    # Text.

    @property
    def text_generation(self) -> int:
        """A number that changes when options, clock or buffer object change, on which `renderer` depends."""
        return self._text_changes + self.options.changes

    def header(self, cpu: int = -1, *, snapshot: bool = False) -> bytes:
        """The comment lines of `trace`, or of `snapshot`."""
        buffer = self.snapshot.buffer if snapshot else self.buffer
        if snapshot and (buffer is None or buffer.is_empty(cpu)):
            return headers.TRACER + self.snapshot.help_text(cpu)
        assert buffer is not None
        # The file of one cpu counts all cpus, too, as print_event_info() of kernel/trace/trace.c does.
        return headers.header(
            self.options.on,
            entries=buffer.entries(),
            overruns=buffer.overruns(),
            is_empty=buffer.is_empty(cpu),
            online_cpus=self.nr_cpus,
            kernel_release=self.comms.kernel_release,
        )

    def renderer(self, *, one_line: bool = False) -> TextRenderer:
        """Prints records with the present options and clock. one_line: each record is one line, always."""
        return TextRenderer(
            self._event_by_id,
            self.comms.comm,
            self.comms.tgid,
            self.options.on,
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
