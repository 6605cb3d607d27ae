"""`utracefs report`: print a trace.dat in the format of `trace-cmd report`, or write it as an HTML page."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from utracefs.cli import Failure
from utracefs.cli.common import COMMAND_SETTINGS, json_option, seconds_option, tell
from utracefs.cli.convert.conversion import (
    Selection,
    output_file,
    progress_bar,
    said,
    selection_options,
    tell_if_moved,
)
from utracefs.cli.filter_errors import about_the_filter
from utracefs.cli.losses import lost_in_file, lost_text
from utracefs.recordings.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.recordings.report import ReportOptions, report_text
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.event_names import EventName, no_such_event, select
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import bytes_of, text_of

if TYPE_CHECKING:
    from utracefs.recordings.recording import Recording

__all__ = ["report"]


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
@click.option(
    "--recover",
    is_flag=True,
    help="Read what can be saved of a broken file, or of a recording that was killed.",
)
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

    With --json (FILE also perf.data) one object per line, as `export --to jsonl`: time_ns, cpu, pid, tid,
    comm, system, name, fields.

    With --html a page with timeline, rates, fields, records and losses. It needs no network.
    """
    path = also_file or file
    if not show_stat:
        selection = selection.of_the_last(last_s, path, recover=recover)
    if as_html:
        if show_stat or as_json:
            raise click.UsageError("--html cannot be combined with --stat or --json")
        with selection.open(path, path, recover=recover) as recording:
            _write_html(recording, output)
        return
    if output is not None:
        raise click.UsageError("-o is for --html; `utracefs export` has it for other formats")
    if as_json and not show_stat:
        from utracefs.export import write_json_lines

        with selection.open(path, path, recover=recover) as recording:
            write_json_lines(recording, sys.stdout.buffer)
            _tell_losses(path, recording.cpu_stats)
        return
    with _opened(path, recover=recover) as reader:
        tell_if_moved(path, reader.origin)
        if show_stat:
            for text in reader.cpu_stats:
                sys.stdout.buffer.write(bytes_of("".join(f"{line}\n" for line in text.splitlines())))
            return
        options = ReportOptions(
            full_ns,
            selection.cpus,
            selection.events,
            bytes_of(selection.filter) if selection.filter else None,
            selection.since_ns,
            selection.until_ns,
            selection.pids,
            one_line=sys.stdout.isatty(),
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
                out = sys.stdout.buffer
                for piece in report_text(reader, options):
                    out.write(piece)
                    out.flush()
        except ValueError as error:
            raise Failure(path, f"broken: {error}; --recover reads what is behind it") from None
        _tell_losses(path, reader.cpu_stats)


def _tell_losses(path: str, cpu_stats: Sequence[str]) -> None:
    lost = lost_in_file(cpu_stats)
    if any(lost.values()):
        tell(f"{path}: of all that was emitted {lost_text(lost)}")


def _opened(path: str, *, recover: bool) -> TraceDatReader:
    try:
        return TraceDatReader(path, recover=recover)
    except TraceError:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            if file.read(len(PERF_MAGIC)) == PERF_MAGIC:
                prints = f"`utracefs perf script -i {path}{' --recover' if recover else ''}` prints it"
                raise Failure(
                    path, f"is a perf.data: {prints}; --json, --html and `export` take it"
                ) from None
        raise


def _write_html(recording: "Recording", output: str | None) -> None:
    from utracefs.html import write_html

    if output is None:
        output = os.path.splitext(os.path.basename(recording.path))[0] + ".html"
    target = None if output == "-" else output
    with output_file(target, recording.path) as out, progress_bar() as progress:
        done = write_html(recording, out, progress=progress)
    said(done, recording.path, target)
