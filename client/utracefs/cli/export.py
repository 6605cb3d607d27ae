"""`utracefs export`: a recording in the formats of other tools."""

import contextlib
import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO, Final

import click

import utracefs
from utracefs.cli import Failure
from utracefs.cli.common import (
    COMMAND_SETTINGS,
    TextType,
    connect,
    directory_option,
    events_option,
    seconds_option,
)
from utracefs.cli.live import write_live
from utracefs.cli.place import TOP, Place, instance_option
from utracefs.cli.report import CpuList, Time
from utracefs.export import (
    Exported,
    Slice,
    Tracks,
    write_chrome,
    write_csv,
    write_ctf,
    write_json_lines,
    write_perf_data,
    write_trace_dat,
)
from utracefs.export.common import Progress
from utracefs.recording import Recording
from utracefs_protocol.errors import TraceError

__all__ = ["check_target", "convert", "export", "format_of"]

_ENDINGS: Final = {
    ".dat": "trace.dat",
    ".data": "perf.data",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".json": "chrome",
    ".ctf": "ctf",
}
_UNITS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_QUIET_S: Final = 1.0
"""What takes no longer needs no progress bar."""


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
@instance_option("With --daemon: the buffer of this instance instead of the top one.")
@click.option(
    "--to",
    "kind",
    type=click.Choice(list(dict.fromkeys(_ENDINGS.values()))),
    help="Format; chrome: Chrome JSON.  [default: by the ending of OUT: .dat, .data, .jsonl, .csv, .json,"
    " .ctf or / for CTF]",
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
    directory: str | None,
    file: str | None,
    from_daemon: bool,
    live: bool,
    duration_s: float | None,
    place: Place,
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
    """Convert INPUT (trace.dat or perf.data, default trace.dat) for other tools.

    utracefs export trace.dat -o trace.json
    utracefs export --daemon -o now.jsonl
    utracefs export --live -e 'http_*' | jq .fields
    """
    if (file is not None) + from_daemon + live > 1:
        raise click.UsageError("give INPUT, --daemon or --live")
    if duration_s is not None and not live:
        raise click.UsageError("--for goes with --live")
    if place != TOP and not from_daemon:
        raise click.UsageError("-B goes with --daemon")
    kind = kind or ("jsonl" if output is None else format_of(output))
    tracks = _tracks(slices, durations, counters)
    if tracks != Tracks() and kind != "chrome":
        raise click.UsageError("--slice, --duration and --counter are for --to chrome")
    if live:
        if kind != "jsonl" or since_ns is not None or until_ns is not None or recover:
            raise click.UsageError(
                "--live writes JSON lines, from now on; `utracefs record -o` knows the rest"
            )
        connect(directory).close()
        with _output(output, "") as out:
            done = write_live(directory, out, events, cpus, pids, duration_s)
        _tell(output, "live", done)
        return
    if kind in _TO_FILES and output is None:
        raise click.UsageError(f"--to {kind} needs -o {'DIRECTORY' if kind == 'ctf' else 'FILE'}")
    with contextlib.ExitStack() as stack:
        path, tgids = file or "trace.dat", dict[int, int]()
        source = path
        if from_daemon:
            source = "the daemon's ring buffer"
            path, tgids = stack.enter_context(_buffer_of_the_daemon(directory, place, output))
        recording = stack.enter_context(
            utracefs.open(
                path,
                events=events,
                cpus=cpus,
                pids=pids or None,
                since_ns=since_ns,
                until_ns=until_ns,
                recover=recover,
            )
        )
        recording.tgids = tgids
        _check(recording, tracks)
        done = convert(recording, kind, output, tracks)
    _tell(output, source, done)


def _tell(output: str | None, source: str, done: Exported) -> None:
    lost = f", {done.lost} lost" if done.lost else ""
    lost += ", more lost that were not counted" if done.lost_uncounted else ""
    if output:
        click.echo(f"{output}: {done.records} records{lost}", err=True)
    elif lost:
        click.echo(f"utracefs: {source}: {done.records} records{lost}", err=True)


def format_of(output: str) -> str:
    """What the ending of a path says. UsageError: nothing."""
    kind = "ctf" if output.endswith("/") else _ENDINGS.get(os.path.splitext(output)[1])
    if kind is None:
        raise click.UsageError(f"{output}: which format? The endings are {', '.join(_ENDINGS)}")
    return kind


def check_target(kind: str, output: str) -> None:
    """Failure where the output cannot be made, as far as that can be told before."""
    if kind == "ctf":
        _check_new(output)
    folder = os.path.dirname(os.path.realpath(output))
    if not os.path.isdir(folder):
        raise Failure(output, os.strerror(errno.ENOENT))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise Failure(output, os.strerror(errno.EACCES))
    if kind != "ctf" and os.path.isdir(output):
        raise Failure(output, os.strerror(errno.EISDIR))


def convert(recording: Recording, kind: str, output: str | None, tracks: Tracks) -> Exported:
    """Write a recording in that format; output: None is stdout, where the format can go there."""
    if kind in _TO_FILES:
        assert output is not None
        _check_is_not_input(output, recording.path)
        with _bar() as progress:
            if kind == "ctf":
                return _write_directory(recording, output, progress)
            return _TO_FILES[kind](recording, output, progress=progress)
    with _output(output, recording.path) as out, _bar() as progress:
        return _write(kind, recording, out, tracks, progress)


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


_TO_FILES: Final[dict[str, Callable[..., Exported]]] = {
    "trace.dat": write_trace_dat,
    "perf.data": write_perf_data,
    "ctf": write_ctf,
}
"""Those that need a path; the others write into any stream."""


def _check_new(path: str) -> None:
    if os.path.lexists(path):
        raise Failure(path, "exists; CTF is a new directory")


def _check_is_not_input(path: str, source: str) -> None:
    if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
        raise Failure(path, "is the input")


def _write_directory(recording: Recording, path: str, progress: Progress) -> Exported:
    """It gets its name when it is complete, or complete up to what was broken."""
    _check_new(path)
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


@contextlib.contextmanager
def _output(path: str | None, source: str) -> Iterator[BinaryIO]:
    """Where to write. A file gets its name when it is complete, or complete up to what was broken."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    _check_is_not_input(path, source)
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "wb") as out:
            yield out
        return
    real = os.path.realpath(path)
    temporary = f"{real}.tmp"
    try:
        with open(temporary, "wb") as out:
            try:
                yield out
            except TraceError:
                out.close()
                os.rename(temporary, real)
                raise
        os.rename(temporary, real)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, path) from None
        raise


@contextlib.contextmanager
def _bar(clock: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """A progress bar on stderr, if that is a terminal, after a second."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    begin = clock()
    with contextlib.ExitStack() as stack:
        update: Progress | None = None

        def progress(done: float) -> None:
            nonlocal update
            if update is None:
                if clock() - begin < _QUIET_S:
                    return
                update = stack.enter_context(_shown_bar())
            update(done)

        yield progress


@contextlib.contextmanager
def _shown_bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("export", total=1.0)
        yield lambda done: bar.update(task, completed=done)
