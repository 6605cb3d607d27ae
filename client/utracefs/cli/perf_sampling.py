"""What is done with samples while they come: written to a perf.data, printed, or counted by thread."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from utracefs.cli import version
from utracefs.cli.common import for_reader
from utracefs.cli.perf_attached import LOOK_S, Attached, Opened
from utracefs.event_names import EventName
from utracefs.perf_data import Contents, PerfDataEvent, PerfDataWriter
from utracefs.perf_data._records import Tally
from utracefs.trace_dat.texts import with_small_signs
from utracefs.tracefs import PerfAttr, Tracefs
from utracefs_protocol._event_printer import EventPrinter
from utracefs_protocol.event_format import EventFormat, parse_format
from utracefs_protocol.perf_ring import Lost, Sample
from utracefs_protocol.text import bytes_of, text_of

__all__ = ["Comms", "Line", "PerfRecorder", "PerfTop", "PerfTrace"]

BUSY_AT = 0.25
"""A ring that was filled to this part is looked at again at once."""
BUSY_S = 0.005
"""When to look again at rings that held anything."""


class Comms:
    """Names of threads: looked up once, while the thread lives; the daemon has saved those that are gone."""

    def __init__(self, tree: Callable[[], Tracefs]) -> None:
        self._tree = tree
        self._known: dict[int, str] = {}

    def name(self, tid: int) -> str:
        """`:TID` where nobody knows it."""
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
    """A sample as a line, as perf script has it: comm, process/thread, cpu, time, event and fields."""

    def __init__(self, name: str, event: EventFormat, *, ns: bool = False) -> None:
        self._name = name
        self._printer = EventPrinter(event)
        self._ns = ns

    def text(self, sample: Sample, comm: str) -> str:
        time_s, rest_ns = divmod(sample.time, 1_000_000_000)
        rest = f"{rest_ns:09d}" if self._ns else f"{rest_ns // 1000:06d}"
        return (
            f"{comm:>16} {sample.pid:>7}/{sample.tid:<7} [{sample.cpu:03d}] "
            f"{time_s:5d}.{rest}: {self._name}: {self._printer.text(sample.raw)}"
        )


def _drained(attached: Attached) -> Iterator[tuple[Opened, float]]:
    """Each ring, and how full it is; those of a daemon that has gone are closed afterwards."""
    for one in attached.take_orphans():
        yield one, 0.0
        one.close()
    for one in attached.opened.values():
        if one.reader is not None:
            yield one, one.reader.filled


def _wait_s(filled: float) -> float:
    return 0.0 if filled >= BUSY_AT else BUSY_S if filled else LOOK_S


class PerfRecorder:
    """Writes what the rings hold to a perf.data: `step`, then `finish`."""

    def __init__(self, attached: Attached, writer: PerfDataWriter, attr: PerfAttr) -> None:
        self._attached = attached
        self._writer = writer
        self._attr = attr
        self._ids: dict[tuple[EventName, bytes], int] = {}
        """By event and format: an event that comes again may have other fields."""
        self._events: list[PerfDataEvent] = []
        self._comms = Comms(lambda: attached.tree)
        self._tasks: dict[tuple[int, int], bytes] = {}
        self._tally = Tally()
        tree = attached.tree
        self._header_page = tree.read_file("events/header_page")
        self._header_event = tree.read_file("events/header_event")

    @property
    def samples(self) -> int:
        return self._tally.samples

    @property
    def lost(self) -> int:
        """As the rings say."""
        return self._tally.lost

    def step(self) -> float:
        """Open what is new, write what is there; seconds until the next time."""
        self._attached.look_when_due()
        return _wait_s(self.drain())

    def drain(self) -> float:
        """How full the fullest ring was."""
        fullest = 0.0
        for one, filled in _drained(self._attached):
            assert one.reader is not None
            data = one.reader.take()
            if data:
                self._tally.add(data, self._id(one))
                self._writer.add(data)
            fullest = max(fullest, filled)
        for pid, tid in self._tally.take_tasks():
            if (pid, tid) not in self._tasks:
                self._tasks[pid, tid] = bytes_of(self._comms.name(tid))
        return fullest

    def missed(self, one: Opened, count: int) -> None:
        """For Attached: a LOST record stands where it happened. Its number is 0 where nobody knows it."""
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

    def finish(self, command: Sequence[str]) -> int:
        """Complete the file; its size in bytes."""
        for one in self._attached.opened.values():
            self._id(one)  # also those that no sample came of
        return self._writer.finish(
            Contents(
                events=self._events,
                header_page=self._header_page,
                header_event=self._header_event,
                comms=self._tasks,
                first_ns=self._tally.first_ns,
                last_ns=self._tally.last_ns,
                command=[bytes_of(word) for word in command],
                version=f"utracefs {version()}".encode(),
            )
        )


class PerfTrace:
    """Prints samples as they come, in the order of time within each step."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._comms = Comms(lambda: attached.tree)
        self._lines: dict[tuple[EventName, bytes], Line] = {}
        self.samples = 0
        """Printed."""
        self.lost = 0
        """Said to be lost by the rings."""

    def step(self) -> float:
        self._attached.look()
        self.print()
        return LOOK_S

    def print(self) -> None:
        lines: list[tuple[int, str]] = []
        for one, _ in _drained(self._attached):
            assert one.reader is not None
            line = self._line(one)
            last = 0
            for record in one.reader:
                if isinstance(record, Sample):
                    self.samples += 1
                    last = record.time
                    lines.append((last, line.text(record, self._comms.name(record.tid))))
                elif isinstance(record, Lost):
                    self.lost += record.count
                    lines.append((last, f"{one.event}: LOST {record.count} SAMPLES"))
        if lines:
            lines.sort(key=lambda line: line[0])
            sys.stdout.buffer.write(for_reader(bytes_of("".join(f"{line}\n" for _, line in lines))))
            sys.stdout.buffer.flush()

    def _line(self, one: Opened) -> Line:
        key = (one.event, one.format)
        if key not in self._lines:
            self._lines[key] = Line(str(one.event), parse_format(one.format))
        return self._lines[key]


class PerfTop:
    """Counts samples by event and thread's process: `step`, and `rows` from time to time."""

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._comms = Comms(lambda: attached.tree)
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self.lost = 0
        """Since the beginning."""

    def step(self) -> float:
        self._attached.look_when_due()
        fullest = 0.0
        for one, filled in _drained(self._attached):
            assert one.reader is not None
            tally = Tally()
            tally.add(one.reader.take(), 1)
            self.lost += tally.lost
            for (pid, tid), count in tally.take_tasks().items():
                self._counts[str(one.event), self._comms.name(tid), pid] += count
            fullest = max(fullest, filled)
        return _wait_s(fullest)

    def rows(self, took_s: float) -> list[list[str]]:
        """Of the samples since the last call, most first: names of the columns, then the rows."""
        counts, self._counts = self._counts, Counter()
        total = counts.total()
        rows = [["OVERHEAD", "SAMPLES", "PER S", "EVENT", "COMMAND", "PID"]]
        for (event, comm, pid), count in counts.most_common():
            share, rate = f"{count / total:.2%}", f"{count / took_s:.1f}"
            rows.append([share, str(count), rate, event, comm, str(pid)])
        return rows
