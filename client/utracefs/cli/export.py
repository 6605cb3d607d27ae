"""`utracefs export`: a recording in the formats of other tools."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, Final

import click

import utracefs
from utracefs.cli import Failure
from utracefs.cli.common import COMMAND_SETTINGS, events_option, with_extras
from utracefs.cli.converting import CpuList, Time, half_done, output_file, progress_bar, said
from utracefs.cli.refusals import about_the_filter
from utracefs.cli.wanted import all_filters, filter_option
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
    write_perfetto,
)
from utracefs.export.common import Progress
from utracefs.recording import Recording
from utracefs_protocol.errors import TraceError

if TYPE_CHECKING:
    _AnyType = click.ParamType[object]
else:
    _AnyType = click.ParamType

__all__ = ["export"]

_ENDINGS: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".json": "chrome",
    ".parquet": "parquet",
    ".pftrace": "perfetto",
    ".perfetto-trace": "perfetto",
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
@click.argument("file", metavar="INPUT", default="trace.dat", type=click.Path())
@click.option(
    "--to",
    "kind",
    type=click.Choice(["jsonl", "csv", "perfetto", "chrome", "ctf", "parquet"]),
    help="Format: JSON lines, CSV, Perfetto's own, Chrome JSON, CTF, Parquet.  [default: by the ending of "
    "OUT: .jsonl, .csv, .pftrace, .json, .parquet]",
)
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="- for stdout.  [default: -]")
@events_option("Only these events: SYSTEM:NAME, NAME, or globs.")
@click.option("--cpu", "cpus", metavar="LIST", type=CpuList(), help="Only these cpus: 0,2-5.")
@click.option(
    "-P", "--pid", "pids", metavar="PID", type=int, multiple=True, help="Only this process or thread."
)
@click.option("--since", "since_ns", metavar="S", type=Time(), help="From this time on (see report -t).")
@click.option("--until", "until_ns", metavar="S", type=Time(), help="Before this time.")
@filter_option("Only records that pass, as an event's filter file has it: 'status >= 500'.")
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
    file: str,
    kind: str | None,
    output: str | None,
    events: tuple[str, ...],
    cpus: frozenset[int] | None,
    pids: tuple[int, ...],
    since_ns: int | None,
    until_ns: int | None,
    filters: tuple[str, ...],
    recover: bool,
    slices: tuple[Slice, ...],
    durations: tuple[Duration, ...],
    counters: tuple[Counter, ...],
    tracks_file: str | None,
) -> None:
    """Convert INPUT (trace.dat or perf.data, default trace.dat) for other tools."""
    if output == "-":
        output = None
    kind = kind or _kind_of(output)
    tracks = Tracks(slices, durations, counters)
    if (tracks or tracks_file) and kind not in _TIMELINES:
        raise click.UsageError("--slice, --duration, --counter and --tracks are for --to perfetto or chrome")
    text = all_filters(filters)
    with about_the_filter(file, text):
        recording = utracefs.open(
            file,
            events=events,
            cpus=cpus,
            pids=pids or None,
            since_ns=since_ns,
            until_ns=until_ns,
            filter=text or None,
            recover=recover,
        )
    with recording:
        if tracks_file is not None:
            tracks += _tracks_of(tracks_file, recording)
        tracks.check(recording)
        if kind in ("ctf", "parquet") and output is None:
            raise click.UsageError(f"--to {kind} needs -o DIRECTORY")
        if kind == "ctf" and output is not None:
            with progress_bar() as progress:
                done = _write_directory(kind, write_ctf, recording, output, progress)
        elif kind == "parquet" and output is not None:
            with with_extras(), progress_bar() as progress:
                done = _write_parquet(recording, output, progress)
        else:
            with output_file(output, file) as out, progress_bar() as progress:
                done = _write(kind, recording, out, tracks, progress)
    said(done, file, output)


def _kind_of(output: str | None) -> str:
    if output is None:
        return "jsonl"
    kind = _ENDINGS.get(os.path.splitext(output)[1])
    if kind is None:
        raise click.UsageError(f"which format? Give --to, or OUT one of the endings {', '.join(_ENDINGS)}")
    return kind


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


def _write_parquet(recording: Recording, path: str, progress: Progress) -> Exported:
    """A file where the path ends so, else a directory."""
    library("pyarrow.parquet")
    if not path.endswith(".parquet"):
        return _write_directory("parquet", write_parquet, recording, path, progress)
    events = [str(event) for event in recording.events]
    if len(events) != 1:
        events = [f"{event.system}:{event.name}" for event in recording.events_with_records()]
    if len(events) != 1:
        reason = f"a file has one event, and there are records of {len(events)} events"
        raise Failure(path, f"{reason}; name one by -e, or give -o DIRECTORY")
    with output_file(path, recording.path) as out:
        return write_parquet_file(recording, out, event=events[0], progress=progress)


def _write_directory(
    kind: str, write: Callable[..., Exported], recording: Recording, path: str, progress: Progress
) -> Exported:
    """It gets its name when it is complete, or complete up to what was broken."""
    if os.path.lexists(path):
        raise Failure(path, f"exists; --to {kind} makes a new directory")
    real = os.path.realpath(path)
    with half_done(real, path) as temporary:
        try:
            done = write(recording, temporary, progress=progress)
        except TraceError:
            os.rename(temporary, real)
            raise
        os.rename(temporary, real)
    return done
