"""Copies the records of an instance into a trace.dat while they are recorded.

    a ring of pages (page_stream) ──▶ TraceDatWriter
    the ring, set_event         ──▶ formats, each before its first page, for the file of a killed recorder
    events/*/stats              ──▶ counts of the records that are not in the pages

The records in the file are counted as they are read, so other users of the instance do not make the summary
wrong: records that the events' numbers count as recorded, and that are not in the file, were overwritten or
consumed by others.

`switch` begins the next file between two pages (`record --switch-output`). Its numbers begin with the losses
that are not in the file before, so each loss is in exactly one file.

If the daemon gives no such ring (an older one; or another reader has the pages of this instance), rounds read
`per_cpu/cpuN/trace_pipe_raw`, as they read the contents of a snapshot at the end: every cpu, many pages at a
time, in a few round trips. That keeps some 100,000 records/s.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import attrs

from utracefs.cli import Failure
from utracefs.cli.common import cpus_of, numbers, tell
from utracefs.cli.instance_option import TOP, Place
from utracefs.cli.losses import IN_DATA_RINGS, LOSSES, TOO_LARGE, TOO_LARGE_IN_RING_BUFFER, Losing, lost_lines
from utracefs.cli.run.ledger import Account, Ledger
from utracefs.cli.run.page_stream import PageStream
from utracefs.cli.run.texts import Texts
from utracefs.cli.tables import counted
from utracefs.recordings.trace_dat._pages import count_events, unknown_ids
from utracefs.recordings.trace_dat.compression import Compression
from utracefs.recordings.trace_dat.writer import TraceDatWriter
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.pages._subbuf import page_header
from utracefs_protocol.pages.subbuf import last_ts, without_missed

POLL_S = 0.02
"""Time between rounds, without a ring of pages."""
SYNC_S = 0.1
"""How long pages stay in memory: a killed recorder loses these. Those of a cpu with few records beside a busy
one up to TEXTS_S."""
TEXTS_S = 1.0
MAX_ROUNDS = 32
"""Rounds at the end of a file before the last one."""
MAX_PAGES = 32
"""Pages read from one cpu in one round."""


@attrs.frozen
class Summary:
    records: int
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
    recorded: int
    """Put into the ring buffer since the beginning, or present before."""
    size: int
    """Bytes of the file."""
    refused: dict[str, int]
    """Refused because a value did not fit: `EVENT.FIELD was float` and the like, to number."""

    def without(self, no_room: int) -> "Summary":
        """The same summary, with this number of records that were not written."""
        return attrs.evolve(self, records=self.records - no_room, no_room=no_room)

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


@attrs.frozen
class _Reported:
    """Numbers in the files before the present one."""

    kept: int = 0
    account: Account = attrs.field(factory=Account)
    overwritten: int = 0


class _Cpu:
    """One cpu's trace_pipe_raw, or snapshot_raw."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.handle = -1
        self.pages = 1
        """Pages to read in the next round."""


class Recorder:
    """A context manager: after an exception other than Failure the records stay in NAME.part. Create it
    before any event is enabled; call `step` while it runs, `drain` and `finish` at the end.

    If the daemon ends (ConnectionError, TimeoutError from `step`), `finish` writes the records until then.
    """

    def __init__(
        self,
        tree: Tracefs,
        path: str,
        place: Place = TOP,
        *,
        snapshot: bool = False,
        peek: bool = False,
        texts: Texts | None = None,
        since: int = 0,
        ledger: Ledger | None = None,
        reported: Account | None = None,
        compression: Compression | None = None,
        lossless_us: int = 0,
    ) -> None:
        """snapshot: leave the records in the ring buffer, and read the snapshot at the end. peek: copy the
        content of the ring buffer at the end, of all events, without consuming it. texts: of this instance,
        read by the caller. since: leave out pages whose last record is earlier, in units of the clock.
        ledger, reported: of a flight recorder: of this instance, and its losses that an earlier file has.
        lossless_us: how long programs may wait for room; Failure if the daemon does not let them."""
        self._tree = tree
        self._place = place
        self._at_end = "snapshot_raw" if snapshot else "trace_raw" if peek else ""
        self._page_size = int(tree.read_file(place.path("buffer_subbuf_size_kb"))) * 1024
        self._since = since
        self._compression = compression
        self._lossless_us = lossless_us
        self.texts = Texts(tree, place, of_all_events=peek) if texts is None else texts
        self._cpus = [_Cpu(cpu) for cpu in cpus_of(tree, place)]
        self._path = path
        self._texts_due = self._sync_due = self._ready_due = 0.0
        self._kept_at_step = -1
        """Value of `_kept`. While it grows, pages that are not full wait for up to TEXTS_S: beside a program
        at full speed a request takes the daemon some 25 ms, in which it answers no other."""
        # The ring buffer as it was found: only what it counts from now on is of this recording.
        self._stats = self._read_stats()
        self.there = sum(numbers(text).get("entries", 0) for text in self._stats)
        """Records that were in the buffer at the beginning."""
        self._taken_before = self._taken_away()
        """When the ring buffer was new, as the two after it."""
        self._kept_before = self._overrun_before = 0
        self._gone = 0
        """Records that were overwritten in, or lost with, ring buffers that did not come back."""
        self._ledger = ledger or Ledger(tree, place)
        self.account = Account()
        """The account at the last reading of the texts."""
        waiting = "" if self._lossless_us or self._at_end else "--lossless lets programs wait, "
        self._losing = Losing(
            path,
            (IN_DATA_RINGS[0], waiting + IN_DATA_RINGS[1]),
            ("in the ring buffer", f"{waiting}a larger buffer_size_kb (-b) holds more"),
            TOO_LARGE_IN_RING_BUFFER,
            ("for the disk", "it is full"),
        )
        self._reported = _Reported(account=reported or Account())
        self._kept = 0
        self.left_out = 0
        """Records of events on pages before `since`."""
        self._is_window = reported is not None
        self.came_back = False
        """Whether a daemon ended meanwhile, whose last counts may not have been read."""
        self._begun: set[int] = set()
        """cpus with a page in the file."""
        self.begins: dict[int, int] = {}
        """Time of each cpu's first page."""
        self._entries: int | None = None
        self.writer = self._new_writer()  # last, so that an error before leaves no file
        self.stream: PageStream | None = None
        try:
            self.writer.add_texts(self.texts.contents)  # before any page, for the file of a killed recorder
            self._attach()
        except BaseException:
            self.writer.close()
            raise

    def _new_writer(self) -> TraceDatWriter:
        return TraceDatWriter(
            self._path, nr_cpus=len(self._cpus), page_size=self._page_size, compression=self._compression
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        is_copy = self._at_end == "trace_raw"
        with contextlib.suppress(OSError, ValueError):  # not that of the block
            self._end_stream()
        if kind is None or issubclass(kind, Failure) or not self._kept or is_copy:
            self.writer.close()
        else:
            tell(f"{self.writer.leave()} has the records until then; `utracefs report --recover` reads it")

    def come_back(self) -> None:
        """Call it when the tree is connected to the next daemon, and that has the instance."""
        self.came_back = True
        self._end_stream()
        unread = self._ledger.come_back()
        if unread is not None:
            lost = max(0, unread + self._taken_away() - self._taken_before - (self._kept - self._kept_before))
            known = f"lost with it, as far as known: {counted(lost, 'record')}"
            tell(f"{self._path}: the ring buffer did not come back; {known}")
            self._gone += lost + self.account.overrun - self._overrun_before
            self._taken_before = 0
            self._stats = self._read_stats()
            self._kept_before, self._overrun_before = self._kept, self.account.overrun
        self._attach()

    def _attach(self) -> None:
        """Begin to read, unless that is for the end."""
        if self._at_end:
            return
        try:
            self.stream = PageStream(
                self._tree,
                self._place,
                self._page_size,
                len(self._cpus),
                self._take_pages,
                self._describe,
                lossless_us=self._lossless_us,
            )
        except ConnectionError:
            raise
        except OSError as error:  # see above
            if self._lossless_us:
                raise Failure("--lossless", f"needs the pages of a newer daemon: {error.strerror}") from None
            self.open("trace_pipe_raw")

    def _end_stream(self) -> None:
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is added to the file in its block but by its code."""
        return contextlib.nullcontext() if self.stream is None else self.stream.exclusive()

    def step(self) -> float:
        """Read what there is, and now and then the texts; returns the seconds until the next call."""
        now = time.monotonic()
        if now >= self._texts_due or (self._kept and not self.texts.events):
            self.read_texts()
            self._tell_losses()
            self._texts_due = time.monotonic() + TEXTS_S
        elif now >= self._sync_due:
            with self._alone():
                self.writer.sync()
            self._sync_due = now + SYNC_S
        if self._at_end:
            return max(0.0, self._texts_due - now)
        if self.stream is None:
            return 0.0 if self._round(self._cpus) else POLL_S
        self.stream.start()
        if self._kept == self._kept_at_step or now >= self._ready_due:
            self.stream.take_ready()
            self._ready_due = now + TEXTS_S
        self._kept_at_step = self._kept
        return SYNC_S

    def read_texts(self) -> None:
        """Read descriptions that may change or vanish, and the numbers."""
        self.texts.read()
        self._stats = self._read_stats()
        self.account = self._ledger.read()
        with self._alone():
            lost = self._summary(is_end=False)
            account = (lambda given_up: lost_lines(lost.without(given_up).losses)) if lost.lost else None
            self.writer.add_texts(attrs.evolve(self.texts.contents, event_stats=account))

    def _tell_losses(self) -> None:
        account = self.account
        lost = {
            "in data rings": account.in_rings,
            "in the ring buffer": 0 if self._at_end else account.dropped + account.overrun,
            TOO_LARGE: account.too_large,
            "for the disk": self.writer.given_up,
        }
        self._losing.look(account.recorded + account.lost, lost)

    def read_all(self) -> bool:
        """Read what there is; whether there may be more."""
        return self._round(self._cpus) if self.stream is None else self.stream.take_ready()

    def catch_up(self) -> None:
        """Read what was emitted until now: behind a lossless recorder it may wait in data rings."""
        for _ in range(MAX_ROUNDS if self._lossless_us else 0):
            if not self.read_all():
                break

    def drain(self) -> None:
        """Read all pages. Recording should have stopped, or this may never end."""
        if self._at_end:
            self.open(self._at_end)
        while self.read_all():
            pass
        self.read_texts()

    def open(self, file: str) -> None:
        for cpu in self._cpus:
            path = self._place.path(f"per_cpu/cpu{cpu.number}/{file}")
            cpu.handle = self._tree.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def finish(
        self, about: About, name: Callable[[], str] | None = None, *, entries: int | None = None
    ) -> Summary:
        """Write the file. Sends no request to the daemon. name: returns another name for it, just before it
        gets the name. entries: number of records in the snapshot; None: all were read."""
        self._entries = entries
        return self._finisher(about)(name)

    @property
    def has_records(self) -> bool:
        """In the present file."""
        return self._kept > self._reported.kept

    def switch(self, about: About) -> Callable[[Callable[[], str]], Summary]:
        """End the present file after the records emitted until now, and begin the next. OSError: no space
        for it, and the present one continues.

        Returns the function that writes the file, for another thread; it takes the function that returns the
        name.
        """
        for _ in range(MAX_ROUNDS):  # a busy program would always have more
            if not self.read_all():
                break
        with self._alone():  # an event's first page would be without the event's format
            self.read_texts()
            before = self.writer
            self.writer = self._new_writer()
            finish = self._finisher(about, before)
            self._reported = _Reported(self._kept, self.account, self._overwritten(is_end=False))
            self.writer.add_texts(self.texts.contents)
        return finish

    def _finisher(
        self, about: About, writer: TraceDatWriter | None = None
    ) -> Callable[[Callable[[], str] | None], Summary]:
        """The function that writes a file with the present numbers. writer: of a file that is not the
        last."""
        is_end = writer is None
        if is_end:
            self._end_stream()
        writer = writer or self.writer
        summary = self._summary(is_end=is_end)
        contents = attrs.evolve(
            self.texts.contents,
            cpu_stats=dict(enumerate(self._stats)),
            event_stats=lambda given_up: _event_stats(summary.without(given_up)),
            uname=about.uname,
            version=about.version,
            trace_id=secrets.randbits(63),
            origin=self.texts.origin.ended(self.texts.clock),
            offset_ns=self.texts.origin.unix_offset_ns if about.wall_clock else None,
        )

        def finish(name: Callable[[], str] | None = None) -> Summary:
            size = writer.finish(contents, name)
            return attrs.evolve(summary.without(writer.given_up), size=size)

        return finish

    def _overwritten(self, *, is_end: bool) -> int:
        """Records that nobody can read any more. Before the end some are unread, so only those count that
        the ring buffer overwrote."""
        if self._at_end:
            return 0 if self._entries is None else max(0, self._entries - self._kept - self.left_out)
        overrun = self.account.overrun - self._overrun_before
        if not is_end:
            return self._gone + overrun
        if self.came_back:  # its events' numbers began with 0 again, the buffer's may not
            taken, kept = self._taken_away() - self._taken_before, self._kept - self._kept_before
            return self._gone + max(0, overrun + taken - kept)
        return max(0, self.there + self.account.recorded - self._kept)

    def _taken_away(self) -> int:
        """Records that readers have taken from the ring buffer."""
        return sum(numbers(text).get("read events", 0) for text in self._stats)

    def _summary(self, *, is_end: bool) -> Summary:
        account = self.account.since(self._reported.account)
        there = 0 if self._reported.kept else self.there
        return Summary(
            records=self._kept - self._reported.kept,
            in_rings=account.in_rings,
            dropped=min(account.dropped, account.lost - account.in_rings),
            too_large=account.too_large,
            overwritten=max(0, self._overwritten(is_end=is_end) - self._reported.overwritten),
            no_room=0,
            filtered=account.filtered,
            recorded=there + account.recorded,
            size=0,
            refused=account.refused,
        )

    def _round(self, cpus: Sequence[_Cpu]) -> bool:
        """Read each of them once, with its expected number of pages; returns whether one may have more.
        If the daemon ends meanwhile, the error comes after the pages that it had sent."""
        outcomes = iter(
            self._tree.read_many([(cpu.handle, self._page_size) for cpu in cpus for _ in range(cpu.pages)])
        )
        more = False
        failed: OSError | None = None
        for cpu in cpus:
            got = 0
            for _ in range(cpu.pages):
                outcome = next(outcomes)
                if isinstance(outcome, bytes):
                    if len(outcome) == self._page_size:
                        self._take(cpu.number, outcome)
                        got += 1
                elif outcome.errno != errno.EAGAIN:
                    failed = failed or outcome
            more = more or got == cpu.pages
            cpu.pages = min(cpu.pages * 2, MAX_PAGES) if got == cpu.pages else got + 1
        if failed is not None:
            raise failed
        return more

    def _take(self, cpu: int, page: bytes) -> None:
        count = count_events(page)
        self.begins.setdefault(cpu, page_header(page)[0])
        if self._since and last_ts(page) < self._since:
            self.left_out += count
            return
        if self._is_window and cpu not in self._begun:
            page = without_missed(page)  # records before a window are not lost
        if unknown := unknown_ids(page, self._page_size, self.texts.ids):
            self.texts.ids.update(unknown)
            with contextlib.suppress(ConnectionError, TimeoutError):  # raised by the next request
                self.read_texts()
        self._begun.add(cpu)
        self.writer.add_page(cpu, page)
        self._kept += count

    def _describe(self, described: Mapping[int, bytes]) -> None:
        """For the stream."""
        for text in described.values():
            self.texts.add_format(*text.split(b"\0", 1))
        self.writer.add_texts(self.texts.contents)

    def _take_pages(self, cpu: int, pages: memoryview, records: int, is_direct: bool) -> None:
        """For the stream."""
        self._kept += records
        if len(pages) > self._page_size:
            self.writer.add_pages(cpu, pages, is_direct=is_direct)
        else:
            self.writer.add_page(cpu, bytes(pages))

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
