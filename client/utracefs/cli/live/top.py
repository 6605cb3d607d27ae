"""`utracefs top`: rates of records and losses by event and process, live.

    event_counts of the daemon ──▶ Rates (top_rates) ──▶ View (top_view) ──▶ a terminal
                                                     ──▶ tables or JSON, one below the other

The daemon counts while `top` runs, and copies no records. On a terminal the alternate screen is used, and
left at any end but SIGKILL.
"""

import codecs
import contextlib
import io
import json
import os
import re
import selectors
import shutil
import signal
import sys
import termios
import time
import tty
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import (
    all_buffers,
    available_events,
    connect,
    directory_option,
    echo,
    events_option,
    handling,
    json_option,
    seconds_option,
    tell,
)
from utracefs.cli.live.top_rates import BOTH, EVENTS, PROCESSES, Rates, parse_counts
from utracefs.cli.live.top_view import SORTS, View, short
from utracefs.cli.losses import OF_ALL, all_lost, lost_text
from utracefs.cli.run.ledger import read_stats
from utracefs.cli.tables import counted, table_lines
from utracefs.cli.terminal import live, own
from utracefs.tree.closing import Closing
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName, select
from utracefs_protocol.terminal import harmless
from utracefs_protocol.text import bytes_of

if TYPE_CHECKING:
    from rich.live import Live


_READ_BYTES = 1 << 20

_NO_SCREEN = ("dumb", "unknown")
"""Values of TERM without cursor control, as in rich, which would print nothing there."""

_KEYS = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b[5~": "pgup",
    "\x1b[6~": "pgdn",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\x1bOH": "home",
    "\x1bOF": "end",
    "\x1b[1~": "home",
    "\x1b[4~": "end",
    "\x1b": "esc",
}

_KEY = re.compile("|".join(map(re.escape, sorted(_KEYS, key=len, reverse=True))) + "|.", re.DOTALL)


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@events_option("Only these events: SYSTEM:NAME, NAME, or globs; those registered later, too. [default: all]")
@click.option("-p", "--pid", "pids", metavar="PID", type=int, multiple=True, help="Only this process.")
@seconds_option("--delay", "delay_s", "Time between updates. [default: 2s]", letter="-d")
@click.option(
    "-n", "--iterations", "iterations", metavar="N", type=click.IntRange(min=1), help="End after N of them."
)
@click.option(
    "--by",
    type=click.Choice([BOTH, EVENTS, PROCESSES]),
    default=BOTH,
    help="One row per event, per process, or per pair of both.",
)
@click.option("--sort", type=click.Choice(SORTS), default="rate", help="[default: rate]")
@click.option("--batch", is_flag=True, help="Tables one below the other, as without a terminal.")
@json_option
def top(
    directory: str | None,
    events: tuple[str, ...],
    pids: tuple[int, ...],
    delay_s: float | None,
    iterations: int | None,
    by: str,
    sort: str,
    batch: bool,
    as_json: bool,
) -> int:
    """Show records, bytes and losses per second of events and processes, live; h explains the keys.

    The events are enabled as long as it runs. With --json one object per line, for each row.
    """
    view = View(by=by, sort=sort, delay_s=delay_s or 2.0, pids=frozenset(pids))
    live = sys.stdout.isatty() and os.environ.get("TERM") not in _NO_SCREEN and not batch and not as_json
    with _Source(directory, events or (ALL_USER_EVENTS,)) as source:
        if live:
            _Screen(source, view, iterations).run()
        else:
            _in_lines(source, view, iterations, as_json=as_json)
        source.finish()
    if not pids:
        records, lost = source.rates.so_far
        text = f"{counted(records, 'record')}, {lost_text({'in_rings': lost}, records + lost)}"
        of = source.lost.pop("of", 0)
        if source.lost.total() != source.lost["in_rings"]:
            text += f"; of all consumers {lost_text(source.lost, of, kinds=OF_ALL)}"
        tell(text)
    return 0


class _Source(Closing):
    """Reads counts; reconnects after a restart of the daemon. A context manager."""

    def __init__(self, directory: str | None, events: tuple[str, ...]) -> None:
        self._directory = directory
        self._events = events
        self.lost: Counter[str] = Counter()
        """Losses of all consumers since the beginning, by the names of OF_ALL; `of`: of so many records."""
        self._is_away = False
        self._is_reading = False
        self.rates = Rates()
        self.note = ""
        """A further note."""
        self._tree = connect(self._directory)
        # Before the daemon counts for us: a record that we count may be lost at once.
        self._time = time.monotonic()
        self._buffers = all_buffers(self._tree)
        self._lost = self._lost_of(select(events, available_events(self._tree)))
        self._begin()

    def close(self) -> None:
        self._tree.close()

    def _begin(self) -> None:
        try:
            self._handle = self._tree.open("event_counts", os.O_RDWR)
        except FileNotFoundError:
            raise Failure("event_counts", "the daemon is older than this command; start it again") from None
        for event in self._events:
            self._tree.write(self._handle, bytes_of(event) + b"\n")

    def read(self) -> bool:
        """Read the present counts; False, with a note, without a daemon."""
        self._is_reading = True
        try:
            if self._is_away:
                self._tree = connect(self._directory)
                self._begin()
                self._is_away = False
            self._tree.seek(self._handle, 0)
            pieces = []
            while piece := self._tree.read(self._handle, _READ_BYTES):
                pieces.append(piece)
            now = time.monotonic()
            counts = parse_counts(b"".join(pieces))
            self._count_losses(now, {count.event for count in counts if count.records or count.lost})
        except (ConnectionError, TimeoutError, Failure) as error:
            if isinstance(error, Failure) and not self._is_away:
                raise
            self._tree.close()
            self._is_away, self._is_reading = True, False
            self.note = "the daemon has ended; waiting for the next one"
            return False
        self._is_reading = False
        self.rates.take(now, counts)
        return True

    def finish(self) -> None:
        """Read the counts since the last `read`. A read ended by a signal left its answer on the
        connection."""
        if not self._is_reading and not self._is_away:
            self.read()

    def _count_losses(self, now: float, events: Iterable[str]) -> None:
        """Those since the last call, of these events and of the ring buffers of all instances."""
        buffers, before = all_buffers(self._tree), self._buffers
        names = [EventName(*event.split(":", 1)) for event in events]
        lost = self._lost_of(names)
        in_buffers, gained_of = all_lost((), buffers, since=before)
        gained = Counter(in_buffers)
        for event, (numbers, of) in lost.items():
            was, was_of = self._lost.get(event, ({}, 0))
            gained.update({name: number - was.get(name, 0) for name, number in numbers.items()})
            gained_of += of - was_of
        gained, gained_of = +gained, max(0, gained_of)  # a new daemon counts from 0
        elapsed = max(now - self._time, 1e-9)
        self.lost.update(gained, of=gained_of)
        self.rates.losses = (
            gained.total() / elapsed,
            gained_of / elapsed,
            self.lost.total() - self.lost["of"],
        )
        # An instance that is removed takes its numbers with it, so the difference is that of each.
        overwritten, dropped = (
            short(
                max(0, sum(one[key] - before.get(name, Counter[str]())[key] for name, one in buffers.items()))
                / elapsed
            )
            for key in ("overrun", "dropped events")
        )
        self.note = f"ring buffers: {overwritten}/s overwritten, {dropped}/s dropped"
        self._buffers, self._time = buffers, now
        self._lost |= lost

    def _lost_of(self, events: Iterable[EventName]) -> dict[EventName, tuple[dict[str, int], int]]:
        """`all_lost` of each event, in this daemon."""
        return {event: all_lost([stats], {}) for event, stats in read_stats(self._tree, events).items()}


def _in_lines(source: _Source, view: View, iterations: int | None, *, as_json: bool) -> None:
    """Run until Ctrl-C, or the given number of times. The first table follows the first delay."""
    source.read()
    count = 0
    is_away = False
    with contextlib.suppress(KeyboardInterrupt):
        while iterations is None or count < iterations:
            time.sleep(view.delay_s)
            count += 1
            if not source.read():
                if not is_away:
                    tell(f"{source.note}")
                is_away = True
                continue
            is_away = False
            rows = view.rows(source.rates)
            if as_json:
                _print_json(source.rates, view)
            else:
                echo(view.summary(source.rates))
                echo(source.note)
                left = {0, 1, 2} if view.by == BOTH else {0, 1}
                for line in table_lines(view.table(rows), left=left):
                    echo(line)
                echo("")
            sys.stdout.flush()


def _print_json(rates: Rates, view: View) -> None:
    for row in view.rows(rates):
        system, _, name = row.event.partition(":")
        found = {
            "system": system,
            "name": name,
            "pid": row.pid,
            "comm": row.comm,
            "records_per_s": round(row.rate, 3),
            "bytes_per_s": round(row.byte_rate, 3),
            "lost_per_s": round(row.lost_rate, 3),
            "records": row.records,
            "bytes": row.bytes,
            "lost": row.lost,
            "ended": row.ended,
        }
        text = json.dumps(found, ensure_ascii=False)
        sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")


class _Screen:
    """The terminal: reads keys, writes lines."""

    def __init__(self, source: _Source, view: View, iterations: int | None) -> None:
        self._source = source
        self._view = view
        self._left = iterations
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._live: Live | None = None
        self._stopped = False

    def run(self) -> None:
        """Run until q, Ctrl-C, SIGTERM or SIGHUP; then restore the terminal."""
        with contextlib.ExitStack() as stack, contextlib.suppress(KeyboardInterrupt):
            woken = stack.enter_context(_signals(self._note_signal))
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(woken, selectors.EVENT_READ)
            keys = sys.stdin.fileno() if sys.stdin.isatty() else -1
            if keys >= 0:
                selector.register(keys, selectors.EVENT_READ)
            stack.enter_context(self._shown(keys))
            self._loop(selector, woken, keys)

    def _note_signal(self, number: int) -> None:
        if number == signal.SIGTSTP:
            self._stopped = True
        elif number != signal.SIGWINCH:
            raise KeyboardInterrupt

    def _loop(self, selector: selectors.BaseSelector, woken: int, keys: int) -> None:
        due = time.monotonic()
        while not self._view.quitting:
            now = time.monotonic()
            if now >= due:
                if not self._view.paused:
                    self._source.read()
                    if self._left is not None:
                        if self._left == 0:
                            return
                        self._left -= 1
                due = now + self._view.delay_s
            self._draw()
            delay = self._view.delay_s
            for key, _ in selector.select(max(0.0, due - time.monotonic())):
                data = os.read(key.fd, 1024)
                if key.fd == woken:
                    continue
                if not data:
                    return  # the terminal was closed
                for key_text in _KEY.findall(self._decoder.decode(data)):
                    self._view.press(_KEYS.get(key_text, key_text))
            if self._view.delay_s != delay:
                due = time.monotonic() + self._view.delay_s
            if self._stopped:
                self._stop(keys)

    def _draw(self) -> None:
        from rich.text import Text

        size = shutil.get_terminal_size()
        lines = self._view.screen(self._source.rates, self._source.note, size.columns, size.lines)
        text = Text(no_wrap=True, overflow="crop", end="")
        for at, line in enumerate(lines):
            text.append(harmless(line.text), line.style or None)
            text.append("\n" if at + 1 < len(lines) else "")
        assert self._live is not None
        self._live.update(text, refresh=True)

    def _stop(self, keys: int) -> None:
        """Ctrl-Z: restore the terminal for the shell until we continue."""
        self._stopped = False
        self._hide(keys)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._show(keys)

    @contextlib.contextmanager
    def _shown(self, keys: int) -> Iterator[None]:
        self._modes = termios.tcgetattr(keys) if keys >= 0 else None
        try:
            self._show(keys)
            yield
        finally:
            self._hide(keys)

    def _show(self, keys: int) -> None:
        terminal = own(sys.stdout)
        if isinstance(terminal, io.TextIOWrapper):
            terminal.reconfigure(errors="replace")  # names may not be encodable for the terminal
        if keys >= 0:
            tty.setcbreak(keys)
        self._live = live(screen=True)

    def _hide(self, keys: int) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):  # a closed terminal
                self._live.stop()
            self._live = None
        if keys >= 0 and self._modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keys, termios.TCSADRAIN, self._modes)


@contextlib.contextmanager
def _signals(handle: Callable[[int], None]) -> Iterator[int]:
    """Call `handle` for signals, and wake select(2) through the descriptor that it yields."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    taken = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, signal.SIGTSTP)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, reading)
        stack.callback(os.close, writing)
        stack.enter_context(handling(lambda number, _frame: handle(number), *taken))
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(writing, warn_on_full_buffer=False))
        yield reading
