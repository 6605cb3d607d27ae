"""Shared by commands that convert a recording: selection, output file, progress, summary."""

import contextlib
import decimal
import errno
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast

import attrs
import click

import utracefs
from utracefs.cli import F, Failure, Parsed
from utracefs.cli.common import events_option, handling, tell, with_options
from utracefs.cli.event_options import all_filters, filter_option
from utracefs.cli.filter_errors import about_the_filter
from utracefs.cli.losses import no_room
from utracefs.cli.terminal import own
from utracefs.recordings.partial_files import WholeFile, errors_about, name_beside
from utracefs_protocol.errors import TraceError

_QUIET_S: Final = 1.0
"""Shorter operations show no progress bar."""

if TYPE_CHECKING:
    from utracefs.export.common import Exported, Progress
    from utracefs.recordings.origin import Origin
    from utracefs.recordings.recording import Recording


def _cpus(text: str) -> frozenset[int]:
    """Parse `0,2-5`, Linux' syntax for lists of cpus. ValueError."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        digits = first + last
        if not (first and digits.isascii() and digits.isdigit()) or int(last or first) < int(first):
            raise ValueError(f"{text!r} is not a list of cpus such as 0,2-5")
        cpus.update(range(int(first), min(int(last or first), 1 << 16) + 1))
    return frozenset(cpus)


def time_ns(text: str) -> int:
    """Nanoseconds of seconds of the recording's clock, as printed by `utracefs report -t`. ValueError."""
    with contextlib.suppress(decimal.InvalidOperation):
        seconds = decimal.Decimal(text)
        if 0 <= seconds < 1 << 34:  # 2^64 ns
            return int(seconds * 10**9)
    raise ValueError(f"{text!r} is not a time in seconds")


@attrs.frozen
class Selection:
    """Selection of records; defaults select all. Named as parameters of `utracefs.open`."""

    events: tuple[str, ...] = ()
    cpus: frozenset[int] | None = None
    pids: frozenset[int] | None = None
    """Ids of processes or threads."""
    since_ns: int | None = None
    until_ns: int | None = None
    filter: str = ""
    """Empty: none."""
    raw_eventheader: bool = False

    def open(self, path: str | Sequence[str], source: str, *, recover: bool) -> "Recording":
        """Open the recording. Failure about `source`: the filter is invalid for all its events; other errors
        as `utracefs.open`."""
        with about_the_filter(source, self.filter):
            options = attrs.asdict(self, recurse=False) | {"filter": self.filter or None}
            recording = utracefs.open(path, recover=recover, **options)
        for one in recording.files:
            tell_if_moved(one.path if recording.is_merged else source, one.origin)
        for note in recording.notes:
            tell(note)
        return recording

    def of_the_last(self, seconds: float | None, path: str | Sequence[str], *, recover: bool) -> "Selection":
        """The same for the last seconds of a recording; None: for all. UsageError: it has times already."""
        if seconds is None:
            return self
        if self.since_ns is not None or self.until_ns is not None:
            raise click.UsageError("--last goes without --since and --until")
        with utracefs.open(path, recover=recover, raw_eventheader=True) as recording:
            return attrs.evolve(self, since_ns=max(0, recording.last_ns() - int(seconds * 10**9)))


def raw_eventheader_option() -> Callable[[F], F]:
    """`--raw-eventheader`."""
    return click.option(
        "--raw-eventheader",
        is_flag=True,
        help="Show EventHeader tracepoints with the kernel's fields, not as the events in their records.",
    )


def selection_options(function: F) -> F:
    """`-e`, `--cpu`, `-P`, `--since`, `--until`, `--filter`, `--raw-eventheader`; the parameter `selection`
    is a Selection."""

    def run(*args: Any, pids: tuple[int, ...], filters: tuple[str, ...], **options: Any) -> Any:
        given = {name: options.pop(name) for name in attrs.fields_dict(Selection) if name in options}
        selection = Selection(**given, pids=frozenset(pids) or None, filter=all_filters(filters))
        return function(*args, selection=selection, **options)

    return with_options(
        function,
        run,
        raw_eventheader_option(),
        filter_option("Only records that pass, as an event's filter file has it: 'status >= 500'."),
        click.option(
            "--until", "until_ns", metavar="S", type=Parsed("time", time_ns), help="Before this time."
        ),
        click.option(
            "--since",
            "since_ns",
            metavar="S",
            type=Parsed("time", time_ns),
            help="From this time on, in seconds (see report -t).",
        ),
        click.option(
            "-p",
            "-P",
            "--pid",
            "pids",
            metavar="PID",
            type=int,
            multiple=True,
            help="Only this process or thread.",
        ),
        click.option(
            "--cpu", "cpus", metavar="LIST", type=Parsed("cpus", _cpus), help="Only these cpus: 0,2-5."
        ),
        events_option("Only these events: SYSTEM:NAME, NAME, or globs."),
    )


def tell_if_moved(path: str, origin: "Origin") -> None:
    """Warn if the time of day was changed during the recording."""
    if origin.moved:
        tell(f"{path}: {origin.moved}")


def said_whole(done: "Exported", source: str, output: str | None) -> None:
    """Print `said`; Failure if not all records had room."""
    said(done, source, output)
    if done.error is not None:
        raise no_room(output or source, done.error, done.no_room, "records")


def said(done: "Exported", source: str, output: str | None) -> None:
    """Print the summary on stderr; None: the output is stdout, print only losses, and that nothing came."""
    lost = f", {done.lost} lost" if done.lost else ""
    lost += ", more lost that were not counted" if done.lost_uncounted else ""
    if done.begins_without_end:
        lost += f", slices without an end: {done.begins_without_end}"
    if done.ends_without_begin:
        lost += f", ends without a begin: {done.ends_without_begin}"
    if done.only_counted:
        lost += f"; the table has the first {done.records - done.only_counted}, the timeline counts all"
    if done.day_guessed:
        lost += "; the days are guessed: the recording does not know the time of day"
    if output:
        click.echo(f"{output}: {done.records} records{lost}", err=True)
    elif lost or not done.records:
        click.echo(f"utracefs: {source}: {done.records} records{lost}", err=True)


def check_is_not_input(path: str, *sources: str) -> None:
    """Failure if the output would overwrite an input."""
    for source in sources:
        if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
            raise Failure(path, "is the input")


@contextlib.contextmanager
def output_file(path: str | None, *sources: str) -> Iterator[BinaryIO]:
    """Open the output. A file gets its name when it is complete, or complete up to an error in the input."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    check_is_not_input(path, *sources)
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "wb") as out:
            yield out
        return
    with half_done(path) as temporary, WholeFile(temporary) as out:
        # Keep the mode, so that a private file stays private.
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(out.fileno(), os.stat(path).st_mode & 0o777)
        yield cast("BinaryIO", out)


@contextlib.contextmanager
def half_done(path: str) -> Iterator[str]:
    """A temporary name beside `path`, unique to this process. The file or folder gets the name `path` at the
    end, also after an error in the input, up to which it is complete. It is removed after other errors and
    after signals. OSErrors name `path`."""
    real = os.path.realpath(path)
    temporary = name_beside(real)
    with errors_about(path), ended_by_exceptions():
        try:
            try:
                yield temporary
            except TraceError as error:
                if error.errno == errno.EINVAL:
                    os.rename(temporary, real)
                raise
            os.rename(temporary, real)
        except BaseException:
            if os.path.isdir(temporary):
                shutil.rmtree(temporary, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


class _Ended(BaseException):
    """By a signal."""


@contextlib.contextmanager
def ended_by_exceptions() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process by an exception, like Ctrl-C, so that cleanup runs first."""
    came: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        if not came:
            came.append(number)
            raise _Ended

    taken = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    try:
        with handling(end, *taken):
            yield
    finally:
        if came:
            os.kill(os.getpid(), came[0])


@contextlib.contextmanager
def progress_bar(clock: Callable[[], float] = time.monotonic) -> Iterator["Progress"]:
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
def _shown_bar() -> Iterator["Progress"]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(
        console=Console(file=own(sys.stderr)), transient=True, redirect_stdout=False, redirect_stderr=False
    ) as bar:
        task = bar.add_task("export", total=1.0)
        yield lambda done: bar.update(task, completed=done)
