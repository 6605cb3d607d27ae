"""Processing samples live: write them to a perf.data, print them, or count them by thread.

The content of a ring is copied unchanged to the file; a compiled pass (`perf_data/_records`) counts, collects
the threads of the samples, and replaces the identifiers by the file's own, since a new daemon's begin at 1
again.
"""

import functools
import itertools
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import attrs

import utracefs
from utracefs.cli import Failure
from utracefs.cli.common import tell
from utracefs.cli.perf.attached import LOOK_S, Attached, Opened
from utracefs.recordings.origin import Origin
from utracefs.recordings.partial_files import dumped_name
from utracefs.recordings.perf_data._records import Tally
from utracefs.recordings.perf_data._samples import Samples
from utracefs.recordings.perf_data.writer import Contents, PerfDataEvent, PerfDataWriter
from utracefs.recordings.trace_dat.texts import with_small_signs
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import PerfAttr, Tracefs
from utracefs_protocol.events._event_printer import EventPrinter
from utracefs_protocol.events.event_format import EventFormat, parse_format
from utracefs_protocol.pages.perf_ring import DEFAULT_SAMPLE_TYPE, Sample
from utracefs_protocol.terminal import in_one_line
from utracefs_protocol.text import bytes_of, text_of

PIECE = 512 << 10
"""Bytes read at a time: they are copied, counted and written while the cpu's cache has them."""
BUSY_AT = 0.25
"""A ring filled to this part is read again at once."""
BUSY_S = 0.005
"""Delay before rings are read again that had samples."""


class Comms:
    """Names of threads: looked up once, while the thread lives; for ended ones the daemon's saved names."""

    def __init__(self, tree: Callable[[], Tracefs]) -> None:
        self._tree = tree
        self._known: dict[int, str] = {}

    def name(self, tid: int) -> str:
        """`:TID` if it is unknown."""
        found = self._known.get(tid)
        if found is None:
            try:
                with open(f"/proc/{tid}/comm", "rb") as file:
                    found = text_of(file.read().rstrip(b"\n"))
            except OSError:
                found = self._saved(tid)
            self._known[tid] = found
        return found

    def _saved(self, tid: int) -> str:
        try:
            text = self._tree().read_file("saved_cmdlines")
        except OSError:
            text = b""
        for line in text_of(text).split("\n"):
            number, _, comm = line.partition(" ")
            if number == str(tid):
                return comm
        return f":{tid}"


class Line:
    """A sample as one line in the format of perf script: comm, process/thread, cpu, time, event, fields."""

    def __init__(self, name: str, event: EventFormat, *, ns: bool = False) -> None:
        self._name = name
        self._printer = EventPrinter(event)
        self._ns = ns

    def text(self, sample: Sample, comm: str) -> str:
        time_s, rest_ns = divmod(sample.time, 1_000_000_000)
        rest = f"{rest_ns:09d}" if self._ns else f"{rest_ns // 1000:06d}"
        return in_one_line(
            f"{comm:>16} {sample.pid:>7}/{sample.tid:<7} [{sample.cpu:03d}] "
            f"{time_s:5d}.{rest}: {self._name}: {self._printer.text(sample.raw)}"
        )


def _drained(attached: Attached) -> Iterator[tuple[Opened, float]]:
    """Yields each ring, and how full it is; rings of an earlier daemon are closed afterwards."""
    for one in attached.take_orphans():
        yield one, 0.0
        one.close()
    for one in list(attached.opened.values()):
        if one.reader is not None:
            yield one, one.reader.filled


def _wait_s(filled: float) -> float:
    return 0.0 if filled >= BUSY_AT else BUSY_S if filled else LOOK_S


DESCRIBE_S = 1.0
"""Interval of writing descriptions of samples beside them."""


@attrs.frozen
class Written:
    name: str
    size: int
    """Bytes."""
    samples: int
    lost: int
    """Samples missing in it: lost in rings, on the way, on the disk; at least those emitted while the daemon
    was away."""
    no_room: int
    """Samples among these for which the disk had no space."""
    error: OSError | None
    """The error of the disk."""


class PerfRecorder:
    """Writes the samples in the rings to a perf.data: `step`, then `finish`; `dump` completes one file and
    begins another. A context manager: after an exception other than Failure the samples stay in NAME.part.

    From the first step on a thread empties the rings, while the caller waits for the daemon: beside a fast
    program that takes longer than a ring has room for.
    """

    def __init__(self, attached: Attached, path: str, attr: PerfAttr) -> None:
        self._attached = attached
        self._path = path
        self._attr = attr
        self._ids: dict[tuple[EventName, bytes], int] = {}
        """By event and format: an event that is registered again may have other fields."""
        self._events: list[PerfDataEvent] = []
        self._comms = Comms(lambda: attached.tree)
        self._tasks: dict[tuple[int, int], bytes] = {}
        self._tally = Tally()
        self._reported: Counter[EventName] = Counter()
        """Losses in LOST records of the files."""
        self._unseen: Counter[EventName] = Counter()
        """Records missed while the daemon was away."""
        self._reported_before = 0
        self._described = (-1, -1)
        self._describe_due = 0.0
        self._describe_again = 0.0
        """Earliest time of the next description, so that many new events do not take all our time."""
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        """The error of the thread."""
        tree = attached.tree
        self._origin = Origin.here("mono")
        self._header_page = tree.read_file("events/header_page")
        self._header_event = tree.read_file("events/header_event")
        self._writer = PerfDataWriter(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self._end_thread()
        if kind is None or issubclass(kind, Failure) or not self._tally.samples:
            self._writer.close()
        else:
            self._writer.leave()
            tell(f"{self._writer.part} has the records until then, for --recover")

    def step(self) -> float:
        """Open new events, describe them; returns the seconds until the next step."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._empty, name="samples", daemon=True)
            self._thread.start()
        self._attached.look_when_due()
        self._name_tasks()
        with self._lock:
            self._describe()
        return LOOK_S

    def _empty(self) -> None:
        """In the thread."""
        wait_s = 0.0
        try:
            while not self._stop.wait(wait_s):
                wait_s = _wait_s(self._take())
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self._error = error

    def _end_thread(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _describe(self) -> None:
        now = time.monotonic()
        # A sample of an event cannot be read without the event's format.
        is_new = len(self._events) > self._described[0] and now >= self._describe_again
        if is_new or now >= self._describe_due:
            self._describe_due = now + DESCRIBE_S
            known = (len(self._events), len(self._tasks))
            if known != self._described:
                self._described = known
                self._writer.describe(self._contents())
                self._describe_again = now + 10 * (time.monotonic() - now)

    def drain(self) -> None:
        """Write all samples in the rings. Errors of the thread."""
        self._take()
        self._name_tasks()

    def _take(self) -> float:
        """Maximum fill of the rings."""
        fullest = 0.0
        with self._lock:
            for one, filled in _drained(self._attached):
                assert one.reader is not None
                lost = self._tally.lost
                for data in one.reader.take(functools.partial(self._count, one), PIECE):
                    self._writer.add(data)
                self._reported[one.event] += self._tally.lost - lost
                fullest = max(fullest, filled)
        return fullest

    def _count(self, one: Opened, data: bytearray) -> int:
        return self._tally.add(data, self._id(one))

    def _name_tasks(self) -> None:
        """Not in the thread: it may ask the daemon."""
        if self._error is not None:
            raise self._error
        with self._lock:
            tasks = self._tally.take_tasks()
        for pid, tid in tasks:
            if (pid, tid) not in self._tasks:
                self._tasks[pid, tid] = bytes_of(self._comms.name(tid))

    def missed(self, one: Opened, count: int) -> None:
        """For Attached: write a LOST record at the place of the loss. Its number is 0 if unknown."""
        with self._lock:
            self._unseen[one.event] += count
            self._reported[one.event] += count
            self._writer.add_lost(self._id(one), count, time.monotonic_ns())

    def _id(self, one: Opened) -> int:
        key = (one.event, one.format)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self._ids) + 1
            self._events.append(
                PerfDataEvent(
                    bytes_of(one.event.system),
                    bytes_of(one.event.name),
                    parse_format(one.format).id,
                    found,
                    with_small_signs(one.format),
                    self._attr.sample_period,
                    self._attr.sample_freq,
                )
            )
        return found

    def dump(self, command: Sequence[str]) -> Written:
        """Complete the present file under a name with the time, and begin another. OSError: no room for
        another file, and the present one continues; or it could not be completed."""
        with self._lock:
            self.drain()
            writer = PerfDataWriter(self._path)
            try:
                return self._finish(command, dumped_name(self._path))
            finally:
                self._writer, self._tally = writer, Tally()
                self._reported_before = self._reported.total()
                self._described, self._describe_due = (-1, -1), 0.0

    def finish(self, command: Sequence[str]) -> Written:
        """Complete the file."""
        self._end_thread()
        return self._finish(command, None)

    def _finish(self, command: Sequence[str], path: str | None) -> Written:
        lost = self._attached.lost() + self._unseen
        for one in self._attached.opened.values():
            self._id(one)  # also events without samples
        for (event, _), identifier in self._ids.items():
            # Losses behind the last sample are reported only here.
            if (rest := lost[event] - self._reported[event]) > 0:
                self._reported[event] += rest
                self._writer.add_lost(identifier, rest, time.monotonic_ns())
        contents = attrs.evolve(
            self._contents(), origin=self._origin.ended("mono"), command=[bytes_of(word) for word in command]
        )
        size = self._writer.finish(contents, path)
        no_room = self._writer.given_up
        return Written(
            path or self._path,
            size,
            self._tally.samples - no_room,
            self._reported.total() - self._reported_before + no_room,
            no_room,
            self._writer.error,
        )

    def _contents(self) -> Contents:
        return Contents(
            events=self._events,
            header_page=self._header_page,
            header_event=self._header_event,
            comms=self._tasks,
            first_ns=self._tally.first_ns,
            last_ns=self._tally.last_ns,
            origin=self._origin,
            version=f"utracefs {utracefs.__version__}".encode(),
        )


class _Sampled:
    """Samples as they are taken."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._comms = Comms(lambda: attached.tree)
        self._reported = 0
        """Losses according to LOST records of the rings."""

    @property
    def lost(self) -> int:
        """Number of samples lost anywhere, since the beginning."""
        return max(self._attached.lost().total(), self._reported)


class PerfTrace(_Sampled):
    """Prints samples as they are emitted, in the order of time within each step."""

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._lines: dict[tuple[EventName, bytes], Line] = {}
        self.samples = 0

    def step(self) -> float:
        self._attached.look()
        self.print()
        return LOOK_S

    def print(self) -> None:
        lines: list[tuple[int, str]] = []
        for one, _ in _drained(self._attached):
            assert one.reader is not None
            line = self._line(one)
            for data in one.reader.take():
                samples = Samples(data, 0, len(data), DEFAULT_SAMPLE_TYPE, False, comms={})
                last = lost = 0
                for sample in itertools.chain(samples, (None,)):
                    if samples.lost > lost:
                        lines.append((last, f"{one.event}: LOST {samples.lost - lost} SAMPLES"))
                        lost = samples.lost
                    if sample is not None:
                        self.samples += 1
                        last = sample.time
                        lines.append((last, line.text(sample, self._comms.name(sample.tid))))
                self._reported += lost
        if lines:
            lines.sort(key=lambda line: line[0])
            sys.stdout.buffer.write(bytes_of("".join(f"{line}\n" for _, line in lines)))
            sys.stdout.buffer.flush()

    def _line(self, one: Opened) -> Line:
        key = (one.event, one.format)
        if key not in self._lines:
            self._lines[key] = Line(str(one.event), parse_format(one.format))
        return self._lines[key]


class PerfTop(_Sampled):
    """Counts samples by event and process: call `step`, and `rows` for a table."""

    def __init__(self, attached: Attached) -> None:
        super().__init__(attached)
        self._counts: Counter[tuple[str, str, int]] = Counter()

    def step(self) -> float:
        self._attached.look_when_due()
        fullest = 0.0
        for one, filled in _drained(self._attached):
            assert one.reader is not None
            tally = Tally()
            for _ in one.reader.take(functools.partial(tally.add, id=1), PIECE):
                pass
            self._reported += tally.lost
            for (pid, tid), count in tally.take_tasks().items():
                self._counts[str(one.event), self._comms.name(tid), pid] += count
            fullest = max(fullest, filled)
        return _wait_s(fullest)

    def rows(self, took_s: float) -> list[list[str]]:
        """Rows of the samples since the last call, most first: names of the columns, then the rows."""
        counts, self._counts = self._counts, Counter()
        total = counts.total()
        rows = [["OVERHEAD", "SAMPLES", "PER S", "EVENT", "COMMAND", "PID"]]
        for (event, comm, pid), count in counts.most_common():
            share, rate = f"{count / total:.2%}", f"{count / took_s:.1f}"
            rows.append([share, str(count), rate, event, comm, str(pid)])
        return rows
