"""`utracefs report`: print a trace.dat, line by line as `trace-cmd report` does, or write it as a page."""

import contextlib
import os
import sys
from collections.abc import Iterable
from itertools import islice
from typing import IO, TYPE_CHECKING

import attrs
import click

from utracefs.cli import Failure
from utracefs.cli.common import COMMAND_SETTINGS, for_reader, json_option, seconds_option
from utracefs.cli.converting import Selection, output_file, progress_bar, said, selection_options
from utracefs.cli.refusals import about_the_filter
from utracefs.event_names import EventName, no_such_event, select
from utracefs.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.trace_dat import TraceDatReader
from utracefs.trace_report import ReportOptions, json_lines, report_text
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import bytes_of, text_of

if TYPE_CHECKING:
    from utracefs.recording import Recording

__all__ = ["report"]

_LINES_AT_ONCE = 2000


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("file", default="trace.dat", type=click.Path())
@click.option("-i", "--input", "also_file", metavar="FILE", help="The same as FILE, as trace-cmd has it.")
@click.option("-t", "--timestamps", "full_ns", is_flag=True, help="All nine digits of the time.")
@selection_options
@seconds_option("--last", "last_s", "The last S seconds.")
@click.option("--stat", "show_stat", is_flag=True, help="What each cpu's buffer counted, instead of records.")
@json_option
@click.option(
    "--html", "as_html", is_flag=True, help="Write a page to look at in a browser; FILE also perf.data."
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(),
    help="html: the page, - for stdout. [default: FILE.html]",
)
@click.option("--recover", is_flag=True, help="html: save what can be saved of a broken file.")
def report(
    file: str,
    also_file: str | None,
    full_ns: bool,
    selection: Selection,
    show_stat: bool,
    as_json: bool,
    as_html: bool,
    output: str | None,
    last_s: float | None,
    recover: bool,
) -> None:
    """Print the records of FILE (trace.dat), in the order of time.

    With --json one object a line: ts_ns, cpu, pid, comm, system, event, fields.

    With --html a page with all in it: timeline, rates, fields, records, losses. It needs no network.
    """
    if last_s is not None and (selection.since_ns is not None or selection.until_ns is not None):
        raise click.UsageError("--last goes without --since and --until")
    path = also_file or file
    if last_s is not None and not show_stat:
        with _opened(path) as reader:
            since_ns = max(0, reader.last_ns() - int(last_s * 10**9))
        selection = attrs.evolve(selection, since_ns=since_ns)
    if as_html:
        if show_stat or as_json:
            raise click.UsageError("--html stands alone: --stat and --json print something else")
        with selection.open(path, path, recover=recover) as recording:
            _write_html(recording, output)
        return
    if output is not None or recover:
        raise click.UsageError(
            "-o and --recover are for --html; `utracefs export` has them for other formats"
        )
    with _opened(path) as reader:
        if show_stat:
            _write(line for text in reader.cpu_stats for line in text.splitlines())
            return
        options = ReportOptions(
            full_ns,
            selection.cpus,
            selection.events,
            bytes_of(selection.filter) if selection.filter else None,
            selection.since_ns,
            selection.until_ns,
            selection.pids,
        )
        there = [
            EventName(reader.systems.get(number, ""), text_of(event.name))
            for number, event in reader.formats.items()
        ]
        for pattern in selection.events:
            if not select([pattern], there):
                raise Failure(path, no_such_event(pattern, there))
        try:
            with about_the_filter(path, selection.filter):
                if as_json:
                    _write(json_lines(reader, options))
                else:
                    out = sys.stdout.buffer
                    for piece in report_text(reader, options):
                        out.write(for_reader(piece))
                        out.flush()
        except ValueError as error:
            raise Failure(path, f"broken: {error}") from None


def _opened(path: str) -> TraceDatReader:
    try:
        return TraceDatReader(path)
    except TraceError:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if file.read(len(PERF_MAGIC)) == PERF_MAGIC:
                prints = f"`utracefs perf script -i {path}` prints it"
                raise Failure(
                    path, f"is a perf.data: {prints}; --html (without --last) and `export` take it"
                ) from None
        raise


def _write_html(recording: "Recording", output: str | None) -> None:
    from utracefs.html_report import write_html

    if output is None:
        output = os.path.splitext(os.path.basename(recording.path))[0] + ".html"
    target = None if output == "-" else output
    with output_file(target, recording.path) as out, progress_bar() as progress:
        done = write_html(recording, out, progress=progress)
    said(done, recording.path, target)


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
