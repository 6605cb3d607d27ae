"""`utracefs export`: a recording in the formats of other tools."""

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Final, Literal

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, Failure, Parsed
from utracefs.cli.common import connect, directory_option, duration_option, seconds_option, tell, with_extras
from utracefs.cli.convert.conversion import (
    Selection,
    check_is_not_input,
    ended_by_exceptions,
    half_done,
    output_file,
    progress_bar,
    said,
    said_whole,
    selection_options,
)
from utracefs.cli.instance_option import TOP, Place, instance_option
from utracefs.cli.live.json_stream import write_live
from utracefs.cli.tables import counted
from utracefs.export import (
    Counter,
    Duration,
    Exported,
    Slice,
    Tracks,
    write_chrome,
    write_csv,
    write_ctf,
    write_json_lines,
    write_parquet,
    write_parquet_file,
    write_perf_data,
    write_perfetto,
    write_trace_dat,
)
from utracefs.export.common import Progress
from utracefs.export.perf_data import check_clock
from utracefs.recordings.columns import library
from utracefs.recordings.recording import Recording
from utracefs_protocol.errors import TraceError


@attrs.frozen
class Format:
    """An exporter of the command line."""

    name: str
    """For --to."""
    endings: tuple[str, ...]
    """Endings of OUT; the help names the first one."""
    write: Callable[..., Exported]
    """Writes a recording into an open file, or under a path (`makes`)."""
    makes: Literal["", "FILE", "DIRECTORY"] = ""
    """The kind of output that `write` creates at a path; empty: it writes to any stream."""
    has_tracks: bool = False
    """It supports slices and counters."""
    library: str = ""
    """A required module of another distribution."""
    check_clock: Callable[[str, str], None] | None = None
    """Raises TraceError about OUT if the format cannot express that trace clock."""
    write_event: Callable[..., Exported] | None = None
    """Writes one event into an open file: used in place of a directory if OUT ends in one of `endings`."""

    def is_folder(self, output: str) -> bool:
        return self.makes == "DIRECTORY" and not (self.write_event and output.endswith(self.endings))


FORMATS: Final = {
    row.name: row
    for row in (
        Format("trace.dat", (".dat",), write_trace_dat, makes="FILE"),
        Format("perf.data", (".data",), write_perf_data, makes="FILE", check_clock=check_clock),
        Format("jsonl", (".jsonl", ".ndjson"), write_json_lines),
        Format("csv", (".csv",), write_csv),
        Format("perfetto", (".pftrace", ".perfetto-trace"), write_perfetto, has_tracks=True),
        Format("chrome", (".json",), write_chrome, has_tracks=True),
        Format(
            "parquet",
            (".parquet",),
            write_parquet,
            makes="DIRECTORY",
            library="pyarrow.parquet",
            write_event=write_parquet_file,
        ),
        Format("ctf", (".ctf",), write_ctf, makes="DIRECTORY"),
    )
}
"""By name."""
_ENDINGS: Final = {ending: row.name for row in FORMATS.values() for ending in row.endings}
_TIMELINES: Final = [row.name for row in FORMATS.values() if row.has_tracks]
_FOR_TIMELINES: Final = f"{', '.join(_TIMELINES)}: "
_TRACKS_BYTES: Final = 1 << 20
"""Sections of a file with slices and counters."""


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.argument("files", metavar="[INPUT]...", nargs=-1, type=click.Path())
@click.option(
    "--daemon",
    "from_daemon",
    is_flag=True,
    help="Instead of INPUT: the present records of the running daemon's ring buffer; they stay there.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Instead of INPUT: records as they are emitted, as JSON lines, until Ctrl-C. Enables the events.",
)
@duration_option("With --live: end after 10 seconds, 5m, 2h, ...")
@instance_option("With --daemon or --live: of this instance instead of the top one.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(FORMATS)),
    help="Format; chrome: Chrome JSON.  [default: by the ending of OUT: "
    f"{', '.join(row.endings[0] for row in FORMATS.values())} or / for CTF]",
)
@click.option(
    "-o", "--output", metavar="OUT", type=click.Path(readable=False), help="- for stdout.  [default: -]"
)
@selection_options
@seconds_option("--last", "last_s", "The last 10 seconds, 5m, 2h, ...")
@click.option("--recover", is_flag=True, help="Read as much as possible of a broken file.")
@click.option(
    "--slice",
    "slices",
    metavar="BEGIN,END[,KEY]",
    type=Parsed("track", Slice.parse),
    multiple=True,
    help=f"{_FOR_TIMELINES}a slice from an event BEGIN to the next END (or END/END) with the same "
    "value of the field KEY; without KEY, of the same thread.",
)
@click.option(
    "--slice-duration",
    "durations",
    metavar="EVENT.FIELD[:UNIT]",
    type=Parsed("track", Duration.parse),
    multiple=True,
    help=f"{_FOR_TIMELINES}a record ends a slice whose duration is in FIELD; UNIT: ns (default), us, ms, s.",
)
@click.option(
    "--counter",
    "counters",
    metavar="EVENT.FIELD",
    type=Parsed("track", Counter.parse),
    multiple=True,
    help=f"{_FOR_TIMELINES}a curve of the values of FIELD.",
)
@click.option(
    "--tracks",
    "tracks_file",
    metavar="FILE",
    type=click.Path(),
    help=f"{_FOR_TIMELINES}slices and counters from a TOML file (see docs/exports.md).",
)
def export(
    directory: str | None,
    files: tuple[str, ...],
    from_daemon: bool,
    live: bool,
    duration_s: float | None,
    place: Place,
    kind: str | None,
    output: str | None,
    selection: Selection,
    last_s: float | None,
    recover: bool,
    slices: tuple[Slice, ...],
    durations: tuple[Duration, ...],
    counters: tuple[Counter, ...],
    tracks_file: str | None,
) -> None:
    """Convert INPUT (trace.dat, perf.data) for other tools; several are merged by time of day.

    \b
      utracefs export trace.dat -o trace.json
      utracefs export hostA.dat hostB.dat -o hosts.parquet
      utracefs export --daemon -o now.jsonl
      utracefs export --live -e 'http_*' | jq .fields
    """
    if output == "-":
        output = None
    # Options that contradict each other, before anything is opened or written.
    if bool(files) + from_daemon + live > 1:
        raise click.UsageError("give INPUT, --daemon or --live")
    if duration_s is not None and not live:
        raise click.UsageError("--duration goes with --live; --slice-duration draws EVENT.FIELD")
    if place != TOP and not (from_daemon or live):
        raise click.UsageError("-B goes with --daemon or --live")
    kind = kind or ("jsonl" if output is None else format_of(output))
    tracks = Tracks(slices, durations, counters)
    if (tracks or tracks_file) and kind not in _TIMELINES:
        raise click.UsageError(
            f"--slice, --slice-duration, --counter and --tracks are for --to {' or '.join(_TIMELINES)}"
        )
    if live:
        is_timed = (selection.since_ns, selection.until_ns, last_s) != (None, None, None)
        if kind != "jsonl" or is_timed or recover:
            raise click.UsageError(
                "--live writes JSON lines, from now on; `utracefs record -o` writes the other formats"
            )
        _write_live(directory, output, selection, place, duration_s)
        return
    # Text and Perfetto's packets fit a pipe; the other formats are files or directories.
    if output is None and (FORMATS[kind].makes or (kind == "perfetto" and sys.stdout.isatty())):
        raise click.UsageError(f"--to {kind} needs -o {FORMATS[kind].makes or 'FILE'}")
    with contextlib.ExitStack() as stack:
        paths = list(files or ["trace.dat"])
        source = ", ".join(paths)
        tgids: dict[int, int] = {}
        overwritten = 0
        if from_daemon:
            source = "the daemon's ring buffer"
            copy = _buffer_of_the_daemon(directory, place, output)
            paths[0], tgids, overwritten = stack.enter_context(copy)
        # The end of the records must be known before --last can become a time to begin at.
        selection = selection.of_the_last(last_s, paths, recover=recover)
        recording = stack.enter_context(selection.open(paths, source, recover=recover))
        for one in recording.files:
            one.tgids = tgids
        if tracks_file is not None:
            tracks += _tracks_of(tracks_file, recording)
        tracks.check(recording)
        try:
            done = convert(recording, kind, output, tracks)
        except TraceError as error:
            raise TraceError(error.errno, error.text.replace(", ".join(paths), source)) from None
    if overwritten:  # their pages do not tell the number
        done = attrs.evolve(done, lost=done.lost + overwritten, lost_uncounted=False)
    said_whole(done, source, output)


def _write_live(
    directory: str | None, output: str | None, selection: Selection, place: Place, duration_s: float | None
) -> None:
    with output_file(output, "") as out:
        done = write_live(
            directory,
            out,
            selection.events,
            filter=selection.filter or None,
            place=place,
            cpus=selection.cpus,
            pids=selection.pids or (),
            duration_s=duration_s,
        )
    said(done, "live", output)


def format_of(output: str) -> str:
    """The format by a path's ending. UsageError: unknown."""
    kind = "ctf" if output.endswith("/") else _ENDINGS.get(os.path.splitext(output)[1])
    if kind is None:
        page = "; a page of HTML is made by 'utracefs report --html'" if output.endswith(".html") else ""
        raise click.UsageError(f"{output}: which format? The endings are {', '.join(_ENDINGS)}{page}")
    return kind


def check_target(kind: str, output: str) -> None:
    """Failure if it is known in advance that the output cannot be written."""
    row = FORMATS[kind]
    if row.library:
        with with_extras():
            library(row.library)
    is_folder = row.is_folder(output)
    if is_folder:
        _check_new(kind, output)
    folder = os.path.dirname(os.path.realpath(output))
    if not os.path.isdir(folder):
        raise Failure(output, os.strerror(errno.ENOENT))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Failure(output, os.strerror(errno.EACCES))
    if not is_folder and os.path.isdir(output):
        raise Failure(output, os.strerror(errno.EISDIR))


def convert(recording: Recording, kind: str, output: str | None, tracks: Tracks) -> Exported:
    """Write a recording in that format; output: None is stdout, if the format allows it."""
    row = FORMATS[kind]
    if output is None or not row.makes:
        options = {"tracks": tracks} if row.has_tracks else {}
        with output_file(output, *recording.paths) as out, progress_bar() as progress:
            return row.write(recording, out, progress=progress, **options)
    check_is_not_input(output, *recording.paths)
    with with_extras(), progress_bar() as progress:
        if row.library:
            library(row.library)
        if row.write_event is not None and (event := _only_event(row, recording, output)) is not None:
            with output_file(output, *recording.paths) as out:
                return row.write_event(recording, out, event=event, progress=progress)
        if row.makes == "DIRECTORY":
            return _write_directory(row, recording, output, progress)
        with ended_by_exceptions():
            return row.write(recording, output, progress=progress)


@contextlib.contextmanager
def _buffer_of_the_daemon(
    directory: str | None, place: Place, output: str | None
) -> Iterator[tuple[str, dict[int, int], int]]:
    """Write the buffer's content to a trace.dat beside the output: it may be as large as the buffer. Yields
    its path, the process of each thread, and the number of records overwritten before they were copied."""
    from utracefs.cli.run.recorder import About, Recorder

    beside = None if output is None else os.path.dirname(os.path.realpath(output))
    with connect(directory, place) as tree, contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".utracefs-", dir=beside))
        except OSError as error:
            raise OSError(error.errno, error.strerror, output) from None
        path = os.path.join(folder, "trace.dat")
        recorder = stack.enter_context(Recorder(tree, path, place, peek=True))
        recorder.drain()
        copied = recorder.finish(About(), entries=recorder.there)
        if full := recorder.writer.error:  # the output could have room for its selection of these records
            reason = f"{full.strerror}; {counted(copied.no_room, 'record')} of the ring buffer did not fit"
            raise Failure(output or folder, f"{reason} into a copy beside it")
        yield path, recorder.texts.tgids, copied.overwritten


def _tracks_of(path: str, recording: Recording) -> Tracks:
    """Read them from a file. Events that the recording does not have are reported and skipped."""
    with open(path, "rb") as file:
        data = file.read(_TRACKS_BYTES + 1)
    try:
        if len(data) > _TRACKS_BYTES:
            raise ValueError(f"has more than {_TRACKS_BYTES >> 20} MiB")
        tracks = Tracks.from_toml(data)
    except ValueError as error:
        raise Failure(path, str(error)) from None
    missing = tracks.missing(recording)
    if missing:
        tell(f"{path}: not in {recording.path}: {', '.join(missing)}")
    return tracks.without(missing)


def _check_new(kind: str, path: str) -> None:
    if os.path.lexists(path):
        raise Failure(path, f"exists; {kind} makes a new directory")


def _only_event(row: Format, recording: Recording, output: str) -> str | None:
    """The one event of the recording, or with records, if the path demands a single file."""
    if row.is_folder(output):
        return None
    events = [str(event) for event in recording.events]
    if len(events) != 1:
        events = [f"{event.system}:{event.name}" for event in recording.events_with_records()]
    return events[0] if len(events) == 1 else None


def _write_directory(row: Format, recording: Recording, path: str, progress: Progress) -> Exported:
    _check_new(row.name, path)
    with half_done(path) as temporary:
        return row.write(recording, temporary, progress=progress)
