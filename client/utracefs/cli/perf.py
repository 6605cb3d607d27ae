"""`utracefs perf stat` and `utracefs perf record`: count and sample events (status bit 1).

A perf event belongs to one event that exists. Events that a command registers while it runs are looked for
and opened as they appear; what such an event emits in the LOOK_S before that is not counted.
"""

import contextlib
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable, Sequence

import attrs
import click

from utracefs.cli.common import (
    COMMAND_SETTINGS,
    available_events,
    connect,
    directory_option,
    duration_option,
    echo,
    echo_json,
    events_option,
    json_option,
)
from utracefs.cli.launching import Launch, launch_options, launched
from utracefs.cli.running import run_steps, signals_blocked
from utracefs.event_names import ALL_USER_EVENTS, EventName, is_glob, select
from utracefs.tracefs import PerfAttr, Tracefs
from utracefs_protocol._event_printer import EventPrinter
from utracefs_protocol.event_format import parse_format
from utracefs_protocol.perf_ring import Lost, PerfRingReader, Sample
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["perf", "record", "stat"]

LOOK_S = 0.02
READ_S = 0.02


@click.group(context_settings=COMMAND_SETTINGS)
def perf() -> None:
    """Count and sample events, as perf does."""


def _common_options(function: Callable[..., int]) -> Callable[..., int]:
    for option in (
        click.argument("command", nargs=-1, type=click.UNPROCESSED),
        launch_options,
        duration_option("Only for S seconds."),
        click.option(
            "-C", "--cpu", metavar="CPU", type=click.IntRange(min=0), help="Only records of this cpu."
        ),
        click.option(
            "-p",
            "--pid",
            metavar="PID",
            type=click.IntRange(min=1),
            help="Only records of this process or thread.",
        ),
        events_option("Events: SYSTEM:NAME, NAME, or globs; those registered later, too. [default: all]"),
        directory_option,
    ):
        function = option(function)
    return function


@perf.command(
    short_help="Count events of a command, or until Ctrl-C.",
    context_settings={**COMMAND_SETTINGS, "allow_interspersed_args": False},
)
@_common_options
@json_option
def stat(
    directory: str | None,
    events: tuple[str, ...],
    pid: int | None,
    cpu: int | None,
    duration_s: float | None,
    as_json: bool,
    launch: Launch,
    command: tuple[str, ...],
) -> int:
    """Count the records of events while COMMAND runs, or until Ctrl-C."""
    attr = PerfAttr(pid=-1 if pid is None else pid, cpu=-1 if cpu is None else cpu)
    with (
        connect(directory) as tree,
        signals_blocked() as taken,
        launched(launch, tree, command) as surroundings,
    ):
        opener = _Opener(tree, events, attr)
        opener.look()
        began = time.monotonic()
        status = run_steps(
            command, opener.look, taken=taken, surroundings=surroundings, duration_s=duration_s
        )
        took_s = time.monotonic() - began
        counts = {
            event: struct.unpack("<Q", tree.read(handle, 8)[:8])[0]
            for event, (handle, _) in opener.opened.items()
        }
        missing = opener.missing()
    if as_json:
        echo_json(
            {"seconds": round(took_s, 6), "events": {str(event): count for event, count in counts.items()}}
        )
        return status or int(bool(missing))
    for event, count in counts.items():
        echo(f"{count:>20,}  {event}")
    for pattern in missing:
        echo(f"{'<no such event>':>20}  {pattern}")
    click.echo(f"\n{took_s:>20.6f}  seconds")
    return status or int(bool(missing))


@perf.command(
    short_help="Sample events, and print the samples.",
    context_settings={**COMMAND_SETTINGS, "allow_interspersed_args": False},
)
@_common_options
@click.option(
    "-c",
    "--count",
    "period",
    metavar="N",
    type=click.IntRange(min=1),
    help="A sample every so many records. [default: 1]",
)
@click.option(
    "-F",
    "--freq",
    metavar="HZ",
    type=click.IntRange(min=1, max=100_000),
    help="So many samples a second, about.",
)
@click.option(
    "-m",
    "--mmap-pages",
    "pages",
    metavar="PAGES",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="Ring of each event.",
)
def record(
    directory: str | None,
    events: tuple[str, ...],
    pid: int | None,
    cpu: int | None,
    duration_s: float | None,
    period: int | None,
    freq: int | None,
    pages: int,
    launch: Launch,
    command: tuple[str, ...],
) -> int:
    """Sample events while COMMAND runs, or until Ctrl-C, and print the samples as they come.

    A line as perf script has it: comm, process/thread, cpu, time, event and fields.
    """
    if period and freq:
        raise click.UsageError("-c and -F exclude each other")
    if pages & (pages - 1):
        raise click.UsageError(f"{pages} is not a power of two")
    attr = PerfAttr(
        pid=-1 if pid is None else pid,
        cpu=-1 if cpu is None else cpu,
        data_pages=pages,
        sample_freq=freq or 0,
        sample_period=0 if freq else period or 1,
    )
    with (
        connect(directory) as tree,
        signals_blocked() as taken,
        launched(launch, tree, command) as surroundings,
    ):
        opener = _Opener(tree, events, attr)
        sampler = _Sampler(tree, opener)
        try:
            sampler.step()
            status = run_steps(
                command, sampler.step, taken=taken, surroundings=surroundings, duration_s=duration_s
            )
            sampler.finish()
        finally:
            sampler.close()
        missing = opener.missing()
    for pattern in missing:
        click.echo(f"utracefs: {pattern}: no such event came", err=True)
    samples = "1 sample" if sampler.samples == 1 else f"{sampler.samples} samples"
    click.echo(f"utracefs: {samples}, {sampler.lost or 'nothing'} lost", err=True)
    return status or int(bool(missing))


class _Opener:
    """Opens a perf event for each event that the patterns mean, as they appear."""

    def __init__(self, tree: Tracefs, patterns: Sequence[str], attr: PerfAttr) -> None:
        self._tree = tree
        self._patterns = patterns or (ALL_USER_EVENTS,)
        self._attr = attr
        self.opened: dict[EventName, tuple[int, int | None]] = {}
        """Handle, and descriptor of the ring."""

    def look(self) -> float:
        """Open what is new; seconds until it is worth looking again."""
        for event in select(self._patterns, available_events(self._tree)):
            if event not in self.opened:
                with contextlib.suppress(FileNotFoundError):  # gone again
                    attr = attrs.evolve(self._attr, name=bytes_of(str(event)))
                    self.opened[event] = self._tree.perf_event_open(attr)
        return LOOK_S

    def missing(self) -> list[str]:
        """Patterns that meant no event; a glob may."""
        return [
            pattern
            for pattern in self._patterns
            if not is_glob(pattern) and not select([pattern], self.opened)
        ]


@attrs.frozen
class _Ring:
    """One event's ring, mapped."""

    event: EventName
    handle: int
    mapping: mmap.mmap
    reader: PerfRingReader
    printer: EventPrinter


class _Sampler:
    """Prints what the rings hold, in the order of time within each step."""

    def __init__(self, tree: Tracefs, opener: _Opener) -> None:
        self._tree = tree
        self._opener = opener
        self._rings: dict[EventName, _Ring] = {}
        self._comms: dict[int, str] = {}
        self.samples = 0
        """Printed."""
        self.lost = 0
        """Said to be lost by the rings."""

    def step(self) -> float:
        """Map new rings, print what is there."""
        self._opener.look()
        for event, (handle, fd) in self._opener.opened.items():
            if event not in self._rings and fd is not None:
                self._rings[event] = self._map(event, handle, fd)
        self._print()
        return READ_S

    def finish(self) -> None:
        """Stop sampling, print the rest."""
        for ring in self._rings.values():
            self._tree.perf_ioctl(ring.handle, "DISABLE")
        self._print()

    def close(self) -> None:
        for ring in self._rings.values():
            ring.mapping.close()
        self._rings.clear()

    def _map(self, event: EventName, handle: int, fd: int) -> _Ring:
        try:
            mapping = mmap.mmap(fd, os.fstat(fd).st_size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        text = self._tree.read_file(f"{event.directory}/format")
        return _Ring(event, handle, mapping, PerfRingReader(mapping), EventPrinter(parse_format(text)))

    def _print(self) -> None:
        lines: list[tuple[int, str]] = []
        for ring in self._rings.values():
            last = 0
            for record in ring.reader:
                if isinstance(record, Sample):
                    self.samples += 1
                    last = record.time
                    lines.append((last, self._line(ring, record)))
                elif isinstance(record, Lost):
                    self.lost += record.count
                    lines.append((last, f"{ring.event}: LOST {record.count} SAMPLES"))
        if lines:
            lines.sort(key=lambda line: line[0])
            text = "".join(f"{line}\n" for _, line in lines)
            sys.stdout.buffer.write(bytes_of(text))
            sys.stdout.buffer.flush()

    def _line(self, ring: _Ring, sample: Sample) -> str:
        time_s, rest_ns = divmod(sample.time, 1_000_000_000)
        return (
            f"{self._comm(sample.tid):>16} {sample.pid:>7}/{sample.tid:<7} [{sample.cpu:03d}] "
            f"{time_s:5d}.{rest_ns // 1000:06d}: {ring.event}: {ring.printer.text(sample.raw)}"
        )

    def _comm(self, tid: int) -> str:
        """Looked up once, while the task lives; the saved names of the daemon are for those that are gone."""
        comm = self._comms.get(tid)
        if comm is None:
            try:
                with open(f"/proc/{tid}/comm", "rb") as file:
                    comm = text_of(file.read().rstrip(b"\n"))
            except OSError:
                comm = self._saved(tid)
            self._comms[tid] = comm
        return comm

    def _saved(self, tid: int) -> str:
        for line in text_of(self._tree.read_file("saved_cmdlines")).split("\n"):
            number, _, comm = line.partition(" ")
            if number == str(tid):
                return comm
        return f":{tid}"
