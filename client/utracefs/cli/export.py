"""`utracefs export`: a recording in the formats of other tools."""

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from utracefs.cli import Failure
from utracefs.cli.common import (
    COMMAND_SETTINGS,
    connect,
    directory_option,
    seconds_option,
    with_extras,
)
from utracefs.cli.converting import (
    Selection,
    check_is_not_input,
    half_done,
    output_file,
    progress_bar,
    said,
    selection_options,
)
from utracefs.cli.live import write_live
from utracefs.cli.place import TOP, Place, instance_option
from utracefs.columns import library
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
from utracefs.recording import Recording
from utracefs_protocol.errors import TraceError

if TYPE_CHECKING:
    _AnyType = click.ParamType[object]
else:
    _AnyType = click.ParamType

__all__ = ["check_target", "convert", "export", "format_of"]

_ENDINGS: Final = {
    ".dat": "trace.dat",
    ".data": "perf.data",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".json": "chrome",
    ".parquet": "parquet",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
    ".ctf": "ctf",
}
_TIMELINES: Final = {"chrome": write_chrome, "perfetto": write_perfetto}
"""Formats with slices and counters."""
_TRACKS_BYTES: Final = 1 << 20
"""Of a file with slices and counters."""


class _TrackType(_AnyType):
    """One slice or counter, as `utracefs.export.tracks` spells it."""

    def __init__(self, parse: Callable[[str], object]) -> None:
        self.name = "track"
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self._parse(str(value)) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.argument("file", metavar="[INPUT]", required=False, type=click.Path())
@click.option(
    "--daemon",
    "from_daemon",
    is_flag=True,
    help="Instead of INPUT: what the ring buffer of the running daemon holds now; it stays there.",
)
@click.option(
    "--live",
    is_flag=True,
    help="Instead of INPUT: records as they come, as JSON lines, until Ctrl-C; the events are switched on.",
)
@seconds_option("--for", "duration_s", "With --live: for S seconds.")
@instance_option("With --daemon or --live: of this instance instead of the top one.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(dict.fromkeys(_ENDINGS.values()))),
    help="Format; chrome: Chrome JSON.  [default: by the ending of OUT: .dat, .data, .jsonl, .csv, .json,"
    " .pftrace, .parquet, .ctf or / for CTF]",
)
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="- for stdout.  [default: -]")
@selection_options
@click.option("--recover", is_flag=True, help="Save what can be saved of a broken file.")
@click.option(
    "--slice",
    "slices",
    metavar="BEGIN,END[,KEY]",
    type=_TrackType(Slice.parse),
    multiple=True,
    help="perfetto, chrome: from an event BEGIN to an event END (or END/END) with the same value of the "
    "field KEY is a slice; without KEY of the same thread.",
)
@click.option(
    "--duration",
    "durations",
    metavar="EVENT.FIELD[:UNIT]",
    type=_TrackType(Duration.parse),
    multiple=True,
    help="perfetto, chrome: a record ends a slice, which took what the field says; UNIT: ns (default), us, "
    "ms, s.",
)
@click.option(
    "--counter",
    "counters",
    metavar="EVENT.FIELD",
    type=_TrackType(Counter.parse),
    multiple=True,
    help="perfetto, chrome: a curve of the field's values.",
)
@click.option(
    "--tracks",
    "tracks_file",
    metavar="FILE",
    type=click.Path(),
    help="perfetto, chrome: slices and counters from a TOML file (see docs/exports.md).",
)
def export(
    directory: str | None,
    file: str | None,
    from_daemon: bool,
    live: bool,
    duration_s: float | None,
    place: Place,
    kind: str | None,
    output: str | None,
    selection: Selection,
    recover: bool,
    slices: tuple[Slice, ...],
    durations: tuple[Duration, ...],
    counters: tuple[Counter, ...],
    tracks_file: str | None,
) -> None:
    """Convert INPUT (trace.dat or perf.data, default trace.dat) for other tools.

    \b
      utracefs export trace.dat -o trace.json
      utracefs export --daemon -o now.jsonl
      utracefs export --live -e 'http_*' | jq .fields
    """
    if output == "-":
        output = None
    if (file is not None) + from_daemon + live > 1:
        raise click.UsageError("give INPUT, --daemon or --live")
    if duration_s is not None and not live:
        raise click.UsageError("--for goes with --live")
    if place != TOP and not (from_daemon or live):
        raise click.UsageError("-B goes with --daemon or --live")
    kind = kind or ("jsonl" if output is None else format_of(output))
    tracks = Tracks(slices, durations, counters)
    if (tracks or tracks_file) and kind not in _TIMELINES:
        raise click.UsageError("--slice, --duration, --counter and --tracks are for --to perfetto or chrome")
    if live:
        is_timed = selection.since_ns is not None or selection.until_ns is not None
        if kind != "jsonl" or is_timed or recover:
            raise click.UsageError(
                "--live writes JSON lines, from now on; `utracefs record -o` knows the rest"
            )
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
        return
    if kind in _NEED_A_PATH and output is None:
        raise click.UsageError(f"--to {kind} needs -o {'DIRECTORY' if kind in _NEW_FOLDERS else 'FILE'}")
    with contextlib.ExitStack() as stack:
        path, tgids = file or "trace.dat", dict[int, int]()
        source = path
        if from_daemon:
            source = "the daemon's ring buffer"
            path, tgids = stack.enter_context(_buffer_of_the_daemon(directory, place, output))
        recording = stack.enter_context(selection.open(path, source, recover=recover))
        recording.tgids = tgids
        if tracks_file is not None:
            tracks += _tracks_of(tracks_file, recording)
        tracks.check(recording)
        done = convert(recording, kind, output, tracks)
    said(done, source, output)


def format_of(output: str) -> str:
    """What the ending of a path says. UsageError: nothing."""
    kind = "ctf" if output.endswith("/") else _ENDINGS.get(os.path.splitext(output)[1])
    if kind is None:
        raise click.UsageError(f"{output}: which format? The endings are {', '.join(_ENDINGS)}")
    return kind


def check_target(kind: str, output: str) -> None:
    """Failure where the output cannot be made, as far as that can be told before."""
    if kind == "parquet":
        with with_extras():
            library("pyarrow.parquet")
    is_folder = _is_folder(kind, output)
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
    """Write a recording in that format; output: None is stdout, where the format can go there."""
    if output is None or kind not in _NEED_A_PATH:
        with output_file(output, recording.path) as out, progress_bar() as progress:
            return _write(kind, recording, out, tracks, progress)
    check_is_not_input(output, recording.path)
    with with_extras(), progress_bar() as progress:
        if kind == "parquet":
            return _write_parquet(recording, output, progress)
        if kind == "ctf":
            return _write_directory(kind, write_ctf, recording, output, progress)
        return _TO_FILES[kind](recording, output, progress=progress)


@contextlib.contextmanager
def _buffer_of_the_daemon(
    directory: str | None, place: Place, output: str | None
) -> Iterator[tuple[str, dict[int, int]]]:
    """A trace.dat of what the buffer holds, and which thread is of which process, beside the output: it may
    be as large as the buffer."""
    from utracefs.cli.recorder import Recorder

    beside = None if output is None else os.path.dirname(os.path.realpath(output))
    with connect(directory, place) as tree, contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=".utracefs-", dir=beside))
        except OSError as error:
            raise OSError(error.errno, error.strerror, output) from None
        path = os.path.join(folder, "trace.dat")
        recorder = stack.enter_context(Recorder(tree, path, place, peek=True))
        recorder.drain()
        recorder.finish(uname="", version="", trace_id=0, offset_ns=None)
        yield path, recorder.tgids


def _tracks_of(path: str, recording: Recording) -> Tracks:
    """Those of a file. It may name more events than a recording has; that is said."""
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
        click.echo(f"utracefs: {path}: not in {recording.path}: {', '.join(missing)}", err=True)
    return tracks.without(missing)


def _write(kind: str, recording: Recording, out: BinaryIO, tracks: Tracks, progress: Progress) -> Exported:
    if kind == "jsonl":
        return write_json_lines(recording, out, progress=progress)
    if kind == "csv":
        return write_csv(recording, out, progress=progress)
    return _TIMELINES[kind](recording, out, tracks=tracks, progress=progress)


_TO_FILES: Final[dict[str, Callable[..., Exported]]] = {
    "trace.dat": write_trace_dat,
    "perf.data": write_perf_data,
}
_NEW_FOLDERS: Final = frozenset(("ctf", "parquet"))
"""Formats that are a directory; of Parquet one file, too."""
_NEED_A_PATH: Final = _NEW_FOLDERS | _TO_FILES.keys()
"""The others write into any stream."""


def _is_folder(kind: str, output: str) -> bool:
    return kind in _NEW_FOLDERS and not (kind == "parquet" and output.endswith(".parquet"))


def _check_new(kind: str, path: str) -> None:
    if os.path.lexists(path):
        raise Failure(path, f"exists; {kind} makes a new directory")


def _write_parquet(recording: Recording, path: str, progress: Progress) -> Exported:
    """A file where the path ends so and there is one event, else a directory."""
    library("pyarrow.parquet")
    events: list[str] = []
    if not _is_folder("parquet", path):
        events = [str(event) for event in recording.events]
        if len(events) != 1:
            events = [f"{event.system}:{event.name}" for event in recording.events_with_records()]
    if len(events) != 1:
        return _write_directory("parquet", write_parquet, recording, path, progress)
    with output_file(path, recording.path) as out:
        return write_parquet_file(recording, out, event=events[0], progress=progress)


def _write_directory(
    kind: str, write: Callable[..., Exported], recording: Recording, path: str, progress: Progress
) -> Exported:
    """It gets its name when it is complete, or complete up to what was broken."""
    _check_new(kind, path)
    real = os.path.realpath(path)
    with half_done(real, path) as temporary:
        try:
            done = write(recording, temporary, progress=progress)
        except TraceError:
            os.rename(temporary, real)
            raise
        os.rename(temporary, real)
    return done
