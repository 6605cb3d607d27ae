"""`utracefs report`: print a trace.dat, line by line as `trace-cmd report` does."""

import decimal
import sys
from collections.abc import Iterable
from itertools import islice
from typing import IO, TYPE_CHECKING

import click

from utracefs.cli import Failure
from utracefs.cli.common import COMMAND_SETTINGS, events_option, json_option, seconds_option
from utracefs.event_names import EventName, select
from utracefs.trace_dat import TraceDatReader
from utracefs.trace_report import ReportOptions, json_lines, report_text
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["CpuList", "Time", "report"]

_LINES_AT_ONCE = 2000


if TYPE_CHECKING:
    _CpusType = click.ParamType[frozenset[int]]
    _TimeType = click.ParamType[int]
else:
    _CpusType = _TimeType = click.ParamType


class CpuList(_CpusType):
    """`0,2-5`, as everywhere in Linux."""

    name = "cpus"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[int]:
        cpus: set[int] = set()
        for part in str(value).split(","):
            first, _, last = part.partition("-")
            if not first.isdigit() or not (last or first).isdigit() or int(last or first) < int(first):
                self.fail(f"{value!r} is not a list of cpus such as 0,2-5", param, ctx)
            cpus.update(range(int(first), min(int(last or first), 1 << 16) + 1))
        return frozenset(cpus)


class Time(_TimeType):
    """Seconds of the recording's clock, as `utracefs report -t` prints them; in nanoseconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            seconds = decimal.Decimal(str(value))
            if not 0 <= seconds < 1 << 34:  # 2^64 ns
                raise decimal.InvalidOperation
        except decimal.InvalidOperation:
            self.fail(f"{value!r} is not a time in seconds", param, ctx)
        return int(seconds * 10**9)


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("file", default="trace.dat", type=click.Path())
@click.option("-i", "--input", "also_file", metavar="FILE", help="The same as FILE, as trace-cmd has it.")
@click.option("-t", "--timestamps", "full_ns", is_flag=True, help="All nine digits of the time.")
@click.option("--cpu", "cpus", metavar="LIST", type=CpuList(), help="Only these cpus: 0,2-5.")
@click.option("--since", "since_ns", metavar="S", type=Time(), help="From this time on (see -t).")
@click.option("--until", "until_ns", metavar="S", type=Time(), help="Before this time.")
@seconds_option("--last", "last_s", "The last S seconds.")
@events_option("Only these events: SYSTEM:NAME, NAME, or globs.")
@click.option("--stat", "show_stat", is_flag=True, help="What each cpu's buffer counted, instead of records.")
@json_option
def report(
    file: str,
    also_file: str | None,
    full_ns: bool,
    cpus: frozenset[int] | None,
    since_ns: int | None,
    until_ns: int | None,
    last_s: float | None,
    events: tuple[str, ...],
    show_stat: bool,
    as_json: bool,
) -> None:
    """Print the records of FILE (trace.dat), in the order of time.

    With --json one object a line: ts_ns, cpu, pid, comm, system, event, fields.
    """
    if last_s is not None and (since_ns is not None or until_ns is not None):
        raise click.UsageError("--last goes without --since and --until")
    path = also_file or file
    with TraceDatReader(path) as reader:
        if show_stat:
            _write(line for text in reader.cpu_stats for line in text.splitlines())
            return
        if last_s is not None:
            since_ns = max(0, reader.last_ns() - int(last_s * 10**9))
        options = ReportOptions(full_ns, cpus, events, since_ns, until_ns)
        there = [
            EventName(reader.systems.get(number, ""), text_of(event.name))
            for number, event in reader.formats.items()
        ]
        for pattern in events:
            if not select([pattern], there):
                raise Failure(pattern, f"no such event in {path}")
        try:
            if as_json:
                _write(json_lines(reader, options))
            else:
                out = sys.stdout.buffer
                for piece in report_text(reader, options):
                    out.write(piece)
                    out.flush()
        except ValueError as error:
            raise Failure(path, f"broken: {error}") from None


def _write(lines: Iterable[str]) -> None:
    """Many lines at a time; a ValueError comes after all lines before it are written."""
    lines = iter(lines)
    out = sys.stdout.buffer
    pending: list[str] = []
    try:
        while True:
            for line in islice(lines, _LINES_AT_ONCE):
                pending.append(line)  # noqa: PERF402 - those before an error are kept
            if not pending:
                return
            _flush(out, pending)
    finally:
        _flush(out, pending)


def _flush(out: IO[bytes], pending: list[str]) -> None:
    if pending:
        data = "\n".join(pending) + "\n"
        pending.clear()
        out.write(bytes_of(data))
        out.flush()
