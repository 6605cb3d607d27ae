"""Perf events for all selected events: opened when these appear, and again after a restart of the daemon.

    look ──> new events ─────────> opened
         ──> the daemon has ended ─> orphans: their rings are our memory, and still have unread samples
         ──> it is back ──────────> opened again; missed records are reported, on stderr and to `missed`

A perf event ends with its connection, so a new daemon does not have ours. The next daemon takes in the
records that programs left in their data rings meanwhile, perhaps before we are attached again. `stats` of the
event counts them if another consumer was attached; else their number is unknown, and the commands report for
how long they missed records.
"""

import contextlib
import errno
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import attrs

from utracefs.cli import Failure
from utracefs.cli.common import available_events, connect, tell, tell_failure
from utracefs.cli.event_options import Wanted, filter_of
from utracefs.cli.filter_errors import request_refusal
from utracefs.cli.losses import IN_DATA_RINGS, Losing
from utracefs.cli.run.ledger import gained, read_stats
from utracefs.cli.run.page_stream import fitting_ring_bytes
from utracefs.tree.closing import Closing
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName, select, similar_event
from utracefs.tree.tracefs import PerfAttr, Tracefs
from utracefs_protocol.pages.perf_ring import Counts, PerfRingReader
from utracefs_protocol.text import bytes_of

LOOK_S = 0.02
"""Interval of looking for new events. Records emitted before an event is found are not counted."""

BACK_OFF_S = (0.02, 0.25)
"""Time between attempts to connect to the next daemon: at first, and at most. It doubles. Records
emitted between its start and the attempt are missed."""

LOST_S = 0.5
"""Interval of reading losses: unread ones are unknown when the daemon ends."""

FEW = 5
"""Maximum of names in a line of text."""


@attrs.frozen(eq=False)
class Opened:
    event: EventName
    handle: int
    format: bytes
    """events/SYSTEM/NAME/format."""
    mapping: mmap.mmap | None
    reader: PerfRingReader | None
    """Reader of its ring; None: it only counts."""

    def close(self) -> None:
        if self.mapping is not None:
            self.mapping.close()


class Attached(Closing):
    """A context manager that closes the connections that it opened, but not the tree given to it.

    missed: called after a restart of the daemon with each event and a minimum of missed records. what: for
    Losing.
    """

    def __init__(
        self,
        tree: Tracefs,
        wanted: Sequence[Wanted],
        attr: PerfAttr,
        *,
        missed: Callable[[Opened, int], None] = lambda _opened, _count: None,
        what: str = "",
    ) -> None:
        self.tree = tree
        """The present connection: another one after a restart of the daemon."""
        self.opened: dict[EventName, Opened] = {}
        self._directory = tree.directory
        self._wanted = wanted
        self._attr = attr
        self._missed = missed
        self._losing = Losing(
            what,
            IN_DATA_RINGS,
            (
                "in rings of samples",
                "-c N or -F HZ sample fewer, -m PAGES holds more, but no record above 8 KiB",
            ),
        )
        self._orphans: list[Opened] = []
        self._seen: set[EventName] = set()
        self._there: set[EventName] = set()
        """All events that existed at some time: a name may be misspelt."""
        self._refused: set[EventName] = set()
        self._before: dict[EventName, int] = {}
        """Counts of perf events that ended with an earlier daemon."""
        self._last: dict[EventName, int] = {}
        self._lost: Counter[EventName] = Counter()
        self._lost_before: Counter[EventName] = Counter()
        self._gone_since: float | None = None
        self._next_attempt = self._back_off_s = 0.0
        self._went_away = False
        self._is_first = True
        self._late: list[EventName] = []
        """Events that appeared after the first look."""
        self._due = self._lost_due = 0.0

    def close(self) -> None:
        for one in (*self.opened.values(), *self._orphans):
            one.close()
        self.opened.clear()
        self._orphans.clear()

    @property
    def has_opened(self) -> bool:
        """At least one event was opened so far."""
        return bool(self._seen)

    @property
    def is_incomplete(self) -> bool:
        """Records emitted before an event was opened are missing, and `lost` does not have them."""
        return bool(self._late or self.unnoticed())

    @property
    def has_failed(self) -> bool:
        """Wanted events are missing, or could not be opened, or the daemon did not come back."""
        return bool(self.missing() or self.unnoticed() or self._refused or self.is_away)

    @property
    def is_away(self) -> bool:
        """No daemon runs now."""
        return self._gone_since is not None

    def look(self) -> None:
        """Open new events. Failure at the first time: an invalid filter, or no such process."""
        with self._until_the_daemon_goes():
            if self._gone_since is None or self._is_back():
                self._open_new()
        if (now := time.monotonic()) >= self._lost_due:
            self._lost_due = now + LOST_S
            self.lost()

    def look_when_due(self) -> None:
        """`look`, at most every LOOK_S."""
        if time.monotonic() >= self._due:
            self.look()
            self._due = time.monotonic() + LOOK_S

    def counts(self) -> dict[EventName, int]:
        """Records counted so far; without a daemon those of the last call."""
        opened = list(self.opened.values())
        with self._until_the_daemon_goes():
            read = self.tree.read_many([(one.handle, 8) for one in opened])
            for one, data in zip(opened, read, strict=True):
                if isinstance(data, OSError):
                    raise data
                self._last[one.event] = Counts.from_bytes(data, self._attr.read_format).count
        return {
            event: self._before.get(event, 0) + self._last.get(event, 0)
            for event in (*self._seen, *self._before)
        }

    def lost(self) -> Counter[EventName]:
        """Records that should have been counted or sampled and were lost anywhere; without a daemon those
        known at the last call."""
        with self._until_the_daemon_goes():
            parts = gained(read_stats(self.tree, self.opened), lambda event: _consumer(self.opened[event]))
            self._lost |= Counter({event: one.lost for event, one in parts.items()})
            lost, in_rings = sum(self._lost.values()), sum(one.in_rings for one in parts.values())
            where = {"in data rings": in_rings, "in rings of samples": lost - in_rings}
            self._losing.look(lost + sum(one.recorded for one in parts.values()), where)
        return self._lost + self._lost_before

    def disable(self) -> None:
        """Stop counting and sampling."""
        with self._until_the_daemon_goes():
            for one in self.opened.values():
                self.tree.perf_ioctl(one.handle, "DISABLE")

    def take_orphans(self) -> list[Opened]:
        """Perf events that ended with an earlier daemon; the caller reads and closes their rings."""
        taken, self._orphans = self._orphans, []
        return taken

    def finish(self, status: int = 0) -> int:
        """Report events that were not opened in time, patterns without a match, and a missing daemon; returns
        the exit status. status: that of the command, which takes precedence."""
        missing, unnoticed = self.missing(), self.unnoticed()
        if self._late:
            before = f"the {LOOK_S * 1000:.0f} ms or so before it was noticed"
            tell(f"{_few(self._late)}: declared meanwhile; records of {before} are missing")
        if unnoticed:
            were = "was" if len(unnoticed) == 1 else "were"
            tell(f"{_few(unnoticed)}: {were} there too shortly to be noticed; `utracefs record` misses none")
        for pattern in missing:
            tell(f"{pattern}: no such event came{similar_event(pattern, self._there)}")
        if self._went_away:
            tell(f"the daemon has ended; its losses of the last {LOST_S} s are unknown and not counted")
        if self.is_away:
            tell("no daemon came back; later records are missing")
        return status or int(self.has_failed)

    def missing(self) -> list[str]:
        """Patterns that never had an event; the default one is allowed to have none. An event that came and
        went between two looks is unknown: the daemon keeps nothing of it."""
        return [
            one.pattern
            for one in self._wanted
            if one.pattern != ALL_USER_EVENTS and not select([one.pattern], self._there)
        ]

    def unnoticed(self) -> list[EventName]:
        """Wanted events that were there, but were removed before they could be opened."""
        never_opened = self._there - self._seen - self._refused
        return sorted(select([one.pattern for one in self._wanted], never_opened))

    def _open_new(self) -> None:
        first, self._is_first = self._is_first, False
        patterns = [one.pattern for one in self._wanted]
        self._there.update(events := available_events(self.tree))
        for event in select(patterns, events):
            if event in self.opened or event in self._refused:
                continue
            is_late = not first and event not in self._seen
            try:
                self._open(event)
            except (ConnectionError, TimeoutError):
                raise
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENODEV):  # removed again
                    continue
                failure = self._failure(event, error)
                if first:
                    raise failure from None
                self._refused.add(event)
                tell_failure(failure)
            else:
                if is_late:
                    self._late.append(event)

    def _failure(self, event: EventName, error: OSError) -> Failure:
        reason = error.strerror or str(error)
        refusal = request_refusal(filter_of(self._wanted, event), reason)
        return Failure(f"{event}", reason) if refusal is None else refusal.failure(event)

    def _open(self, event: EventName) -> None:
        filter_text = filter_of(self._wanted, event)
        attr = self._attr.evolve(
            name=bytes_of(str(event)),
            filter=bytes_of(filter_text) if filter_text else None,
            data_pages=self._pages(),
        )
        path = f"{event.directory}/format"
        text = self.tree.read_file(path)
        try:
            handle, fd = self.tree.perf_event_open(attr)
        except OSError as error:
            if error.errno != errno.EINVAL or "data_pages" not in str(error.strerror):
                raise
            # An older daemon allows 1024.
            handle, fd = self.tree.perf_event_open(attr.evolve(data_pages=min(attr.data_pages, 1024)))
        mapping = reader = None
        if fd is not None:
            try:
                mapping = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            finally:
                os.close(fd)
            reader = PerfRingReader(mapping)
        self.opened[event] = one = Opened(event, handle, text, mapping, reader)
        self._seen.add(event)
        # From now on the perf event refers to it; before, another event may have taken its name.
        again = self.tree.read_file(path)
        if again != text:
            self.opened[event] = attrs.evolve(one, format=again)

    def _pages(self) -> int:
        """Size of the next ring, which gets its memory in its first lap: smaller for more events."""
        attr = self._attr
        if attr.data_pages or not (attr.sample_period or attr.sample_freq):
            return attr.data_pages
        return max(1024, fitting_ring_bytes() // 4096 >> len(self.opened).bit_length())

    @contextlib.contextmanager
    def _until_the_daemon_goes(self) -> Iterator[None]:
        """Suppresses the loss of the connection in its block."""
        try:
            yield
        except (ConnectionError, TimeoutError):
            self._lose()

    def _lose(self) -> None:
        if self._gone_since is None:
            self._gone_since = self._next_attempt = time.monotonic()
            self._back_off_s = BACK_OFF_S[0]
            self._went_away = True
            self.tree.close()
            gone, self.opened = self.opened, {}  # not cleared: a thread may be reading its rings
            self._orphans += gone.values()
            for event, count in self._last.items():
                self._before[event] = self._before.get(event, 0) + count
            self._last.clear()
            self._lost_before += self._lost
            self._lost.clear()
            tell("the daemon has ended; waiting for the next one")

    def _is_back(self) -> bool:
        assert self._gone_since is not None
        if time.monotonic() < self._next_attempt:
            return False
        try:
            self.tree = connect(self._directory)
        except Failure:
            self._next_attempt = time.monotonic() + self._back_off_s
            self._back_off_s = min(2 * self._back_off_s, BACK_OFF_S[1])
            return False
        gone_since, self._gone_since = self._gone_since, None
        self._open_new()
        away_s = time.monotonic() - gone_since
        unseen = []
        for one in self.opened.values():
            count = self._came_unseen(one)
            self._missed(one, count)
            if count:
                unseen.append(f"at least {count} records of {one.event}")
        text = f"; unseen came {', '.join(unseen)}" if unseen else ""
        tell(f"the daemon is back; {away_s:.3f} s are missing{text}")
        return True

    def _came_unseen(self, one: Opened) -> int:
        """Records that this daemon counted, less those given to our perf event: from one text, so one
        moment."""
        stats = read_stats(self.tree, [one.event]).get(one.event)
        if stats is None:
            return 0
        return max(0, stats.emitted - sum(stats.consumers.get(_consumer(one), {}).values()))


def _few(events: Sequence[EventName]) -> str:
    return ", ".join(map(str, events[:FEW])) + (", ..." if len(events) > FEW else "")


def _consumer(one: Opened) -> str:
    """Its name in `stats`."""
    return f"perf:{one.handle}"
