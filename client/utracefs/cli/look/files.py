"""`utracefs cat`, `write`, `ls`, `stream`: the files of the tree, used like tracefs in a shell."""

import contextlib
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from stat import S_IFDIR, S_IFREG, S_IMODE, filemode
from types import FrameType

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    connect,
    directory_option,
    duration_option,
    echo,
    events_argument,
    handling,
    path_argument,
    tell,
    tell_absent,
)
from utracefs.cli.event_options import CHECK_S, Wanted, WantedCommand, WantedEvents, wanted_options
from utracefs.cli.instance_option import TOP, Place, instance_option
from utracefs.cli.losses import IN_DATA_RINGS, TOO_LARGE, Losing
from utracefs.cli.run.ledger import Ledger
from utracefs.cli.run.own_instance import own_instance
from utracefs.cli.run.watch import Watch, come_back
from utracefs.cli.tables import counted
from utracefs.tree.event_names import ALL_USER_EVENTS
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.messages.tracefs import ONE_LINE
from utracefs_protocol.terminal import drop_unwritten
from utracefs_protocol.text import bytes_of

_PIECE_BYTES = 1 << 16
_RECORDS_BYTES = 1 << 18
_GATHER_S = 0.01
_ANSWER_S = 10.0
_LOST = re.compile(rb"CPU:\d+ \[LOST \d+ EVENTS\]")


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("PATHs are in this instance.")
@path_argument("paths", metavar="PATH...", nargs=-1, required=True)
def cat(directory: str | None, place: Place, paths: tuple[str, ...]) -> None:
    """Print files of the tree: trace, events/user_events/NAME/format, ... trace_pipe waits for more, until
    Ctrl-C."""
    with _ended_by_signals(), connect(directory, place) as tree:
        for path in paths:
            _copy_out(tree, place.path(path))


@click.command(cls=WantedCommand, context_settings=COMMAND_SETTINGS)
@directory_option
@instance_option("Print the records of this instance instead of the top one; without EVENT.")
@wanted_options(
    "Only these events, enabled or not: SYSTEM:NAME, NAME, or globs; events registered later, too."
)
@click.option("--cpu", metavar="CPU", type=click.IntRange(min=0), help="Only this cpu.")
@duration_option("End after 10 seconds, 5m, 2h, ...")
@click.option("--json", "as_json", is_flag=True, help="JSON lines, as `export --to jsonl` has them.")
@events_argument(required=False, name="names")
def stream(
    directory: str | None,
    place: Place,
    wanted: tuple[Wanted, ...],
    cpu: int | None,
    duration_s: float | None,
    as_json: bool,
    names: tuple[str, ...],
) -> int:
    """Print records as they are emitted (trace_pipe), until Ctrl-C.

    Without EVENT the records of the top instance (-B: that one), which are consumed there. With EVENT, or -e
    EVENT, from a private instance, so other readers lose no record.

    With --json never from a buffer, so no record is consumed: all events, or those named, enabled or not;
    with -B the events enabled there.
    """
    if names:
        if any(one.pattern != ALL_USER_EVENTS for one in wanted):
            raise click.UsageError("give each EVENT a -e, so that a filter belongs to one; or none has a -e")
        # Without -e a filter or a trigger is about all events.
        options = wanted[0] if wanted else Wanted(ALL_USER_EVENTS)
        wanted = tuple(attrs.evolve(options, pattern=name) for name in dict.fromkeys(names))
    # JSON needs the values of fields: a stream of its own, not the daemon's text.
    if as_json:
        expressions = {one.filter for one in wanted}
        if len(expressions) > 1 or any(one.triggers for one in wanted):
            raise click.UsageError("--json takes one --filter for all -e, and no --trigger")
        from utracefs.cli.convert.conversion import output_file, said
        from utracefs.cli.live.json_stream import write_live

        with output_file(None, "") as out:
            done = write_live(
                directory,
                out,
                [one.pattern for one in wanted],
                filter=next(iter(expressions), "") or None,
                place=place,
                cpus=None if cpu is None else [cpu],
                duration_s=duration_s,
            )
        said(done, "stream", None)
        return 0
    if wanted and place != TOP:
        raise click.UsageError("-B uses an existing instance, -e makes one; enable events there instead")
    file = "trace_pipe" if cpu is None else f"per_cpu/cpu{cpu}/trace_pipe"
    has_gone = False
    with contextlib.ExitStack() as stack:
        # A second connection: the first one waits for records at the end.
        control = stack.enter_context(connect(directory, place))
        end = stack.enter_context(_ended_by_signals(duration_s))
        if wanted:
            place = stack.enter_context(own_instance(control, "stream", returns=True))
        asked = WantedEvents(control, place, wanted)
        printing = _Printing(control, place, file, [one.pattern for one in wanted], asked, end)
        stack.callback(printing.tell_what_is_missing)  # also if a signal comes while events are enabled
        if wanted:
            asked.begin()
        printing.tell_what_it_waits_for()
        watch = Watch(printing, asked, partial(come_back, control, *([place] if wanted else [])))
        while (seconds := watch.step()) is not None:
            time.sleep(seconds)
        has_gone = watch.error is not None
    return asked.finish() or int(has_gone)


class _Printing:
    """Prints an instance's records. patterns: of the events of an own instance; none: it is another's."""

    def __init__(
        self,
        control: Tracefs,
        place: Place,
        file: str,
        patterns: Sequence[str],
        asked: WantedEvents,
        end: "_End",
    ) -> None:
        self._control = control
        self._place = place
        self._file = file
        self._patterns = patterns
        self._asked = asked
        self._end = end
        self._ledger = Ledger(control, place)

    def tell_what_it_waits_for(self) -> None:
        if self._patterns:
            if sys.stderr.isatty():
                tell_absent(self._control, self._patterns, "yet; waiting for it")
            return
        switches = [self._place.path(name) for name in ("set_event", "standing_events")]
        if not any(self._control.read_files(switches)):
            tell("no event is enabled: `utracefs enable EVENT` does that, `utracefs stream EVENT` needs none")

    def step(self) -> None:
        """Until the end of the connection."""
        with _checked(self._asked, self._ledger), Tracefs(self._control.directory) as tree:
            _print_records(tree, self._place.path(self._file), self._end)

    def come_back(self) -> None:
        if (unread := self._ledger.come_back()) is not None:
            lost = counted(unread, "record")
            tell(f"the ring buffer did not come back; lost with it, as far as known: {lost}")
        self.tell_what_it_waits_for()

    def tell_what_is_missing(self) -> None:
        """`LOST n EVENTS` precedes a record; losses behind the last record are reported here, with the unread
        records of an own instance."""
        try:
            account = self._ledger.read()
        except (ConnectionError, TimeoutError):
            # There may be one since the last attempt.
            tell("ended before the next daemon was found; later records are missing")
            return
        if lost := account.lost + account.overrun:
            tell(f"{lost} records lost in all, `utracefs status` says of which events")
        if unprinted := self._end.unprinted + bool(self._patterns) * account.unread:
            tell(f"not printed when it ended: {unprinted} more")
        is_absent = tell_absent(self._control, self._patterns, "came", globs=True)
        if self._end.has_opened and not (self._end.has_printed or lost or unprinted or is_absent):
            tell("no record came" + (f", {account.filtered} filtered out" if account.filtered else ""))


@contextlib.contextmanager
def _checked(asked: WantedEvents, ledger: Ledger) -> Iterator[None]:
    """Check options and losses meanwhile, in a thread, since this one waits for records; the connection of
    both belongs to that thread until the end."""
    over = threading.Event()
    losing = Losing(
        "stream", IN_DATA_RINGS, ("in the ring buffer", "--json is faster"), (TOO_LARGE, "--json prints them")
    )

    def check() -> None:
        # An error that ends the connection ends the stream, too, and is reported there.
        with contextlib.suppress(OSError):
            while not over.wait(CHECK_S if asked.has_settings else 1):
                asked.check()
                account = ledger.read()
                lost = {
                    "in data rings": account.in_rings,
                    "in the ring buffer": account.dropped + account.overrun,
                    TOO_LARGE: account.too_large,
                }
                losing.look(account.recorded + account.lost, lost)

    thread = threading.Thread(target=check, name="check", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _copy_out(tree: Tracefs, path: str) -> None:
    out = sys.stdout.buffer
    tree.set_timeout(None)
    try:
        handle = tree.open(path)
        while data := tree.read(handle, _PIECE_BYTES):
            out.write(data)
            out.flush()
    except IsADirectoryError:
        raise Failure(path, f"is a directory; `utracefs ls {path}` lists it") from None
    tree.close_handle(handle)


class _End:
    """Ends a stream by KeyboardInterrupt: at once, or with `is_busy` at the next `wait`."""

    def __init__(self) -> None:
        self.is_busy = False
        self.has_come = False
        self.has_opened = self.has_printed = False
        self.unprinted = 0
        """Records that were taken out of the buffer, and not printed."""

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self.has_come = True
        if not self.is_busy:
            raise KeyboardInterrupt

    def wait(self, fd: int, events: int) -> None:
        poll = select.poll()
        poll.register(fd, events)
        self.is_busy = False
        try:
            if self.has_come:
                raise KeyboardInterrupt
            poll.poll()
        finally:
            self.is_busy = True


def _print_records(tree: Tracefs, path: str, end: _End) -> None:
    """Until `end`; then each record that was taken out of the buffer is either printed or counted there."""
    out = sys.stdout.buffer
    tree.set_timeout(_ANSWER_S)
    handle = tree.open(path, ONE_LINE)
    data, asked = b"", None
    end.has_opened = True
    try:
        end.is_busy = True
        while True:
            asked = tree.ask_read(handle, _RECORDS_BYTES)
            end.wait(tree.fileno(), select.POLLIN)
            piece, asked = tree.finish_read(asked, handle), None
            if len(piece) < _RECORDS_BYTES // 2:
                time.sleep(_GATHER_S)  # fewer requests
            if not piece:
                break
            data, done = data + piece, 0
            try:
                while data.find(b"\n", done) >= 0:  # whole lines: a piece may end in one
                    end.wait(out.fileno(), select.POLLOUT)
                    most = done + select.PIPE_BUF  # a pipe that is writable has room for it
                    size = (data.rfind(b"\n", done, most) + 1 or most) - done
                    out.write(data[done : done + size])
                    out.flush()
                    done += size
                    end.has_printed = True
            finally:
                data = data[done:]
        out.write(data)
        out.flush()
        tree.close_handle(handle)
    except KeyboardInterrupt:
        if asked is not None:
            with contextlib.suppress(ConnectionError, TimeoutError):
                data += tree.end_read(asked, handle)
        end.unprinted = sum(not _LOST.fullmatch(line) for line in data.splitlines())
        raise
    finally:
        end.is_busy = False


@contextlib.contextmanager
def _ended_by_signals(after_s: float | None = None) -> Iterator[_End]:
    """Ctrl-C, SIGTERM and the end of its time end a stream without an error, also where its reader takes
    nothing."""
    end = _End()
    taken = [signal.SIGTERM, signal.SIGALRM]
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as with `&` in a script
        taken.append(signal.SIGINT)
    try:
        with handling(end, *taken):
            try:
                if after_s is not None:
                    signal.setitimer(signal.ITIMER_REAL, after_s)
                yield end
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        drop_unwritten(at_once=True)


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.option("--append", is_flag=True, help="Append, like `>>`: set_event and others keep their contents.")
@click.option("--no-newline", is_flag=True, help="No newline behind TEXT.")
@instance_option("PATH is in this instance.")
@path_argument("path")
@click.argument("words", metavar="[TEXT...]", nargs=-1)
def write(
    directory: str | None, append: bool, no_newline: bool, place: Place, path: str, words: tuple[str, ...]
) -> None:
    """Write TEXT, or by default stdin, to a file of the tree, like echo TEXT > PATH."""
    text = " ".join(words) + ("" if no_newline else "\n")
    data = bytes_of(text) if words else sys.stdin.buffer.read()
    with connect(directory, place) as tree:
        tree.write_all(place.path(path), data, truncate=not append)


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.option("-l", "--long", is_flag=True, help="Show modes.")
@instance_option("PATH is in this instance.")
@path_argument("path", default="")
def ls(directory: str | None, long: bool, place: Place, path: str) -> None:
    """List a directory of the tree; directories end in /."""
    with connect(directory, place) as tree:
        if path and tree.stat(place.path(path)).kind != "d":
            entries = [(path, "f")]
            prefix = ""
        else:
            entries = sorted(tree.list_dir(place.path(path)))
            prefix = f"{path.rstrip('/')}/" if path else ""
        modes = {}
        if long:
            for name, _ in entries:
                with contextlib.suppress(FileNotFoundError):
                    modes[name] = tree.stat(place.path(prefix + name)).mode
    for name, kind in entries:
        slash = "/" if kind == "d" else ""
        bits = S_IFDIR if kind == "d" else S_IFREG
        mode = f"{filemode(bits | S_IMODE(modes[name]))} " if name in modes else ""
        echo(f"{mode}{name}{slash}")
