"""`utracefs report`: print a trace.dat in the format of `trace-cmd report`, or write it as an HTML page."""

import contextlib
import os
import shlex
import sys
from typing import TYPE_CHECKING

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import json_option, seconds_option, tell
from utracefs.cli.convert.conversion import Selection, output_file, progress_bar, said, selection_options
from utracefs.cli.losses import lost_in_file, lost_text
from utracefs.recordings.perf_data.format import MAGIC as PERF_MAGIC
from utracefs.recordings.report import report_text
from utracefs_protocol.text import bytes_of

if TYPE_CHECKING:
    from utracefs.recordings.recording import Recording


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path())
@click.option(
    "-i",
    "--input",
    "also_files",
    metavar="FILE",
    multiple=True,
    type=click.Path(),
    help="The same as FILE, as trace-cmd has it.",
)
@click.option("-t", "--timestamps", "full_ns", is_flag=True, help="Print times with nanoseconds.")
@selection_options
@seconds_option("--last", "last_s", "The last 10 seconds, 5m, 2h, ...")
@click.option(
    "--stat", "show_stat", is_flag=True, help="Print the counts of each cpu's buffer instead of the records."
)
@json_option
@click.option(
    "--html", "as_html", is_flag=True, help="Write a page to look at in a browser; FILE also perf.data."
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(readable=False),
    help="html: the page, - for stdout. [default: FILE with .html instead of .dat, in the present directory;"
    " several files need it]",
)
@click.option(
    "--recover", is_flag=True, help="Read as much as possible of a broken file, or of a killed recording."
)
def report(
    files: tuple[str, ...],
    also_files: tuple[str, ...],
    full_ns: bool,
    selection: Selection,
    show_stat: bool,
    as_json: bool,
    as_html: bool,
    output: str | None,
    last_s: float | None,
    recover: bool,
) -> None:
    """Print the records of FILE (trace.dat), in the order of time. Several are merged by time of day.

    With --json (FILE also perf.data) one object per line, as `export --to jsonl`: time_ns, cpu, pid, tid,
    comm, system, name, fields.

    With --html a page with timeline, rates, fields, records and losses. It needs no network.
    """
    paths = [*also_files, *files] or ["trace.dat"]
    if not show_stat:
        selection = selection.of_the_last(last_s, paths, recover=recover)
    source = ", ".join(paths)
    # A page and JSON lines are also made of perf.data; the text further below is of trace.dat only.
    if show_stat and as_json:
        raise click.UsageError("--stat prints text: without --json")
    if as_html:
        if show_stat or as_json:
            raise click.UsageError("--html cannot be combined with --stat or --json")
        if output is None and len(paths) > 1:
            raise click.UsageError("give -o: a page of several files has no name of its own")
        with selection.open(paths, source, recover=recover) as recording:
            _write_html(recording, output)
        return
    if output is not None:
        raise click.UsageError("-o is for --html; `utracefs export` has it for other formats")
    if as_json and not show_stat:
        from utracefs.export import write_json_lines

        with selection.open(paths, source, recover=recover) as recording:
            if not write_json_lines(recording, sys.stdout.buffer).records:
                tell(f"{source}: 0 records")
            _tell_losses(recording)
        return
    for path in paths:
        if _is_perf_data(path):
            prints = f"`utracefs perf script -i {path}{' --recover' if recover else ''}` prints it"
            raise Failure(path, f"is a perf.data: {prints}; --json, --html and `export` take it")
    # The statistics are of whole files, whatever was selected.
    with (Selection() if show_stat else selection).open(paths, source, recover=recover) as recording:
        out = sys.stdout.buffer
        if show_stat:
            for one, label in zip(recording.files, recording.labels, strict=True):
                head = f"{label}: " if label else ""
                lines = [line for text in one.reader.cpu_stats for line in text.splitlines()]
                out.write(bytes_of("".join(f"{head}{line}\n" for line in lines)))
            if recording.is_merged:
                out.write(bytes_of(f"{_of_trace_cmd(recording)}\n"))
            return
        pieces = 0
        for piece in report_text(recording, full_ns=full_ns, one_line=True):
            out.write(piece)
            out.flush()
            pieces += 1
        if pieces == len(recording.files):  # their first lines
            tell(f"{source}: 0 records")
        _tell_losses(recording)


def _of_trace_cmd(recording: "Recording") -> str:
    """The command by which trace-cmd merges the files; its times are the first file's."""
    words = ["trace-cmd", "report"]
    for path, offset in zip(recording.paths, recording.ts_offsets, strict=True):
        words += ["-i", path, *(["--ts-offset", str(offset)] if offset else [])]
    return shlex.join(words)


def _tell_losses(recording: "Recording") -> None:
    for one in recording.files:
        lost = lost_in_file(one.reader.cpu_stats)
        if any(lost.values()):
            tell(f"{one.path}: of all that was emitted {lost_text(lost)}")


def _is_perf_data(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(PERF_MAGIC)) == PERF_MAGIC
    return False


def _write_html(recording: "Recording", output: str | None) -> None:
    from utracefs.html import write_html

    if output is None:
        name = os.path.basename(recording.path)
        stem, ending = os.path.splitext(name)
        # The ending of a file of --flight or --switch-output is its time.
        output = f"{stem if ending in ('.dat', '.data') else name}.html"
    target = None if output == "-" else output
    with output_file(target, *recording.paths) as out, progress_bar() as progress:
        done = write_html(recording, out, progress=progress)
    said(done, recording.path, target)
