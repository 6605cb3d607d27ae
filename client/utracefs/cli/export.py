"""`utracefs export`: a recording in the formats of other tools."""

import os
import shutil
from typing import BinaryIO, Final

import click

import utracefs
from utracefs.cli import Failure
from utracefs.cli.common import COMMAND_SETTINGS, TextType, events_option
from utracefs.cli.converting import CpuList, Time, output_file, progress_bar, said
from utracefs.export import Exported, Slice, Tracks, write_chrome, write_csv, write_ctf, write_json_lines
from utracefs.export.common import Progress
from utracefs.recording import Recording
from utracefs_protocol.errors import TraceError

__all__ = ["export"]

_ENDINGS: Final = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".json": "chrome"}
_UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


class _Words(TextType):
    """Several words with something between them."""

    def __init__(self, example: str, separator: str, least: int, most: int) -> None:
        self.name = example
        self._separator = separator
        self._least, self._most = least, most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        words = str(value).split(self._separator)
        if not self._least <= len(words) <= self._most or not all(words):
            self.fail(f"{value!r} is not {self.name}", param, ctx)
        return str(value)


@click.command(context_settings=COMMAND_SETTINGS)
@click.argument("file", metavar="INPUT", default="trace.dat", type=click.Path())
@click.option(
    "--to",
    "kind",
    type=click.Choice(["jsonl", "csv", "chrome", "ctf"]),
    help="Format: JSON lines, CSV, Chrome JSON, CTF.  [default: by the ending of OUT: .jsonl, .csv, .json]",
)
@click.option("-o", "--output", metavar="OUT", type=click.Path(), help="[default: stdout]")
@events_option("Only these events: SYSTEM:NAME, NAME, or globs.")
@click.option("--cpu", "cpus", metavar="LIST", type=CpuList(), help="Only these cpus: 0,2-5.")
@click.option(
    "-P", "--pid", "pids", metavar="PID", type=int, multiple=True, help="Only this process or thread."
)
@click.option("--since", "since_ns", metavar="S", type=Time(), help="From this time on (see report -t).")
@click.option("--until", "until_ns", metavar="S", type=Time(), help="Before this time.")
@click.option("--recover", is_flag=True, help="Save what can be saved of a broken file.")
@click.option(
    "--slice",
    "slices",
    metavar="BEGIN,END,KEY",
    type=_Words("BEGIN,END,KEY: two events and a field that both have", ",", 3, 3),
    multiple=True,
    help="chrome: two events with the same value of a field are a slice.",
)
@click.option(
    "--duration",
    "durations",
    metavar="EVENT.FIELD[:UNIT]",
    type=_Words("EVENT.FIELD[:UNIT]", ".", 2, 2),
    multiple=True,
    help="chrome: a record ends a slice, which took what the field says; UNIT: ns (default), us, ms, s.",
)
@click.option(
    "--counter",
    "counters",
    metavar="EVENT.FIELD",
    type=_Words("EVENT.FIELD", ".", 2, 2),
    multiple=True,
    help="chrome: a track of the field's values.",
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
    recover: bool,
    slices: tuple[str, ...],
    durations: tuple[str, ...],
    counters: tuple[str, ...],
) -> None:
    """Convert INPUT (trace.dat or perf.data, default trace.dat) for other tools."""
    kind = kind or _kind_of(output)
    tracks = _tracks(slices, durations, counters)
    if tracks != Tracks() and kind != "chrome":
        raise click.UsageError("--slice, --duration and --counter are for --to chrome")
    with utracefs.open(
        file,
        events=events,
        cpus=cpus,
        pids=pids or None,
        since_ns=since_ns,
        until_ns=until_ns,
        recover=recover,
    ) as recording:
        _check(recording, tracks)
        if kind == "ctf":
            if output is None:
                raise click.UsageError("--to ctf needs -o DIRECTORY")
            with progress_bar() as progress:
                done = _write_directory(recording, output, progress)
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


def _tracks(slices: tuple[str, ...], durations: tuple[str, ...], counters: tuple[str, ...]) -> Tracks:
    lengths: dict[tuple[str, str], int] = {}
    for text in durations:
        place, _, unit = text.partition(":")
        if (unit or "ns") not in _UNITS:
            raise click.UsageError(f"--duration {text}: the unit is one of {', '.join(_UNITS)}")
        event, _, field = place.partition(".")
        lengths[event, field] = _UNITS[unit or "ns"]
    return Tracks(
        tuple(Slice(*text.split(",")) for text in slices),
        lengths,
        frozenset((event, field) for event, _, field in (text.partition(".") for text in counters)),
    )


def _check(recording: Recording, tracks: Tracks) -> None:
    """Failure for an event or field that the file does not have."""
    fields = recording.fields
    wanted = [*tracks.durations, *tracks.counters]
    wanted += [(name, pair.key) for pair in tracks.slices for name in (pair.begin, pair.end)]
    for event, field in wanted:
        if event not in fields:
            raise Failure(event, f"no such event in {recording.path}")
        if field not in fields[event]:
            there = ", ".join(sorted(fields[event])) or "none"
            raise Failure(f"{event}.{field}", f"no such field; the event has {there}")


def _write(kind: str, recording: Recording, out: BinaryIO, tracks: Tracks, progress: Progress) -> Exported:
    if kind == "jsonl":
        return write_json_lines(recording, out, progress=progress)
    if kind == "csv":
        return write_csv(recording, out, progress=progress)
    return write_chrome(recording, out, tracks=tracks, progress=progress)


def _write_directory(recording: Recording, path: str, progress: Progress) -> Exported:
    """It gets its name when it is complete, or complete up to what was broken."""
    if os.path.lexists(path):
        raise Failure(path, "exists; --to ctf makes a new directory")
    real = os.path.realpath(path)
    temporary = f"{real}.tmp"
    try:
        try:
            done = write_ctf(recording, temporary, progress=progress)
        except TraceError:
            os.rename(temporary, real)
            raise
        os.rename(temporary, real)
    except FileExistsError:
        raise Failure(f"{path}.tmp", "is in the way; remove it") from None
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path) from None
        raise
    return done
