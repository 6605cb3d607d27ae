"""Options, connection and output of several commands.

`--dir` may be given before or after the command's name: `utracefs --dir D status`, `utracefs status --dir D`.
"""

import contextlib
import errno
import functools
import json
import os
import re
import signal
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, Final, Self, cast

import attrs
import click

from utracefs.cli import F, Failure, Parsed, error_text
from utracefs.cli.completion import complete_path, complete_pattern
from utracefs.cli.instance_option import TOP, Place, instance_names
from utracefs.tree import runtime_dir
from utracefs.tree.event_names import (
    EventName,
    did_you_mean,
    is_glob,
    parse_event_list,
    select,
    similar_event,
)
from utracefs.tree.runtime_dir import candidates
from utracefs_protocol.events.event_names import MAX_WORD
from utracefs_protocol.places import DATA_SOCKET, TRACEFS_SOCKET
from utracefs_protocol.terminal import discard
from utracefs_protocol.text import bytes_of, seconds_of, size_of, text_of

HELLO_S = 10.0
"""Timeout for the first answer of a daemon: systemd may have to start it first, which takes seconds on a busy
machine, and after a restart it waits up to 3.2 s for the rings of programs."""

ANSWER_S = 30.0
"""Timeout for further answers: the daemon has one thread, and may be busy printing 64 MiB."""


_NUM_THREADS = 17
"""Index behind the name in /proc/PID/stat: `num_threads` of proc(5)."""

OTHER_PID_NAMESPACE = (
    "is in a pid namespace of its own and sees none of our processes: run it with the host's"
    " (docker run --pid=host, hostPID: true)"
)
"""The rest of a sentence about a daemon in another pid namespace."""


def with_options(function: F, run: Callable[..., Any], *options: Callable[[Any], Any]) -> F:
    """`run`, which calls the function, with these options; the help shows the last one first."""
    made: Any = functools.update_wrapper(run, function)
    return cast("F", functools.reduce(lambda made, option: option(made), options, made))


def directory_option(function: F) -> F:
    """`--dir`; by default the one before the command's name."""
    return click.option(
        "--dir",
        "directory",
        metavar="DIR",
        callback=lambda ctx, _param, value: value or ctx.find_root().params.get("directory"),
        help="Directory of the daemon's sockets.",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


if TYPE_CHECKING:
    from utracefs.tree.tracefs import Tracefs


def seconds_option(
    option: str,
    name: str,
    help_text: str,
    *,
    letter: str | None = None,
    default: str | None = None,
    with_0: bool = False,
) -> Callable[[F], F]:
    """A time above 0, or 0, too: 10 or 10s, 5m, 2h, 1d."""

    def parse(text: str) -> float:
        seconds = -1.0
        with contextlib.suppress(ValueError):
            seconds = seconds_of(text)
        if seconds < 0 or (seconds == 0 and not with_0):
            raise ValueError(f"{text!r} is not a number of seconds above 0, or a time like 90s, 10m, 2h, 1d")
        return seconds

    return click.option(
        *filter(None, (letter, option)),
        name,
        metavar="TIME",
        type=Parsed("seconds", parse),
        default=default,
        show_default=default is not None,
        help=help_text,
    )


def duration_option(help_text: str) -> Callable[[F], F]:
    """`--duration TIME`."""
    return seconds_option("--duration", "duration_s", help_text)


class Kilobytes(click.IntRange):
    """A number of KiB, or a size with a unit: 1408, 100M."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not value.isdecimal():
            try:
                value = size_of(value) >> 10
            except ValueError:
                self.fail(f"{value!r} is not a number of KiB, or a size such as 1536K, 100M, 2G", param, ctx)
        return super().convert(value, param, ctx)


def subbuf_size_option(function: F) -> F:
    """`--subbuf-size KB`."""
    return click.option(
        "--subbuf-size",
        "subbuf_size_kb",
        metavar="KB",
        type=Kilobytes(1, 512),
        help="Size of a page of the ring buffer, which must hold the largest record. [default: 4]",
    )(function)


def event_pattern(text: str) -> str:
    """Check SYSTEM:NAME, a bare name, or a glob of either. ValueError."""
    if not text or re.search(r"\s", text) or text.startswith("!"):
        raise ValueError(f"{text!r} is not an event: SYSTEM:NAME, NAME, or a glob of either")
    if text.count(":") > 1:
        raise ValueError(f"{text!r} has more than one ':'; separate events by commas")
    if len(bytes_of(text)) > MAX_WORD:
        raise ValueError(f"{text[:20]!r}... is longer than {MAX_WORD} bytes")
    return text


EVENT_PATTERN: Final = Parsed("event", event_pattern, complete_pattern)

_EVENT_PATTERNS: Final = Parsed(
    "events", lambda text: tuple(map(event_pattern, text.split(","))), complete_pattern
)


def path_argument(name: str, **options: Any) -> Callable[[F], F]:
    """A path of the tree."""
    return click.argument(name, shell_complete=complete_path, **options)


@contextlib.contextmanager
def with_extras(extra: str = "") -> Iterator[None]:
    """In the block, a missing library becomes a Failure that names the extra to install. extra: its name, if
    the command needs more of it than that library."""
    try:
        yield
    except ImportError as error:
        hint = f"{(error.name or '').partition('.')[0]} is not installed: pip install 'utracefs[{extra}]'"
        raise Failure("", hint if extra and error.name else str(error)) from None


def events_option(help_text: str, *, by_option: bool = False) -> Callable[[F], F]:
    """`-e EVENT,...`, repeated. by_option: a tuple for each `-e`, not one of them all."""
    return click.option(
        "-e",
        "--event",
        "events",
        metavar="EVENT,...",
        type=_EVENT_PATTERNS,
        multiple=True,
        callback=None if by_option else lambda _ctx, _param, given: sum(given, ()),
        help=help_text,
    )


def events_argument(*, required: bool, name: str = "events") -> Callable[[F], F]:
    """EVENT..., as arguments."""
    return click.argument(
        name,
        metavar="EVENT..." if required else "[EVENT...]",
        type=EVENT_PATTERN,
        nargs=-1,
        required=required,
    )


@attrs.frozen
class Finding:
    """One result of `utracefs doctor`."""

    level: str
    """`ok`, `note`, `FAIL`."""
    what: str
    text: str
    """The result, and what to do about it."""


ok, note, fail = (functools.partial(Finding, level) for level in ("ok", "note", "FAIL"))


class NoAnswer(Failure):
    """A daemon exists but does not answer."""


@contextlib.contextmanager
def telling_of_wait(directory: str | None) -> Iterator[None]:
    """For the first answer of a daemon, within HELLO_S: after a second a line says why it does not come."""
    timer = threading.Timer(1.0, _tell_of_wait, (directory,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _tell_of_wait(directory: str | None) -> None:
    why = "does not answer yet"
    with (
        contextlib.suppress(OSError),
        runtime_dir.connect(TRACEFS_SOCKET, directory, timeout_s=0.001) as sock,
    ):
        pid = peer_pid(sock)
        if _stat_of(pid)[0] in (b"T", b"t"):
            why = f"is stopped, `kill -CONT {pid}` continues it"
    tell(f"the daemon {why}; waiting {HELLO_S:g} s for it")


def peer_pid(sock: socket.socket) -> int:
    """The daemon's process, or systemd's if that listens; 0: in no pid namespace that we see."""
    pid: int = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid


def _stat_of(pid: int | str) -> list[bytes]:
    """The fields of /proc/PID/stat behind the name, the state first. OSError if there is none."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2].split()


def exists(pid: int | str) -> bool:
    """Whether there is a process, or thread, of this number that has not ended: a zombie may stay for long.
    (One with further threads is a process whose first one has ended.)"""
    try:
        values = _stat_of(pid)
    except OSError:
        return False
    return values[0] not in (b"Z", b"X") or int(values[_NUM_THREADS]) > 1


def connect(directory: str | None, place: Place = TOP, *, hello_s: float = HELLO_S) -> "Tracefs":
    """Connect to the tree. Failure, with what to do, without a daemon or without such an instance; NoAnswer
    after hello_s."""
    with telling_of_wait(directory) if hello_s == HELLO_S else contextlib.nullcontext():
        tree = _connect(directory, hello_s)
    try:
        check_place(tree, place)
    except BaseException:
        tree.close()
        raise
    return tree


def _connect(directory: str | None, hello_s: float) -> "Tracefs":
    from utracefs.tree.tracefs import Tracefs  # not for `report` and `export`

    try:
        tree = Tracefs(directory, timeout_s=hello_s)
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not error.filename:
            path = " and ".join(os.path.join(one, TRACEFS_SOCKET) for one in candidates(directory))
        else:
            path = str(error.filename)
        kind = NoAnswer if isinstance(error, TimeoutError | BlockingIOError) else Failure
        raise kind(path, why_no_connection(error, hello_s)) from None
    try:
        tree.stat("")
    except OSError as error:
        tree.close()
        kind = NoAnswer if isinstance(error, TimeoutError) else Failure
        raise kind(str(error.filename), why_no_connection(error, hello_s)) from None
    tree.set_timeout(ANSWER_S)
    return tree


def check_place(tree: "Tracefs", place: Place) -> None:
    """Failure if there is no such instance."""
    if place != TOP:
        try:
            tree.stat(place.path(""))
        except FileNotFoundError:
            hint = did_you_mean(place.name, instance_names(tree)) or "; `utracefs instance list` shows all"
            raise Failure(place.name, f"no such instance{hint}") from None


def why_no_connection(error: OSError, hello_s: float = HELLO_S) -> str:
    """The text for a failed connect(2), or for no answer within hello_s."""
    match error.errno:
        case errno.ENOENT:
            return "no daemon is there; start one with `utracefs daemon`"
        case errno.ECONNREFUSED:
            return "no daemon answers there any more; start one with `utracefs daemon`"
        case errno.ETIMEDOUT | errno.EAGAIN:
            return f"the daemon does not answer within {hello_s:g} s; is it stopped?"
        case errno.EACCES | errno.EPERM if str(error.filename).endswith(DATA_SOCKET):
            return (
                f"{error.strerror}; only the daemon's user, root and the group `tracing`, or that of --group,"
                " may emit"
            )
        case errno.EACCES | errno.EPERM:
            return f"{error.strerror}; only the daemon's user, root and the group of --tracefs-group may look"
        case _:
            return error.strerror or str(error)


def available_events(tree: "Tracefs") -> list[EventName]:
    """All events, oldest first."""
    return parse_event_list(tree.read_file("available_events"))[::-1]


def selected(
    tree: "Tracefs", patterns: Iterable[str], otherwise: str = "; `utracefs list` shows all"
) -> list[EventName]:
    """The events that the patterns match; Failure for a pattern without a match, and without a similar name
    with the hint `otherwise`."""
    events = available_events(tree)
    for pattern in patterns:
        if not select([pattern], events):
            raise Failure(pattern, f"no such event{similar_event(pattern, events) or otherwise}")
    return select(patterns, events)


_REFUSED = re.compile(r"^refused: (\d+) (.+)$", re.MULTILINE)
_CONSUMER = re.compile(r"^(.+): recorded (\d+) filtered (\d+) lost (\d+)$", re.MULTILINE)


@attrs.frozen
class EventStats:
    """events/SYSTEM/NAME/stats."""

    emitted: int
    lost_in_rings: int
    """Emitted records that found a data ring full, so no consumer got them."""
    consumers: dict[str, dict[str, int]]
    """Consumer to its counts: recorded, filtered, lost."""
    detached: frozenset[str] = frozenset()
    """Consumers among them that have detached."""
    rings_gone: int = 0
    """Data rings that were missing at the daemon's start, with an unknown number of records."""
    refused: dict[str, int] = attrs.field(factory=dict[str, int])
    """Refused records: reason to number."""
    emitted_bytes: int = 0
    """Bytes of their payloads, without those of `lost_in_rings`."""

    def of(self, consumer: str) -> "EventStats":
        """The same, with this consumer alone."""
        return attrs.evolve(self, consumers={k: v for k, v in self.consumers.items() if k == consumer})


def event_stats(text: bytes) -> EventStats:
    """Parse the file; missing numbers are zero. A daemon of 0.1.0 does not mark detached consumers."""
    content = text_of(text)

    def number(pattern: str) -> int:
        found = re.search(pattern, content, re.MULTILINE)
        return int(found[1]) if found else 0

    # No consumer has this name: its line would be longer.
    begin = content.find("\ndetached:\n")
    rows = list(_CONSUMER.finditer(content))
    consumers: dict[str, dict[str, int]] = {}
    for found in rows:  # attached ones come first, and may have the name of a detached one
        counts = {"recorded": int(found[2]), "filtered": int(found[3]), "lost": int(found[4])}
        consumers.setdefault(found[1], counts)
    return EventStats(
        number(r"\Aemitted: (\d+)"),
        number(r"^lost in data rings: (\d+)$"),
        consumers,
        frozenset(found[1] for found in rows if 0 <= begin < found.start()),
        number(r"^lost with data rings that are gone: unknown, of (\d+)$"),
        {found[2]: int(found[1]) for found in _REFUSED.finditer(content)},
        number(r"\Aemitted: \d+\nbytes: (\d+)"),
    )


def numbers(text: bytes) -> dict[str, int]:
    """`name: number` lines, as in per_cpu/cpuN/stats; lines with other values are skipped."""
    found = {}
    for line in text.decode("ascii", "replace").splitlines():
        name, _, value = line.partition(":")
        if value.strip().isdigit():
            found[name.strip()] = int(value)
    return found


def cpus_of(tree: "Tracefs", place: Place) -> list[int]:
    """Those with a ring buffer."""
    return sorted(int(name[3:]) for name, kind in tree.list_dir(place.path("per_cpu")) if kind == "d")


def cpu_numbers(tree: "Tracefs", place: Place) -> dict[int, dict[str, int]]:
    """Numbers of each cpu's ring buffer in an instance; none for one that cannot be read."""
    cpus = cpus_of(tree, place)
    texts = tree.read_files(place.path(f"per_cpu/cpu{cpu}/stats") for cpu in cpus)
    found = [numbers(text) if isinstance(text, bytes) else {} for text in texts]
    return dict(zip(cpus, found, strict=True))


def buffer_numbers(tree: "Tracefs", place: Place) -> Counter[str]:
    """Their sums."""
    each = cpu_numbers(tree, place)
    found = Counter({"cpus": len(each)})
    for one in each.values():
        found.update(one)
    return found


def all_buffers(tree: "Tracefs") -> dict[str, Counter[str]]:
    """`buffer_numbers` of each instance; the top one has no name."""
    found = {}
    for name in ("", *sorted(instance_names(tree))):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            found[name] = buffer_numbers(tree, Place(name))
    return found


def tell_absent(tree: "Tracefs", patterns: Iterable[str], rest: str, *, globs: bool = False) -> bool:
    """Print `NAME: no such event REST` for names of events that do not exist, and for globs that match none
    with `globs`; returns whether it did."""
    there = available_events(tree)
    absent = [one for one in patterns if (globs or not is_glob(one)) and not select([one], there)]
    for pattern in absent:
        tell(f"{pattern}: no such event {rest}{similar_event(pattern, there)}")
    return bool(absent)


def standing_events(tree: "Tracefs", place: Place = TOP) -> list[str]:
    """The globs of an instance."""
    return [text_of(word) for word in tree.read_file(place.path("standing_events")).split()]


def refused_events(tree: "Tracefs", patterns: Sequence[str], since_s: float = 0.0) -> list[str]:
    """`NAME: PROGRAM declares ..., but WHY`: refused registrations of the events that match any of
    `patterns`, or of all. since_s: of CLOCK_MONOTONIC."""
    try:
        lines = text_of(tree.read_file("refused_events")).splitlines()
    except FileNotFoundError:  # an older daemon
        return []
    split = [line.split(" ", 2) for line in lines]
    return [
        f"{name} {text}"
        for time_s, name, text in split
        if float(time_s) >= since_s
        and (not patterns or select(patterns, [EventName("user_events", name[:-1])]))
    ]


def refused_connections(tree: "Tracefs") -> int:
    """How often the daemon refused a program's connection; a program tries again."""
    try:
        text = tree.read_file("daemon_stats")
    except FileNotFoundError:  # an older daemon
        return 0
    found = re.search(rb"^connections refused: (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def write_word(tree: "Tracefs", path: str, word: str) -> None:
    """Append one word to a file of words (set_event, standing_events)."""
    tree.write_all(path, bytes_of(word) + b"\n", truncate=False)


def echo(text: str) -> None:
    """Print one line on stdout; bytes that are not UTF-8 are printed unchanged."""
    click.echo(bytes_of(text))


def tell(text: str) -> None:
    """Print one line on stderr. Ignores a closed stderr, so that it ends no recording."""
    with contextlib.suppress(OSError):
        click.echo(f"utracefs: {text}", err=True)


def tell_failure(failure: Failure) -> None:
    """Print one that ends nothing."""
    tell(error_text(failure))
    if failure.detail:
        with contextlib.suppress(OSError):  # as `tell`
            click.echo(failure.detail, err=True)


def echo_json(value: Any) -> None:
    """JSON for scripts: keys in order of insertion, U+FFFD for bytes that are not UTF-8."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    click.echo(text.encode("utf-8", "replace"))


@contextlib.contextmanager
def handling(call: Callable[[int, FrameType | None], object], *numbers: int) -> Iterator[None]:
    """Meanwhile `call` handles these signals."""
    with contextlib.ExitStack() as stack:
        for number in numbers:
            stack.callback(signal.signal, number, signal.signal(number, call))
        yield


_LAST_S: Final = 1.0
"""Time for a reader to take the rest of a piece at the end."""


class Stopping:
    """SIGINT, SIGTERM and the end of its time end a loop that writes, between two pieces; but by
    KeyboardInterrupt one whose reader does not take it in time, or at a second signal. A context manager."""

    def __init__(self, after_s: float | None) -> None:
        self.has_come = False
        self.is_cut_off = False
        self._is_writing = False
        self._after_s = after_s
        self._handling = handling(self._stop, signal.SIGINT, signal.SIGTERM, signal.SIGALRM)

    def __enter__(self) -> Self:
        self._handling.__enter__()
        if self._after_s is not None:
            signal.setitimer(signal.ITIMER_REAL, max(self._after_s, 1e-6), _LAST_S)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._handling.__exit__(None, None, None)

    def _stop(self, _number: int, _frame: object) -> None:
        if not self.has_come:
            self.has_come = True
            signal.setitimer(signal.ITIMER_REAL, _LAST_S, _LAST_S)
        elif self._is_writing:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def writing(self, out: IO[bytes]) -> Iterator[None]:
        """For writing a piece. `is_cut_off` afterwards: its rest, and all that follows, is discarded."""
        self._is_writing = True
        try:
            yield
        except KeyboardInterrupt:
            self.is_cut_off = True
            discard(out)
        finally:
            self._is_writing = False
