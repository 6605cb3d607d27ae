"""The files of every instance, the top one included: control files, `options/`, `per_cpu/`.

A file is a row: name, mode, and methods of `Instance`. A new file is a new row.
"""

import errno
from collections.abc import Callable
from functools import partial

import attrs

from utracefs_protocol.errors import TraceError
from utracefsd.consumers.ftrace.instance import Instance
from utracefsd.consumers.ftrace.settings import OPTIONS
from utracefsd.consumers.ftrace.standing_files import StandingFile
from utracefsd.machine.peer import Peer
from utracefsd.tree import values
from utracefsd.tree.nodes import (
    MARKER,
    READ_ONLY,
    READ_WRITE,
    FileNode,
    Listing,
    Node,
    OpenFile,
    Row,
    Rows,
    RowTable,
    row_table,
)
from utracefsd.tree.trace_files import RawPipe, RawTrace, SnapshotFile, Trace, TracePipe

_MAX_TRACER_NAME = 100


def _store_current_tracer(instance: Instance, data: bytes, peer: Peer) -> None:
    """Only nop exists. As `tracing_set_tracer` does, the real buffer is made before the name is looked at."""
    instance.store.expand()
    name = data[:_MAX_TRACER_NAME].split(b"\0", 1)[0].rstrip()
    if name != b"nop":
        raise TraceError(errno.EINVAL, "there is no such tracer; available_tracers lists them")


def _store_tracing_on(instance: Instance, data: bytes, peer: Peer) -> None:
    instance.tracing_on = bool(values.unsigned_decimal(data))


def _store_cpumask(instance: Instance, data: bytes, peer: Peer) -> None:
    instance.cpumask = values.cpumask(data, instance.nr_cpus)


def _store_buffer_percent(instance: Instance, data: bytes, peer: Peer) -> None:
    percent = values.unsigned_decimal(data)
    if percent > 100:
        raise TraceError(errno.EINVAL, f"{percent} is not a percentage")
    instance.settings.buffer_percent = percent


def _store_trace_options(instance: Instance, data: bytes, peer: Peer) -> None:
    instance.set_option(*instance.options.parse(values.word(data)))


def _ignore(instance: Instance, data: bytes, peer: Peer) -> None:
    """Accepts any write and does nothing."""


def _pid_file(name: bytes, *, notrace: bool) -> Row[Instance]:
    return Row(
        name,
        lambda i: i.pids.text(notrace=notrace),
        lambda i, data, peer: i.pids.add(values.pids(data), notrace=notrace),
        lambda i, peer: i.pids.clear(notrace=notrace),
    )


def _standing_file(name: bytes, of: Callable[[Instance], StandingFile]) -> Row[Instance]:
    return Row(
        name,
        lambda i: of(i).text(),
        lambda i, data, peer: of(i).store(values.command_line(data)),
        lambda i, peer: of(i).clear(),
    )


INSTANCE_FILES: RowTable[Instance] = row_table(
    Row(b"available_tracers", lambda i: b"nop\n"),
    Row(b"buffer_percent", lambda i: b"%d\n" % i.settings.buffer_percent, _store_buffer_percent),
    Row(
        b"buffer_size_kb",
        lambda i: i.store.size_text(),
        lambda i, data, peer: i.store.resize(values.unsigned_decimal(data)),
    ),
    Row(
        b"buffer_subbuf_size_kb",
        lambda i: b"%d\n" % (i.buffer.subbuf_size // 1024),
        lambda i, data, peer: i.store.set_subbuf_size(values.unsigned_decimal(data)),
    ),
    Row(b"buffer_total_size_kb", lambda i: i.store.total_size_text()),
    Row(b"current_tracer", lambda i: b"nop\n", _store_current_tracer),
    Row(b"error_log", lambda i: i.error_log.text(), _ignore, lambda i, peer: i.error_log.clear()),
    Row(b"free_buffer", None, _ignore, release=lambda i: i.free_buffer()),
    Row(
        b"set_event",
        lambda i: i.events.set_event_text(),
        lambda i, data, peer: i.set_event(data),
        lambda i, peer: i.events.disable_all(),
    ),
    _pid_file(b"set_event_notrace_pid", notrace=True),
    _pid_file(b"set_event_pid", notrace=False),
    Row(b"snapshot", opener=lambda i, flags, peer: SnapshotFile(i, -1, flags)),
    Row(
        b"standing_events",
        lambda i: i.standing_events.text(),
        lambda i, data, peer: i.set_standing(data),
        lambda i, peer: i.standing_events.clear(),
    ),
    _standing_file(b"standing_filters", lambda i: i.standing_filters),
    _standing_file(b"standing_triggers", lambda i: i.standing_triggers),
    Row(b"timestamp_mode", lambda i: b"[delta] absolute\n"),
    Row(b"trace", opener=lambda i, flags, peer: Trace(i, -1, flags)),
    Row(b"trace_clock", lambda i: i.clock_text(), lambda i, data, peer: i.set_clock(values.word(data))),
    Row(
        b"trace_marker", opener=lambda i, flags, peer: _MarkerFile(i.markers.write, peer, flags), mode=MARKER
    ),
    Row(
        b"trace_marker_raw",
        opener=lambda i, flags, peer: _MarkerFile(i.markers.write_raw, peer, flags),
        mode=MARKER,
    ),
    Row(b"trace_options", lambda i: i.options.text(), _store_trace_options),
    Row(b"trace_pipe", opener=lambda i, flags, peer: TracePipe(i, -1, flags), mode=READ_ONLY),
    Row(b"tracing_cpumask", lambda i: values.cpumask_text(i.cpumask, i.nr_cpus) + b"\n", _store_cpumask),
    Row(b"tracing_on", lambda i: b"%d\n" % i.tracing_on, _store_tracing_on),
)


class _MarkerFile(OpenFile):
    """trace_marker and trace_marker_raw: a stream that is only written."""

    def __init__(self, write_marker: Callable[[bytes, int, int | None], int], peer: Peer, flags: int) -> None:
        super().__init__(flags)
        self._write_marker = write_marker
        self._pid = peer.pid
        self._cpu: int | None = None

    def written_by(self, pid: int, cpu: int | None) -> None:
        self._pid, self._cpu = pid, cpu

    def _write(self, data: bytes) -> int:
        return self._write_marker(data, self._pid, self._cpu)


def options_directory(instance: Instance) -> Listing:
    """`options/`: a file for each option."""

    def find(name: bytes) -> Node | None:
        text = name.decode("ascii", "replace")
        if text not in OPTIONS or text not in instance.options.files():
            return None
        return FileNode(_OPTION_FILE, _OptionContext(instance, text))

    return Listing(lambda: map(str.encode, instance.options.files()), find, kind="f")


@attrs.frozen
class _OptionContext:
    instance: Instance
    name: str

    def text(self) -> bytes:
        return b"%d\n" % self.instance.options[self.name]

    def store(self, data: bytes) -> None:
        value = values.flag(data)
        if value != self.instance.options[self.name]:
            self.instance.set_option(self.name, value)


_OPTION_FILE: Row[_OptionContext] = Row(
    b"option", _OptionContext.text, lambda option, data, peer: option.store(data), holds_instance=False
)


@attrs.frozen
class _Cpu:
    instance: Instance
    number: int


def _reader(name: bytes, make: Callable[[Instance, int, int], OpenFile], mode: int = READ_ONLY) -> Row[_Cpu]:
    return Row(name, opener=lambda cpu, flags, peer: make(cpu.instance, cpu.number, flags), mode=mode)


_CPU_FILES: RowTable[_Cpu] = row_table(
    Row(
        b"buffer_size_kb",
        lambda cpu: b"%d\n" % cpu.instance.buffer.size_kb(cpu.number),
        lambda cpu, data, peer: cpu.instance.store.resize(values.unsigned_decimal(data), cpu.number),
    ),
    _reader(b"snapshot", SnapshotFile, READ_WRITE),
    _reader(b"snapshot_raw", partial(RawPipe, snapshot=True)),
    Row(b"stats", lambda cpu: cpu.instance.stats_text(cpu.number)),
    _reader(b"trace", Trace, READ_WRITE),
    _reader(b"trace_pipe", TracePipe),
    _reader(b"trace_pipe_raw", RawPipe),
    _reader(b"trace_raw", RawTrace),
)


def per_cpu_directory(instance: Instance) -> Listing:
    """`per_cpu/`: a directory for each possible cpu."""

    def find(name: bytes) -> Node | None:
        digits = name.removeprefix(b"cpu")
        if not digits.isdigit() or name != b"cpu%d" % int(digits[:9]) or int(digits) >= instance.nr_cpus:
            return None
        return Rows(_Cpu(instance, int(digits)), _CPU_FILES, mode=0o750)

    return Listing(lambda: [b"cpu%d" % number for number in range(instance.nr_cpus)], find)
