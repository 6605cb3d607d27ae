"""Copies the records of an instance into a trace.dat while they are recorded.

    per_cpu/cpuN/trace_pipe_raw ──▶ pages ──▶ TraceDatWriter
    set_event, events/*/format  ──▶ formats, read repeatedly: an event may be removed before the end
    events/*/stats              ──▶ counts of the records that are not in the pages

The records in the file are counted as they are read, so other users of the instance do not make the summary
wrong: records that the events' numbers count as recorded, and that are not in the file, were overwritten or
consumed by others.

A round reads every cpu that is due, many pages at a time, all in a few round trips. A cpu with full pages is
read again at once; an empty one less and less often, up to IDLE_S. That is well below the time in which a
busy program fills a buffer of the default size (1.4 MB; at 200,000 records/s of 40 bytes some 170 ms).
"""

import errno
import os
import secrets
import time
from collections.abc import Sequence
from typing import Self

import attrs

from utracefs.cli import Failure
from utracefs.cli.common import numbers, tell
from utracefs.cli.instance_option import TOP, Place
from utracefs.cli.losses import LOSSES, lost_lines
from utracefs.cli.run.ledger import Account, Ledger
from utracefs.recordings.origin import Origin
from utracefs.recordings.trace_dat._pages import count_events
from utracefs.recordings.trace_dat.format import clock_in_use
from utracefs.recordings.trace_dat.texts import with_small_signs
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.pages.subbuf import MARKER_IP
from utracefs_protocol.text import bytes_of

__all__ = ["About", "Recorder", "Summary"]

BUSY_S = 0.02
IDLE_S = 0.1
SYNC_S = 0.1
"""How long pages stay in memory: a killed recorder loses these."""
TEXTS_S = 1.0
MAX_PAGES = 32
"""Pages read from one cpu in one round."""

MARKER_SYMBOL = b"%x t tracing_mark_write\n" % MARKER_IP
"""The only line of the symbol table: readers resolve a marker's ip with it."""


@attrs.frozen
class Summary:
    """Summary of a recording."""

    records: int
    """Records of events in the file."""
    in_rings: int
    """Lost, because their program's data ring was full."""
    dropped: int
    """Lost, because the ring buffer was full and does not overwrite."""
    too_large: int
    """Lost, because no page can hold them."""
    overwritten: int
    """Recorded, but overwritten or consumed by others before they were read. With a snapshot 0: records
    outside of it are not lost."""
    no_room: int
    """Read, but not written: the disk was full."""
    filtered: int
    """Rejected by a filter."""
    recorded: int
    """Put into the ring buffer since the beginning, or present before."""
    size: int
    """Bytes of the file."""
    refused: dict[str, int]
    """Refused because a value did not fit: `EVENT.FIELD was float` and the like, to number."""

    @property
    def lost(self) -> int:
        """All emitted records that are not in the file."""
        return sum(self.losses.values())

    @property
    def losses(self) -> dict[str, int]:
        """The same, by the names of `losses`."""
        return {loss.name: getattr(self, loss.name) for loss in LOSSES}


@attrs.frozen(kw_only=True)
class About:
    """Descriptive fields of a file."""

    uname: str = ""
    version: str = ""
    wall_clock: bool = False
    """Readers print times of day."""


class _Cpu:
    """One cpu's trace_pipe_raw, or snapshot_raw."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.handle = -1
        self.pages = 1
        """Pages to read in the next round."""
        self.wait_s = BUSY_S
        self.due = 0.0


class Recorder:
    """A context manager: after an exception other than Failure the records stay in NAME.part. Create it
    before any event is enabled; call `step` while it runs, `drain` and `finish` at the end.

    If the daemon ends (ConnectionError, TimeoutError from `step`), `finish` writes the records until then.
    """

    def __init__(
        self, tree: Tracefs, path: str, place: Place = TOP, *, snapshot: bool = False, peek: bool = False
    ) -> None:
        """snapshot: leave the records in the ring buffer, and read the snapshot at the end. peek: copy the
        content of the ring buffer at the end, of all events, without consuming it."""
        self._tree = tree
        self._place = place
        self._at_end = "snapshot_raw" if snapshot else "trace_raw" if peek else ""
        self._events_file = "available_events" if peek else place.path("set_event")
        self._page_size = int(tree.read_file(place.path("buffer_subbuf_size_kb"))) * 1024
        internal = [
            f"events/ftrace/{name}/format" for name, kind in tree.list_dir("events/ftrace") if kind == "d"
        ]
        trace_clock = tree.read_file(place.path("trace_clock"))
        self.clock = clock_in_use(trace_clock)
        self.origin = Origin.here(self.clock)
        """Its pair of clocks is that of the begin."""
        self._contents = Contents(
            header_page=tree.read_file("events/header_page"),
            header_event=tree.read_file("events/header_event"),
            ftrace_formats=[text for text in tree.read_files(internal) if isinstance(text, bytes)],
            kallsyms=MARKER_SYMBOL,
            printk_formats=tree.read_file("printk_formats"),
            trace_clock=trace_clock,
            origin=self.origin,
        )
        cpus = sorted(int(name[3:]) for name, kind in tree.list_dir(place.path("per_cpu")) if kind == "d")
        self._writer = TraceDatWriter(path, nr_cpus=len(cpus), page_size=self._page_size)
        self._cpus = [_Cpu(cpu) for cpu in cpus]
        if not self._at_end:
            self._open("trace_pipe_raw")
        self._formats: dict[EventName, bytes] = {}
        self._texts_due = self._sync_due = 0.0
        self._stats = self._read_stats()
        self._there = sum(numbers(text).get("entries", 0) for text in self._stats)
        """Records that were in the buffer at the beginning."""
        self._ledger = Ledger(tree, place)
        self._account = Account()
        self._kept = 0
        self.tgids: dict[int, int] = {}
        """Writing threads to their processes, as far as the daemon noted them (option record-tgid)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        is_copy = self._at_end == "trace_raw"
        if kind is None or issubclass(kind, Failure) or not self._kept or is_copy:
            self._writer.close()
        else:
            tell(f"{self._writer.leave()} has what was recorded; `utracefs report --recover` reads it")

    @property
    def events(self) -> list[EventName]:
        """Events that were found enabled at some time."""
        return list(self._formats)

    def step(self) -> float:
        """One round; returns the seconds until the next."""
        now = time.monotonic()
        if now >= self._texts_due or (self._kept and not self._formats):
            self.read_texts()
            self._texts_due = time.monotonic() + TEXTS_S
        elif now >= self._sync_due:
            self._writer.sync()
            self._sync_due = now + SYNC_S
        if self._at_end:
            return max(0.0, self._texts_due - now)
        due = [cpu for cpu in self._cpus if cpu.due <= now]
        self._round(due)
        now = time.monotonic()
        for cpu in due:
            cpu.due = now + cpu.wait_s
        return max(0.0, min(cpu.due for cpu in self._cpus) - now)

    def read_texts(self) -> None:
        """Read descriptions that may change or vanish: formats of enabled events, names of threads."""
        tree = self._tree
        events = parse_event_list(tree.read_file(self._events_file))
        new = [event for event in events if event not in self._formats]
        contents = tree.read_files(f"{event.directory}/format" for event in new)
        for event, content in zip(new, contents, strict=True):
            if isinstance(content, bytes):
                self._formats[event] = with_small_signs(content)
        self._contents = attrs.evolve(self._contents, cmdlines=tree.read_file("saved_cmdlines"))
        for line in tree.read_file("saved_tgids").splitlines():
            tid, tgid = line.split()
            self.tgids[int(tid)] = int(tgid)
        self._stats = self._read_stats()
        self._account = self._ledger.read()
        self._writer.add_texts(self._with_formats())

    def drain(self) -> None:
        """Read all pages. Recording should have stopped, or this may never end."""
        if self._at_end:
            self._open(self._at_end)
        while self._round(self._cpus):
            pass
        self.read_texts()

    def _open(self, file: str) -> None:
        for cpu in self._cpus:
            path = self._place.path(f"per_cpu/cpu{cpu.number}/{file}")
            cpu.handle = self._tree.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def finish(self, about: About) -> Summary:
        """Write the file. Sends no request to the daemon."""
        size = self._writer.finish(
            attrs.evolve(
                self._with_formats(),
                cpu_stats=dict(enumerate(self._stats)),
                event_stats=lambda given_up: _event_stats(self._summary(given_up)),
                uname=about.uname,
                version=about.version,
                trace_id=secrets.randbits(63),
                origin=self.origin.ended(self.clock),
                offset_ns=self.origin.unix_offset_ns if about.wall_clock else None,
            )
        )
        return attrs.evolve(self._summary(self._writer.given_up), size=size)

    @property
    def error(self) -> OSError | None:
        """Why some records are not in the file."""
        return self._writer.error

    def _with_formats(self) -> Contents:
        formats: dict[bytes, list[bytes]] = {}
        for event, text in self._formats.items():
            formats.setdefault(bytes_of(event.system), []).append(text)
        return attrs.evolve(self._contents, formats=formats)

    def _summary(self, no_room: int) -> Summary:
        account = self._account
        recorded = self._there + account.recorded
        dropped = min(account.dropped, account.lost - account.in_rings)
        return Summary(
            records=self._kept - no_room,
            in_rings=account.in_rings,
            dropped=dropped,
            too_large=account.lost - account.in_rings - dropped,
            overwritten=0 if self._at_end else max(0, recorded - self._kept),
            no_room=no_room,
            filtered=account.filtered,
            recorded=recorded,
            size=0,
            refused=account.refused,
        )

    def _round(self, cpus: Sequence[_Cpu]) -> bool:
        """Read each of them once, with its expected number of pages; returns whether one may have more."""
        outcomes = iter(
            self._tree.read_many([(cpu.handle, self._page_size) for cpu in cpus for _ in range(cpu.pages)])
        )
        more = False
        for cpu in cpus:
            got = 0
            for _ in range(cpu.pages):
                outcome = next(outcomes)
                if isinstance(outcome, bytes):
                    if len(outcome) == self._page_size:
                        self._writer.add_page(cpu.number, outcome)
                        self._kept += count_events(outcome)
                        got += 1
                elif outcome.errno != errno.EAGAIN:
                    raise outcome
            if got == cpu.pages:
                cpu.pages = min(cpu.pages * 2, MAX_PAGES)
                cpu.wait_s = 0.0 if got > 1 else BUSY_S
                more = True
            elif got:
                cpu.pages = max(got + 1, 2)
                cpu.wait_s = BUSY_S
            else:
                cpu.pages = 1
                cpu.wait_s = min(cpu.wait_s * 2, IDLE_S) or BUSY_S
        return more

    def _read_stats(self) -> list[bytes]:
        texts = self._tree.read_files(
            self._place.path(f"per_cpu/cpu{cpu.number}/stats") for cpu in self._cpus
        )
        found = [text for text in texts if isinstance(text, bytes)]
        if len(found) < len(texts):
            raise next(text for text in texts if isinstance(text, OSError))
        return found


def _event_stats(summary: Summary) -> bytes:
    """Text of `report --stat` below the numbers of the cpus."""
    return b"records of events: %d\n" % summary.records + lost_lines(summary.losses)
