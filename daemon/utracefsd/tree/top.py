"""Files of the top directory only: the event files, the saved names, `instances/` and `consumers/`.

consumers/NAME/set_event    the events a plug-in is attached to, one a line, newest first; written like the
                            set_event of an instance, and every part of a word may be a glob; truncating
                            detaches all
consumers/NAME/report       the plug-in's own text (the kernel has no such directory)
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.hist.errors import HistError
from utracefsd.consumers.counts.counts import EventCounters, EventCounts
from utracefsd.consumers.ftrace.event.event_words import first_word, glob_matches
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.instances import Instances
from utracefsd.consumers.plugins.plugins import Plugin, Plugins
from utracefsd.events import dynamic_events
from utracefsd.events.event_table import EventTable
from utracefsd.machine.comms import CommTable
from utracefsd.machine.peer import Peer
from utracefsd.tree import values
from utracefsd.tree.events_files import EventsDirectory
from utracefsd.tree.instance_files import INSTANCE_FILES, options_directory, per_cpu_directory
from utracefsd.tree.nodes import (
    READ_WRITE,
    WRITE_ONLY,
    FileNode,
    Listing,
    Node,
    OpenFile,
    OpenText,
    Row,
    Rows,
    RowTable,
    row_table,
)


@attrs.frozen
class _Consumer:
    table: EventTable
    plugins: Plugins
    name: str

    @property
    def plugin(self) -> Plugin:
        return self.plugins.get(self.name)

    def set_event_text(self) -> bytes:
        attached = set(self.plugin.events())
        return b"".join(
            b"%s\n" % event.full_name for event in reversed(self.table.events()) if event in attached
        )

    def set_event(self, data: bytes) -> int:
        """One word of it, as in an instance; EINVAL when it matches no event."""
        word, used = first_word(data)
        if not word:
            return used
        glob = word.removeprefix(b"!")
        events = [event for event in self.table.events() if glob_matches(glob, event)]
        if not events:
            shown = glob.decode("utf-8", "backslashreplace")
            raise TraceError(errno.EINVAL, f"no event matches {shown!r}; available_events lists them")
        change = self.plugin.attach if glob is word else self.plugin.detach
        for event in events:
            change(event)
        return used

    def detach_all(self) -> None:
        for event in self.plugin.events():
            self.plugin.detach(event)

    def report(self) -> bytes:
        text = self.plugin.report()
        return (text if not text or text.endswith("\n") else text + "\n").encode("utf-8", "surrogateescape")


_CONSUMER_FILES: RowTable[_Consumer] = row_table(
    Row(b"report", _Consumer.report),
    Row(
        b"set_event",
        _Consumer.set_event_text,
        lambda consumer, data, peer: consumer.set_event(data),
        lambda consumer, peer: consumer.detach_all(),
    ),
)


def _consumers_directory(parts: "Parts") -> Listing:
    """`consumers/`."""

    def find(name: bytes) -> Node | None:
        text = name.decode("utf-8", "replace")
        if text not in parts.plugins.names():
            return None
        return Rows(_Consumer(parts.table, parts.plugins, text), _CONSUMER_FILES, mode=0o750)

    return Listing(lambda: map(str.encode, parts.plugins.names()), find)


_README = b"""\
utracefs: tracefs for events that programs declare

  user_events_status    events, and who uses each of them
  dynamic_events        events as declared; append 'u:NAME TYPE FIELD; ...' to make one, '!u:...' to remove it
                        s:[synthetic/]<event> <field>[; <field>] makes a synthetic one
  synthetic_events      events that hist triggers put together; append 'NAME TYPE FIELD; ...', or '!NAME':
                        echo 'slow u64 usec; pid_t pid; char path[]' >> synthetic_events
  available_events      events that can be enabled
  set_event             enabled events; write SYS:EV, SYS:* or !SYS:EV
  standing_events       globs of events to enable, also of events that do not exist yet
  standing_filters      lines GLOB FILTER and, in standing_triggers, GLOB TRIGGER: for events that come later
  events/SYS/EV/        enable  filter  format  hist  id  inject  stats  trigger
  events/SYS/EV/filter  what to record: status >= 500 && path ~ "/api/*"; 0 records all again
  events/SYS/EV/trigger what happens when it fires: append 'traceoff if FIELD == 5', '!traceoff' removes it
  events/SYS/EV/hist    what its hist triggers counted: append 'hist:keys=FIELD:vals=FIELD' to trigger
     a hist trigger     hist:keys=<field1[,field2,...]>
                        [:<var1>=<field|var_ref|numeric_literal>[,<var2>=...]]
                        [:values=<field1[,field2,...]>][:sort=<field1[,field2,...]>][:size=#entries]
                        [:name=NAME][:pause][:continue][:clear][:nohitcount]
                        [:<handler>.<action>] [if <filter>]
     its fields         also common_timestamp, common_cpu; with .hex .execname .syscall .log2 .buckets=size
                        .usecs .percent .graph; in assignments + - * / and $variables
     handlers           onmatch(matching.event)  onmax(var)  onchange(var)
     actions            trace(<synthetic_event>,param list)  save(field,...)  snapshot()
  events/SYS/enable     all events of a system; events/enable: all events
  trace                 what was recorded; truncate to clear
  trace_pipe            the same, consumed as it is read, waiting for more
  per_cpu/cpuN/         the same for one cpu; trace_pipe_raw in binary, trace_raw leaves it there; stats
  tracing_on            0 stops recording, anything else starts it
  snapshot              1 swaps the buffer with a spare one, which this file shows; 0 frees it, 2 clears it
  trace_marker          write a line into the trace; trace_marker_raw: a u32 and bytes
  trace_clock           the clock of the time stamps; writing clears the trace
  buffer_size_kb        KiB of buffer for each cpu
  trace_options         how text looks and what is recorded; each is a file in options/, too
  set_event_pid         thread ids to record, nobody else's; option event-fork: their children, too
  set_event_notrace_pid thread ids not to record
  buffer_percent        how full a cpu's buffer is before poll says so
  saved_cmdlines        names of threads that wrote; saved_tgids: their processes, with the option record-tgid
  error_log             why the last commands were refused, with a mark under the place
  instances/            mkdir makes another ring buffer with switches of its own, rmdir removes it
  refused_events        registrations that were refused, and why: CLOCK_MONOTONIC NAME: PROGRAM-PID ...
  event_counts          records, bytes and losses by event and process, while it is open: write globs, read
  daemon_stats          what the daemon holds for its clients; faults: mistakes of its own, the log has them
  consumers/NAME/       plug-ins: set_event names the events whose records they get, report is their own text
"""


@attrs.frozen
class Parts:
    """The objects behind the top directory."""

    table: EventTable
    instances: Instances
    """The top instance is the directory itself, the others are below instances/."""
    plugins: Plugins
    comms: CommTable
    stats_text: Callable[[], bytes]
    """The text of `daemon_stats`: resources held, and errors."""
    counters: EventCounters = attrs.field(init=False)
    """The consumers that count records by event and process."""

    @counters.default
    def _counters(self) -> EventCounters:
        return EventCounters(self.table, self.comms)


def _available_events(parts: Parts) -> bytes:
    return b"".join(b"%s\n" % event.full_name for event in reversed(parts.table.events()))


def _refuse_data(parts: Parts, data: bytes, peer: Peer) -> None:
    raise TraceError(
        errno.EPERM,
        "records and registrations go to the socket user_events_data in the same directory as this one"
        " (utracefs.event)",
    )


def _store_dynamic(parts: Parts, data: bytes, peer: Peer) -> int:
    with _synthetic_errors_logged(parts):
        return dynamic_events.write(parts.table, data, privileged=peer.privileged)


def _store_synthetic(parts: Parts, data: bytes, peer: Peer) -> int:
    with _synthetic_errors_logged(parts):
        return dynamic_events.write_synthetic(parts.table, data, privileged=peer.privileged)


@contextmanager
def _synthetic_errors_logged(parts: Parts) -> Iterator[None]:
    try:
        yield
    except HistError as error:
        parts.instances.top.error_log.add_all("synthetic_events", error)
        raise


def _want_counts(counts: EventCounts, data: bytes, peer: Peer) -> int:
    word, used = first_word(data)
    if word:
        counts.want(word)
    return used


_COUNTS: Row[EventCounts] = Row(b"event_counts", EventCounts.text, _want_counts)


class _OpenCounts(OpenText):
    """Not in the kernel: counts the events whose globs are written to it, while it is open."""

    def __init__(self, counters: EventCounters, flags: int, peer: Peer) -> None:
        self._counts = counters.open()
        super().__init__(FileNode(_COUNTS, self._counts), flags, peer)

    def _close(self) -> None:
        self._counts.close()


_TOP_FILES: RowTable[Parts] = row_table(
    Row(b"README", lambda parts: _README),
    Row(b"available_events", _available_events),
    Row(b"daemon_stats", lambda parts: parts.stats_text()),
    Row(
        b"dynamic_events",
        lambda parts: dynamic_events.text(parts.table),
        _store_dynamic,
        lambda parts, peer: dynamic_events.truncate(parts.table, privileged=peer.privileged),
    ),
    Row(b"event_counts", opener=lambda parts, flags, peer: _OpenCounts(parts.counters, flags, peer)),
    Row(b"printk_formats", lambda parts: b""),
    Row(b"refused_events", lambda parts: b"".join(parts.table.refused.values())),
    Row(b"saved_cmdlines", lambda parts: parts.comms.saved_cmdlines_text()),
    Row(
        b"saved_cmdlines_size",
        lambda parts: b"%d\n" % parts.comms.capacity,
        lambda parts, data, peer: parts.comms.set_capacity(values.unsigned_decimal(data)),
    ),
    Row(b"saved_tgids", lambda parts: parts.comms.saved_tgids_text()),
    Row(
        b"synthetic_events",
        lambda parts: dynamic_events.synthetic_text(parts.table),
        _store_synthetic,
        lambda parts, peer: dynamic_events.truncate_synthetic(parts.table, privileged=peer.privileged),
    ),
    Row(b"user_events_data", None, _refuse_data, mode=READ_WRITE),
    Row(b"user_events_status", lambda parts: parts.table.status_text()),
)


class _RemoveOnClose(OpenFile):
    """Not in the kernel: opening this file for writing makes the instance end with the last open file in it,
    and so with its recorder. If that wrote 1, it waits for the recorder after a restart of the daemon."""

    def __init__(self, instance: Instance, flags: int) -> None:
        super().__init__(flags)
        self._settings = instance.settings
        if self.writable:
            self._settings.remove_on_close = True

    def _write(self, data: bytes) -> int:
        self._settings.owner_returns = values.flag(data)
        return len(data)


class InstanceDirectory(Rows[Instance]):
    """The directory of any instance; the top directory adds to it."""

    files = INSTANCE_FILES

    def __init__(self, instance: Instance, mode: int = 0o750) -> None:
        super().__init__(
            instance,
            self.files,
            mode=mode,
            directories=(
                (b"events", EventsDirectory),
                (b"options", options_directory),
                (b"per_cpu", per_cpu_directory),
            ),
        )
        self.instance = instance


class FurtherInstanceDirectory(InstanceDirectory):
    """A named instance, which may remove itself (`remove_on_close`)."""

    files = row_table(
        Row(b"remove_on_close", opener=lambda i, flags, peer: _RemoveOnClose(i, flags), mode=WRITE_ONLY),
        *INSTANCE_FILES.values(),
    )


class TopDirectory(InstanceDirectory):
    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.instances.top, 0o700)
        self._own = Rows(
            parts,
            _TOP_FILES,
            directories=(
                (b"consumers", _consumers_directory),
                (b"instances", lambda parts: InstancesDirectory(parts.instances)),
            ),
        )

    def lookup(self, name: bytes) -> Node | None:
        return self._own.lookup(name) or super().lookup(name)

    def names(self) -> Iterator[tuple[bytes, str]]:
        yield from self._own.names()
        yield from super().names()


class InstancesDirectory(Listing):
    """`instances/`: a directory for each instance with a name."""

    def __init__(self, instances: Instances) -> None:
        super().__init__(instances.names, self._find_instance)
        self.instances = instances

    def _find_instance(self, name: bytes) -> Node | None:
        instance = self.instances.get(name)
        return None if instance is None else FurtherInstanceDirectory(instance)
