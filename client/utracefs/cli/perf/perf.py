"""`utracefs perf`: count and sample events like perf, with its options (status bit 1).

A perf event belongs to one existing event. Events that a command registers while it runs are opened when they
are found; their records of up to LOOK_S before that are not counted, and the commands say so. All continue
after a restart of the daemon, and report missing records (attached.py). Without a daemon a COMMAND gets one
for as long as it runs, as for `utracefs record`.
"""

import contextlib
import math
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, Failure, Group
from utracefs.cli.common import (
    directory_option,
    duration_option,
    echo,
    echo_json,
    json_option,
    seconds_option,
    tell,
    with_options,
)
from utracefs.cli.completion import complete_command
from utracefs.cli.event_options import Wanted, WantedCommand, wanted_options
from utracefs.cli.losses import no_room
from utracefs.cli.perf.attached import LOOK_S, Attached, Opened
from utracefs.cli.perf.sampling import Line, PerfRecorder, PerfTop, PerfTrace, Written
from utracefs.cli.run.choose_daemon import running_or_own
from utracefs.cli.run.run_loop import run_steps, signals_blocked
from utracefs.cli.run.traced_command import Launch, launch_options, launched
from utracefs.cli.tables import counted, printable, table_lines
from utracefs.cli.terminal import own, quit_key
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName
from utracefs.tree.tracefs import PerfAttr
from utracefs_protocol.limits import MAX_PERF_DATA_PAGES
from utracefs_protocol.pages.perf_ring import MAX_SAMPLE_FREQ
from utracefs_protocol.text import bytes_of, text_of

DATA_FILE = "perf.data"

_COMMAND_SETTINGS = {**COMMAND_SETTINGS, "allow_interspersed_args": False}


@click.group(
    cls=Group,
    elsewhere={
        "list": "`utracefs list`",
        "report": "`perf report -i FILE` of perf itself, or `utracefs perf script`",
    },
    context_settings=COMMAND_SETTINGS,
)
def perf() -> None:
    """Count and sample events, like perf.

    Records of an event that COMMAND declares are missing for some 20 ms until it is found; `utracefs record`
    has them all, and for a declared event (`utracefs reg`) none are missing.
    """


@attrs.frozen
class _Common:
    """Options of the commands that attach."""

    directory: str | None
    wanted: tuple[Wanted, ...]
    pid: int | None
    cpu: int | None
    duration_s: float | None
    launch: Launch
    command: tuple[str, ...]

    def attr(self, **more: Any) -> PerfAttr:
        return PerfAttr(
            pid=-1 if self.pid is None else self.pid, cpu=-1 if self.cpu is None else self.cpu, **more
        )


def _common_options(function: Callable[..., int]) -> Callable[..., int]:
    """The function gets `common`."""

    def run(**options: Any) -> int:
        common = {field.name: options.pop(field.name) for field in attrs.fields(_Common)}
        common["wanted"] = common["wanted"] or (Wanted(ALL_USER_EVENTS),)
        return function(common=_Common(**common), **options)

    return with_options(
        function,
        run,
        click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command),
        launch_options,
        duration_option("Only for 10 seconds, 5m, 2h, ..."),
        click.option(
            "-a",
            "--all-cpus",
            is_flag=True,
            expose_value=False,
            help="Records of all processes and cpus; that is so anyway without -p and -C.",
        ),
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
        wanted_options(
            "Events: SYSTEM:NAME, NAME, or globs; those registered later, too. [default: all]", triggers=False
        ),
        directory_option,
    )


def _sampling_options(function: Callable[..., int]) -> Callable[..., int]:
    """The function gets `sampling`: members of a PerfAttr."""

    def run(*, period: int | None, freq: int | None, pages: int | None, **options: Any) -> int:
        if period and freq:
            raise click.UsageError("-c and -F exclude each other")
        if pages and pages & (pages - 1):
            raise click.UsageError(f"{pages} is not a power of two")
        sampling = {
            "data_pages": pages or 0,
            "sample_freq": freq or 0,
            "sample_period": 0 if freq else period or 1,
        }
        return function(sampling=sampling, **options)

    return with_options(
        function,
        run,
        click.option(
            "-m",
            "--mmap-pages",
            "pages",
            metavar="PAGES",
            type=click.IntRange(min=1, max=MAX_PERF_DATA_PAGES),
            help="Ring of each event with samples, in pages of 4 KiB. [default: by memory and events]",
        ),
        click.option(
            "-F",
            "--freq",
            metavar="HZ",
            type=click.IntRange(min=1, max=MAX_SAMPLE_FREQ),
            help="Approximate number of samples per second.",
        ),
        click.option(
            "-c",
            "--count",
            "period",
            metavar="N",
            type=click.IntRange(min=1, max=(1 << 63) - 1),
            help="Take a sample of every Nth record. [default: 1]",
        ),
    )


_Run: TypeAlias = Callable[..., int]
"""run_steps with all arguments but `step` and `dump`."""


@contextlib.contextmanager
def _attached(
    common: _Common,
    attr: PerfAttr,
    missed: Callable[[Opened, int], None] = lambda _one, _count: None,
    what: str = "",
) -> Iterator[tuple[Attached, _Run]]:
    """The selected events, not opened yet; how to run the command meanwhile. missed, what: for Attached."""
    with (
        signals_blocked(alone=not common.command) as blocked,
        running_or_own(common.directory, has_command=bool(common.command)) as (tree, _own),
        launched(common.launch, tree, common.command) as surroundings,
        Attached(tree, common.wanted, attr, missed=missed, what=what) as attached,
    ):
        yield (
            attached,
            partial(
                run_steps,
                common.command,
                blocked=blocked,
                surroundings=surroundings,
                duration_s=common.duration_s,
            ),
        )


def _sampled(
    attached: Attached, run: _Run, step: Callable[[], float | None], dump: Callable[[], None] | None = None
) -> int:
    """Run to the end; returns the status. The caller drains the rings."""
    step()
    status = run(step, dump=dump)
    attached.look()
    attached.disable()
    return status


# perf stat.


@perf.command(
    cls=WantedCommand,
    short_help="Count events of a command, or until Ctrl-C.",
    context_settings=_COMMAND_SETTINGS,
)
@_common_options
@click.option(
    "-I",
    "--interval-print",
    "interval_ms",
    type=click.IntRange(min=10),
    help="Print the counts of each interval of so many milliseconds.",
)
@click.option(
    "-r",
    "--repeat",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    help="Run COMMAND N times; print mean and deviation.",
)
@json_option
def stat(common: _Common, interval_ms: int | None, repeat: int, as_json: bool) -> int:
    """Count the records of events while COMMAND runs, or until Ctrl-C.

    Records of an event that COMMAND declares are missing for some 20 ms until it is found; `utracefs record`
    has them all.
    """
    if repeat > 1 and not common.command:
        raise click.UsageError("-r goes with a COMMAND")
    if as_json and (repeat > 1 or interval_ms):
        raise click.UsageError("--json goes with neither -r nor -I")
    with _attached(common, common.attr()) as (attached, run):
        attached.look()
        runs: list[dict[EventName, int]] = []
        times: list[float] = []
        status = 0
        counter = _Counter(attached, interval_ms)
        for _ in range(repeat):
            before = attached.counts() if runs else {}  # losses are counted from the opening on, too
            began = time.monotonic()
            status = run(counter.step)
            times.append(time.monotonic() - began)
            attached.look()
            after = attached.counts()
            runs.append({event: count - before.get(event, 0) for event, count in after.items()})
            if status >= 128:  # a signal: Ctrl-C ends all runs
                break
        counter.print()
        lost = attached.lost()
        missing, unnoticed = attached.missing(), attached.unnoticed()
        status = attached.finish(status)
    events = runs[-1]
    if as_json:
        rows = [
            {"system": event.system, "name": event.name, "records": count, "lost": lost[event]}
            for event, count in events.items()
        ]
        echo_json({"seconds": round(times[-1], 6), "events": rows})
        return status
    if not attached.has_opened:
        tell("no event was opened")
    if lost:
        names = ", ".join(f"{count} of {event}" for event, count in lost.items())
        tell(f"{lost.total()} records lost, which are not counted: {names}")
    if interval_ms is None:
        for event in events:
            mean, deviation = _mean([run.get(event, 0) for run in runs])
            echo(f"{mean:>20,.{0 if mean == int(mean) else 2}f}  {event}{deviation}")
        for event in unnoticed:
            echo(f"{'<not counted>':>20}  {event}")
        for pattern in missing:
            echo(f"{'<no such event>':>20}  {pattern}")
        mean, deviation = _mean(times)
        click.echo(f"\n{mean:>20.6f}  seconds{deviation}")
    return status


def _mean(values: Sequence[float]) -> tuple[float, str]:
    """The mean, and the text of its standard error in percent, empty for one value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, ""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return mean, f"  ( +- {error / mean if mean else 0:.2%} )"


class _Counter:
    """Updates the counts of `perf stat`, and prints those of each interval."""

    def __init__(self, attached: Attached, interval_ms: int | None) -> None:
        self._attached = attached
        self._interval_s = math.inf if interval_ms is None else interval_ms / 1000
        self._began = self._printed = time.monotonic()
        self._before = attached.counts()

    def step(self) -> float:
        """Read counts from time to time: those not read are lost with a daemon that ends."""
        self._attached.look()
        now = time.monotonic()
        if now - self._printed >= self._interval_s:
            self.print()
        else:
            self._attached.counts()
        return max(0.0, min(LOOK_S, self._printed + self._interval_s - time.monotonic()))

    def print(self) -> None:
        """A line per event; none without -I."""
        if self._interval_s == math.inf:
            return
        counts = self._attached.counts()
        self._printed = time.monotonic()
        for event, count in counts.items():
            echo(f"{self._printed - self._began:>12.6f} {count - self._before.get(event, 0):>18,}  {event}")
        sys.stdout.flush()
        self._before = counts


# perf record, perf script.


@perf.command(
    cls=WantedCommand, short_help="Sample events into a perf.data.", context_settings=_COMMAND_SETTINGS
)
@_common_options
@_sampling_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default=DATA_FILE,
    show_default=True,
    type=click.Path(readable=False),
    help="Output file; an existing one is renamed to FILE.old.",
)
def record(common: _Common, sampling: dict[str, int], output: str) -> int:
    """Sample events while COMMAND runs, or until Ctrl-C, into a file for perf script and perf report.

    Records of an event that COMMAND declares are missing for some 20 ms until it is found; `utracefs record`
    has them all. If no event of -e is found FILE is not written. At SIGUSR2 write the samples so far to
    FILE.YYYYMMDDhhmmssNN.
    """
    if output == "-":
        raise click.UsageError("-o needs a file; `utracefs perf trace` prints samples")
    attr = common.attr(**sampling)
    with _attached(common, attr, lambda one, count: recorder.missed(one, count), output) as (attached, run):
        with PerfRecorder(attached, output, attr) as recorder:

            def dump() -> None:
                _tell_written(attached, recorder.dump(sys.argv))

            status = _sampled(attached, run, recorder.step, dump)
            recorder.drain()
            # Then an existing recording is worth more than ours.
            is_useless = attached.has_failed and not attached.has_opened
            written = None if is_useless else recorder.finish(sys.argv)
        status = attached.finish(status)
    if written is None:
        tell(f"no event was opened; {output} is not written")
        return status
    _tell_written(attached, written)
    if written.error is not None:
        raise no_room(output, written.error, written.no_room, "samples", status or 1)
    return status


def _tell_written(attached: Attached, written: Written) -> None:
    tell(f"{_summary(attached, written.samples, written.lost)}; {written.name} has {written.size} bytes")


def _summary(attached: Attached, samples: int, lost: int) -> str:
    return f"{counted(samples, 'sample')}, {_lost_text(attached, lost)}"


def _lost_text(attached: Attached, lost: int) -> str:
    """Records lost of opened events. Of one that was found late others are missing, an unknown number."""
    if not attached.has_opened:
        return "no event was opened"
    return f"{lost or ('nothing else' if attached.is_incomplete else 'nothing')} lost"


@perf.command(short_help="Print the samples of a perf.data.", context_settings=COMMAND_SETTINGS)
@click.option(
    "-i",
    "--input",
    "path",
    metavar="FILE",
    default=DATA_FILE,
    show_default=True,
    type=click.Path(),
    help="A file of `utracefs perf record` or `perf record`.",
)
@click.option("--ns", is_flag=True, help="Times with nanoseconds.")
@click.option("--recover", is_flag=True, help="Read as much as possible of a killed recording.")
def script(path: str, ns: bool, recover: bool) -> int:
    """Print the samples of a recording, in the order of time.

    A line as perf script has it: comm, process/thread, cpu, time, event and fields.
    """
    unknown = 0
    with PerfDataReader(path, recover=recover) as reader:
        samples = reader.samples()
        try:
            lines = {
                number: Line(str(EventName(reader.systems[number], text_of(event.name))), event, ns=ns)
                for number, event in reader.formats.items()
            }
            for sample in samples:
                line = lines.get(int.from_bytes(sample.raw[:2], "little"))
                if line is None and recover:
                    unknown += 1
                    continue
                if line is None:
                    raise Failure(path, "is damaged: it has a record of an event without a format")
                comm = samples.comms.get(sample.tid, f":{sample.tid}")
                sys.stdout.buffer.write(bytes_of(line.text(sample, comm) + "\n"))
        except ValueError as error:
            raise Failure(path, f"is damaged: {error}") from None
        sys.stdout.buffer.flush()
    if samples.lost:
        tell(f"{samples.lost} samples were lost")
    if unknown:
        tell(f"{unknown} samples are of events whose formats were not written yet")
    if samples.gaps:
        tell("the daemon was restarted meanwhile; records of that time are missing")
    return 0


# perf trace, perf top.


@perf.command(
    cls=WantedCommand, short_help="Print samples as they are taken.", context_settings=_COMMAND_SETTINGS
)
@_common_options
@_sampling_options
def trace(common: _Common, sampling: dict[str, int]) -> int:
    """Sample events while COMMAND runs, or until Ctrl-C, and print the samples as they are emitted.

    A line as perf script has it: comm, process/thread, cpu, time, event and fields.
    """
    with _attached(common, common.attr(**sampling), what="perf trace") as (attached, run):
        printer = PerfTrace(attached)
        status = _sampled(attached, run, printer.step)
        printer.print()
        summary = _summary(attached, printer.samples, printer.lost)
        status = attached.finish(status)
    tell(summary)
    return status


@perf.command(
    cls=WantedCommand,
    short_help="Show who emits most, renewed every 2 seconds.",
    context_settings=_COMMAND_SETTINGS,
)
@_common_options
@_sampling_options
@seconds_option("--delay", "delay_s", "Time between updates. [default: 2s]", letter="-d")
def top(common: _Common, sampling: dict[str, int], delay_s: float | None) -> int:
    """Count samples by event and process while COMMAND runs, or until q or Ctrl-C, most first."""
    is_live = sys.stdout.isatty() and not common.command
    with _attached(common, common.attr(**sampling)) as (attached, run), quit_key(wanted=is_live) as quitting:
        view = _TopView(attached, delay_s or 2.0)
        status = _sampled(attached, run, lambda: None if quitting(0) else view.step())
        view.finish()
        return attached.finish(status)


class _TopView:
    """Prints the table of `perf top` when it is due; on a terminal over the previous one."""

    def __init__(self, attached: Attached, delay_s: float) -> None:
        self._attached = attached
        self._counted = PerfTop(attached)
        self._delay_s = delay_s
        self._shown = time.monotonic()

    def step(self) -> float:
        wait_s = self._counted.step()
        if time.monotonic() - self._shown >= self._delay_s:
            self._show()
        return wait_s

    def finish(self) -> None:
        self._counted.step()
        self._show()

    def _show(self) -> None:
        now = time.monotonic()
        rows = self._counted.rows(max(now - self._shown, 1e-6))
        self._shown = now
        is_terminal = sys.stdout.isatty()
        if is_terminal:
            rows = rows[: max(2, shutil.get_terminal_size().lines - 2)]
            own(sys.stdout).write("\033[H\033[2J")  # home, clear: ECMA-48 CUP and ED
        for line in table_lines([[printable(cell) for cell in row] for row in rows], left={3, 4}):
            echo(line)
        echo(_lost_text(self._attached, self._counted.lost) + ("" if is_terminal else os.linesep))
        sys.stdout.flush()
