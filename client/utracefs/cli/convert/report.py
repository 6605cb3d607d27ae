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
)
from utracefs.cli.losses import lost_in_file, lost_text
from utracefs.recordings.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.recordings.report import report_text
from utracefs_protocol.text import bytes_of

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
    if _is_perf_data(path):
        prints = f"`utracefs perf script -i {path}{' --recover' if recover else ''}` prints it"
        raise Failure(path, f"is a perf.data: {prints}; --json, --html and `export` take it")
    with (Selection() if show_stat else selection).open(path, path, recover=recover) as recording:
        out = sys.stdout.buffer
        if show_stat:
            for text in recording.cpu_stats:
                out.write(bytes_of("".join(f"{line}\n" for line in text.splitlines())))
            return
        try:
            for piece in report_text(recording, full_ns=full_ns, one_line=True):
                out.write(piece)
                out.flush()
        except ValueError as error:
            raise Failure(path, f"broken: {error}; --recover reads what is behind it") from None
        _tell_losses(path, recording.cpu_stats)


def _tell_losses(path: str, cpu_stats: Sequence[str]) -> None:
    lost = lost_in_file(cpu_stats)
    if any(lost.values()):
        tell(f"{path}: of all that was emitted {lost_text(lost)}")


def _is_perf_data(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(PERF_MAGIC)) == PERF_MAGIC
    return False


def _write_html(recording: "Recording", output: str | None) -> None:
    from utracefs.html import write_html

    if output is None:
        output = os.path.splitext(os.path.basename(recording.path))[0] + ".html"
    target = None if output == "-" else output
    with output_file(target, recording.path) as out, progress_bar() as progress:
        done = write_html(recording, out, progress=progress)
    said(done, recording.path, target)
