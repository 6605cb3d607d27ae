"""The spool: batches on disk until a target has them.

    DIR/lock                  locked by the forwarder
    DIR/state.json            the spool's id, the last batch that a target has, losses not in any batch yet,
                              the segment that was dropped last, the marks (`losses`)
    DIR/acked                 the spool's id, the last batch that a target has: mostly newer than the state,
                              since it is written in its place
    DIR/SEQUENCE.segment      entries; SEQUENCE is that of the first one

    entry:  "UTFB", u32 size of the header, u32 size of the body, u32 crc of these sizes and the header,
            u32 crc of the body; header, body (little-endian; see `batch`)

Batches are appended to the last segment. One reader takes them in their order, in flight until `done`; recent
ones are still in memory, so nothing is read from the disk for a target that keeps up. A segment is removed
when the target has all its batches, or before, when the spool is full: the oldest one that has no batch in
flight. Each loss is in `losses` of the next batch, and until then in the state. The state has all marks, each
batch the ones that changed since the previous batch or the state; if a batch is missing, the marks behind it
are unknown.

Killed at any point, the next forwarder finds all batches whose write was complete; an incomplete one is cut
off, and counted if its header is there. A batch sent, but not yet stored as sent, is sent again. State and
segments survive a crash of the system as far as they were synced: Sync.ALWAYS, or INTERVAL, which is up to a
second before it.

Disk errors, a full disk among them, lose batches and are counted; no method raises them but `__init__`."""

import contextlib
import enum
import errno
import fcntl
import json
import os
import secrets
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from utracefs.forward._body import crc32
from utracefs.forward.batch import Batch, Formats
from utracefs.forward.losses import ANY, AWAY, REFUSED, SPOOL, Loss, Losses, Marks
from utracefs.forward.target import Limits

MIN_SIZE: Final = 1 << 20
"""Smallest size of a spool in bytes."""

SEGMENTS: Final = 16
"""Number of segments of a full spool: dropping the oldest one loses about that part."""

_IN_MEMORY: Final = 2
"""Limit of batches kept also in memory until they are taken, in units of the largest `take` of the target;
one more may be kept."""

_MAGIC: Final = b"UTFB"
_ENTRY: Final = struct.Struct("<4sIIII")
_SIZES: Final = struct.Struct("<II")
_VERSION: Final = 1


class Sync(enum.Enum):
    """When to fsync(2)."""

    ALWAYS = "always"
    INTERVAL = "interval"
    """Each second, see Spool.sync."""
    NEVER = "never"


@attrs.define
class _Segment:
    first: int
    """Sequence number of its first entry."""
    last: int
    """Sequence number of its last entry; less than `first` without entries."""
    size: int


class _Damaged(ValueError):
    """An entry is incomplete. header: it is complete, the body is not."""

    def __init__(self, header: Batch | None = None) -> None:
        super().__init__("an entry is damaged")
        self.header = header


class Spool:
    """Used by one process; its methods by several threads, `take` and `done` by one. Close it.

    size: bytes on disk at most, without the state. OSError: the directory cannot be used; EBUSY: another
    forwarder uses it."""

    def __init__(self, directory: Path, size: int, sync: Sync = Sync.INTERVAL) -> None:
        self.directory: Final = directory
        self.size: Final = max(size, MIN_SIZE)
        self.is_new = True
        """False: it was used before."""
        self.error = ""
        """Error of the last failed disk access; empty again when batches can be written again."""
        self._is_failing = False
        """Whether `error` is an error of the disk."""
        self.lost: Final[dict[str, dict[str, int]]] = {}
        """Event to cause to number, since the start."""
        self.lost_unknown = 0
        """Number of losses of an unknown number of records."""
        self._sync: Final = sync
        self._formats: Final = Formats()
        self._changed: Final = threading.Condition()
        self._losses: Final = Losses()
        self._marks: Marks | None = None
        self._changed_marks: Final[set[str]] = set()
        """Events whose marks are newer than those on the disk."""
        self._has_marks_of = 0
        """During recovery: the last batch whose marks are known."""
        self._segments: list[_Segment] = []
        self._file = -1
        """The last segment, to write; -1: none is open."""
        self._to_sync: list[int] = []
        """Earlier ones that are not synced yet."""
        self._next = 1
        self._acked = 0
        self._dropped = 0
        """The first number of the segment that was dropped last: the state has its records as losses, also
        while its file is still there."""
        self._damaged = 0
        """The last batch of which only the header was found: its records are losses."""
        self._unread_records = 0
        self._unread_bytes = 0
        self._at = (0, 0)
        """The next batch to take: the first number of its segment, and the offset."""
        self._peeked: tuple[Batch, int] | None = None
        """The batch behind that position, already read, and the size of its entry."""
        self._recent: dict[tuple[int, int], tuple[Batch, int]] = {}
        """Place to batch and size: some of those to take, which need not be read from the disk."""
        self._recent_bytes = 0
        self._most_recent_bytes = 0
        self._in_flight: list[Batch] = []
        self._is_closed = False
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock: Final = _lock(directory / "lock")
        self._acked_file: Final = os.open(directory / "acked", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            found = Losses()
            self.forwarder: Final = self._load(found)
            self._recover(found)
        except BaseException:
            os.close(self._lock)
            os.close(self._acked_file)
            raise

    def close(self) -> None:
        """Close the files; calls of other threads no longer change the disk. May be called twice."""
        with self._changed:
            if self._is_closed:
                return
            self._store()
            self._is_closed = True
        self.sync()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        os.close(self._acked_file)
        os.close(self._lock)

    @property
    def used_bytes(self) -> int:
        """On disk."""
        with self._changed:
            return sum(segment.size for segment in self._segments)

    @property
    def lag_s(self) -> float:
        """Age of the oldest batch that the target has not accepted."""
        with self._changed:
            oldest = self._in_flight[0] if self._in_flight else self._peek()
            return 0.0 if oldest is None else max(0.0, time.time() - oldest.clock.unix_ns / 1e9)

    @property
    def is_empty(self) -> bool:
        """Whether the target has accepted all batches."""
        with self._changed:
            return not self._in_flight and self._peek() is None

    # Writing

    def resume(self, marks: Marks | None) -> bool:
        """Continue with the marks of a newly attached stream (None: the daemon has no counts), and report the
        records lost since the marks before. Returns whether their number is unknown."""
        with self._changed:
            losses = [] if self.is_new else [Loss(ANY, AWAY, None)]
            if self._marks is not None and marks is not None:
                losses = self._marks.losses_until(marks)
            for loss in losses:
                self._lose(*attrs.astuple(loss))
            self.is_new = False
            self._marks = marks
            if not self._store():
                self._marks = None  # no batch may be counted by the marks that are on the disk
            return any(loss.count is None for loss in losses)

    def lose(self, event: str, cause: str, count: int | None) -> None:
        """Report a loss with the next batch."""
        with self._changed:
            self._lose(event, cause, count)
            self._advance({event: count or 0})

    def pass_over(self, counts: Mapping[str, int]) -> None:
        """Account for records that the filter excluded."""
        with self._changed:
            self._advance(counts)

    def _advance(self, counts: Mapping[str, int]) -> None:
        if self._marks is not None:
            for event, count in counts.items():
                if count:
                    self._marks.events[event] = self._marks.after(event, count)
                    self._changed_marks.add(event)

    def _lose(self, event: str, cause: str, count: int | None) -> None:
        self._losses.add(event, cause, count)
        if count is None:
            self.lost_unknown += 1
        elif count:
            causes = self.lost.setdefault(event, {})
            causes[cause] = causes.get(cause, 0) + count

    @property
    def has_losses(self) -> bool:
        """Whether there are losses that are in no batch yet."""
        return bool(self._losses)

    def append(self, batch: Batch) -> bool:
        """Store a batch, whose `forwarder`, `sequence` and `losses` are set here. False: there is no room for
        it, or the disk has failed; its records are losses now."""
        with self._changed:
            while True:
                batch = attrs.evolve(
                    batch,
                    forwarder=self.forwarder,
                    sequence=self._next,
                    losses=list(self._losses),
                    marks=self._marks_after(batch.counts),
                    formats=self._formats,
                )
                parts = _entry(batch)
                size = sum(map(len, parts))
                if sum(segment.size for segment in self._segments) + size <= self.size:
                    break
                if not self._drop_oldest():
                    self._failed("the spool is full")
                    parts = ()
                    break
            is_written = not self._is_closed and bool(parts) and self._write(parts)
            self._advance(batch.counts)
            if not is_written:
                self._lose_records(batch)
                self._store()
                return False
            if self._recent_bytes < self._most_recent_bytes:
                self._recent[self._segments[-1].first, self._segments[-1].size - size] = batch, size
                self._recent_bytes += size
            self._losses.clear()
            self._changed_marks.clear()
            self._next += 1
            self._unread_records += batch.nr_records
            self._unread_bytes += size
            self._changed.notify_all()
        return True

    def _marks_after(self, counts: Mapping[str, int]) -> dict[str, tuple[int, int]] | None:
        """Marks of the events that a batch with these counts changes. The batch may not be written."""
        marks = self._marks
        events = self._changed_marks | counts.keys()
        return (
            None if marks is None else {event: marks.after(event, counts.get(event, 0)) for event in events}
        )

    def _write(self, parts: Sequence[bytes]) -> bool:
        try:
            if self._file < 0 or self._segments[-1].size >= self.size // SEGMENTS:
                self._begin_segment()
            segment = self._segments[-1]
            done = 0
            try:
                for part in parts:
                    left = memoryview(part)
                    while left:
                        written = os.pwrite(self._file, left, segment.size + done)
                        left = left[written:]
                        done += written
                if self._sync is Sync.ALWAYS:
                    os.fsync(self._file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, segment.size)
                raise
        except OSError as error:
            self._failed(error.strerror)
            return False
        if self._is_failing:
            self.error, self._is_failing = "", False
        segment.size += done
        segment.last = self._next
        return True

    def _failed(self, why: str | None) -> None:
        self.error = f"{self.directory}: {why}"
        self._is_failing = True

    def _begin_segment(self) -> None:
        made = os.open(self._path(self._next), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            self._to_sync.append(self._file)
        self._file = made
        self._segments.append(_Segment(self._next, self._next - 1, 0))

    def _path(self, first: int) -> Path:
        return self.directory / f"{first:020d}.segment"

    def _lose_records(self, batch: Batch, cause: str = SPOOL) -> None:
        for event, count in batch.counts.items():
            self._lose(event, cause, count)

    def _drop_oldest(self) -> bool:
        """Remove the oldest segment without batches in flight; not the last segment."""
        for number, segment in enumerate(self._segments[:-1]):
            if any(segment.first <= batch.sequence <= segment.last for batch in self._in_flight):
                continue
            start = self._at[1] if self._at[0] == segment.first else 0
            try:
                for batch, size in _entries(self._path(segment.first), start, self._formats):
                    if batch.sequence <= self._acked:
                        continue
                    self._losses.extend(batch.losses)
                    self._lose_records(batch)
                    self._unread_records -= batch.nr_records
                    self._unread_bytes -= size
            except (OSError, _Damaged):
                self._lose(ANY, SPOOL, None)
            if self._at[0] == segment.first:
                self._move_to(self._segments[number + 1])
            del self._segments[number]
            self._dropped = segment.first
            is_stored = self._store()
            self._remove(segment)
            if not is_stored:  # there may be room now
                self._store()
            return True
        return False

    def _move_to(self, segment: _Segment) -> None:
        self._at = (segment.first, 0)
        self._peeked = None

    def _remove(self, segment: _Segment) -> None:
        for place in [place for place in self._recent if place[0] == segment.first]:
            self._recent_bytes -= self._recent.pop(place)[1]
        try:
            os.unlink(self._path(segment.first))
        except OSError as error:
            self._failed(error.strerror)

    def sync(self) -> None:
        """fsync(2), unless Sync.NEVER."""
        with self._changed:
            earlier, self._to_sync = self._to_sync, []
            last = [os.dup(fd) for fd in (self._file, self._acked_file) if fd >= 0]
        for fd in [*earlier, *last]:
            if self._sync is not Sync.NEVER:
                try:
                    os.fsync(fd)
                except OSError as error:
                    self._failed(error.strerror)
            os.close(fd)

    # Reading

    def take(self, limits: Limits, timeout_s: float, *, at_once: bool = False) -> list[Batch]:
        """The next batches, in flight from now on, within the limits; none came within the time: empty.
        at_once: do not gather."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._most_recent_bytes = _IN_MEMORY * limits.bytes
            while (due_s := self._due_s(limits, at_once)) > 0:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return []
                self._changed.wait(min(due_s, left_s))
        found: list[Batch] = []
        records = size = 0
        while True:
            with self._changed:
                batch = self._peek()
                if batch is None or self._peeked is None:
                    break
                entry = self._peeked[1]
                if found and (records + batch.nr_records > limits.records or size + entry > limits.bytes):
                    break
                records += batch.nr_records
                size += entry
                self._at = (self._at[0], self._at[1] + entry)
                self._peeked = None
                self._unread_records -= batch.nr_records
                self._unread_bytes -= entry
                self._in_flight.append(batch)
                found.append(batch)
        return found

    def _due_s(self, limits: Limits, at_once: bool) -> float:
        """The time until the next batches are to be taken."""
        oldest = self._peek()
        if oldest is None:
            return float("inf")
        most = min(limits.bytes, self.size // 4)  # a small spool must not fill up while it gathers
        if at_once or self._unread_records >= limits.records or self._unread_bytes >= most:
            return 0
        return limits.gather_s - abs(time.time() - oldest.clock.unix_ns / 1e9)

    def _peek(self) -> Batch | None:
        """The next batch to take."""
        while self._peeked is None:
            number = next((n for n, s in enumerate(self._segments) if s.first >= self._at[0]), None)
            if number is None:
                return None
            segment = self._segments[number]
            if segment.first != self._at[0]:
                self._move_to(segment)
            if self._at[1] < segment.size:
                if (recent := self._recent.pop(self._at, None)) is not None:
                    self._recent_bytes -= recent[1]
                    self._peeked = recent
                    break
                try:
                    self._peeked = next(_entries(self._path(segment.first), self._at[1], self._formats))
                except (OSError, _Damaged, StopIteration):
                    self._skip(segment)
            elif number + 1 < len(self._segments):
                self._move_to(self._segments[number + 1])
            else:
                return None
        return self._peeked[0]

    def _skip(self, segment: _Segment) -> None:
        """The rest of a segment cannot be read any more."""
        self.error = f"{self._path(segment.first)} is damaged"
        self._lose(ANY, SPOOL, None)
        self._at = (segment.first, segment.size)

    def done(
        self, refused: Mapping[str, int | None] = {}, *, all_refused: bool = False, is_unknown: bool = False
    ) -> None:
        """The batches in flight were sent; some records, or all, were refused. `losses` of batches that were
        refused are reported again. is_unknown: it is not known which parts the target has."""
        with self._changed:
            if self._is_closed:
                return
            for batch in self._in_flight if is_unknown else ():
                for event in {*batch.counts, *(loss.event for loss in batch.losses)}:
                    self._lose(event, REFUSED, None)
            for batch in self._in_flight if all_refused else ():
                self._losses.extend(batch.losses)
                self._lose_records(batch, REFUSED)
            for event, count in refused.items():
                self._lose(event, REFUSED, count)
            self._acked = max((batch.sequence for batch in self._in_flight), default=self._acked)
            self._in_flight = []
            is_stored = self._store() if self._losses else self._store_acked()
            self._remove_done()
            if not is_stored:  # there may be room now
                self._store()

    def _remove_done(self) -> None:
        """Remove the segments of which a target has all; but the last one, which has the highest number."""
        done = [segment for segment in self._segments[:-1] if segment.last <= self._acked]
        if done and self._marks is not None:
            self._store()  # these batches have the marks
        for segment in done:
            self._segments.remove(segment)
            self._remove(segment)

    # State

    def _store_acked(self) -> bool:
        """In its place: to replace a file waits for the disk."""
        try:
            os.pwrite(self._acked_file, b"%s %020d\n" % (self.forwarder.encode(), self._acked), 0)
            if self._sync is Sync.ALWAYS:
                os.fsync(self._acked_file)
        except OSError as error:
            self._failed(error.strerror)
            return False
        return True

    def _load_acked(self, forwarder: str) -> None:
        """Load the file `acked`, after the state, if it is of this spool's id."""
        words = os.pread(self._acked_file, 100, 0).split()
        if len(words) == 2 and words[0] == forwarder.encode() and words[1].isdigit():
            self._acked = max(self._acked, int(words[1]))

    def _store(self) -> bool:
        if self._is_closed:
            return False
        state = {
            "version": _VERSION,
            "forwarder": self.forwarder,
            "acked": self._acked,
            "next": self._next,
            "dropped": self._dropped,
            "damaged": self._damaged,
            "losses": [attrs.astuple(loss) for loss in self._losses],
            "marks": self._marks and self._marks.to_json(),
        }
        path = self.directory / "state.json"
        try:
            path.with_suffix(".tmp").write_text(json.dumps(state))
            if self._sync is Sync.ALWAYS:
                with path.with_suffix(".tmp").open() as file:
                    os.fsync(file.fileno())
            path.with_suffix(".tmp").replace(path)
        except OSError as error:
            self._failed(error.strerror)
            return False
        self._changed_marks.clear()
        return True

    def _load(self, found: Losses) -> str:
        """Read the state. Returns the forwarder's id: a new one without a valid state. found: losses beside
        those of the state."""
        try:
            state: dict[str, Any] = json.loads((self.directory / "state.json").read_bytes())
            if state["version"] == _VERSION:
                self._acked, self._next = int(state["acked"]), int(state["next"])
                self._dropped = int(state.get("dropped", 0))
                self._damaged = int(state.get("damaged", 0))
                self._losses.extend(Loss(*loss) for loss in state["losses"])
                if state.get("marks") is not None:
                    self._marks = Marks.from_json(state["marks"])
                self._load_acked(str(state["forwarder"]))
                self.is_new = False
                return str(state["forwarder"])
            raise OSError(
                errno.EPROTO, f"is of version {state['version']}", str(self.directory / "state.json")
            )
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError):
            found.add(ANY, SPOOL, None)
        return secrets.token_hex(8)

    def _recover(self, found: Losses) -> None:
        """Find the batches that are there; cut off damaged ends, so that each is counted once."""
        stored, last = self._next, 0
        self._has_marks_of = stored - 1
        if self._dropped:
            self._path(self._dropped).unlink(missing_ok=True)
        is_torn = False  # at the end: the marks do not count what is missing there
        firsts = sorted(int(path.stem) for path in self.directory.glob("[0-9]" * 20 + ".segment"))
        for first in firsts:
            if last and first > last + 1 and first - 1 > max(self._acked, self._damaged):
                found.add(ANY, SPOOL, None)
            segment = _Segment(first, first - 1, 0)
            self._segments.append(segment)
            if is_torn:
                found.add(ANY, SPOOL, None)
            end, is_torn = self._scan(segment, found)
            last = max(last, end)
        if firsts:
            self._file = os.open(self._path(firsts[-1]), os.O_RDWR | os.O_CLOEXEC)
            self.is_new = False
        if last >= stored:  # that batch has the losses of the state
            self._losses.clear()
        elif max(last, self._acked, self._damaged) < stored - 1:
            found.add(ANY, SPOOL, None)
        self._next = max(stored, last + 1, self._acked + 1)
        if self._has_marks_of < self._next - 1:
            self._marks = None
        if is_torn and self._marks is None:
            found.add(ANY, SPOOL, None)
        self._losses.extend(found)
        self._remove_done()
        self._store()

    def _scan(self, segment: _Segment, found: Losses) -> tuple[int, bool]:
        """Read a segment. Returns the last sequence number, and whether an unknown number of records is
        missing behind it."""
        try:
            for batch, size in _entries(self._path(segment.first), 0, self._formats):
                segment.size += size
                segment.last = batch.sequence
                self._read_marks(batch)
                if batch.sequence <= self._acked:
                    self._at = (segment.first, segment.size)
                else:
                    self._unread_records += batch.nr_records
                    self._unread_bytes += size
        except _Damaged as error:
            os.truncate(self._path(segment.first), segment.size)
            if error.header is None:
                return segment.last, True
            self._read_marks(error.header)
            self._damaged = error.header.sequence
            if error.header.sequence > self._acked:
                found.extend(error.header.losses)
                for event, count in error.header.counts.items():
                    found.add(event, SPOOL, count)
            return error.header.sequence, False
        return segment.last, False

    def _read_marks(self, batch: Batch) -> None:
        if batch.sequence != self._has_marks_of + 1:
            return  # the state has them, or a batch is missing
        self._has_marks_of = batch.sequence
        if batch.marks is None:
            self._marks = None
        elif self._marks is not None:
            self._marks.events.update(batch.marks)


def _lock(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise OSError(
            errno.EBUSY, "another forwarder uses this spool; give each one its own", str(path.parent)
        ) from None
    return fd


def _entry(batch: Batch) -> tuple[bytes, ...]:
    """In parts."""
    header = batch.header()
    sizes = _SIZES.pack(len(header), len(batch.body))
    crc = zlib.crc32(header, zlib.crc32(sizes))
    start = _ENTRY.pack(_MAGIC, len(header), len(batch.body), crc, crc32(batch.body))
    return start + header, batch.body


def _entries(path: Path, at: int, formats: Formats) -> Iterator[tuple[Batch, int]]:
    """The batches of a segment and the sizes of their entries, from an offset on. _Damaged: at the first
    incomplete one. OSError."""
    with path.open("rb", buffering=0) as file:
        end = os.fstat(file.fileno()).st_size
        file.seek(at)
        while start := file.read(_ENTRY.size):
            if len(start) < _ENTRY.size:
                raise _Damaged
            magic, header_size, body_size, header_crc, body_crc = _ENTRY.unpack(start)
            if magic != _MAGIC or header_size > end - file.tell():
                raise _Damaged
            header = file.read(header_size)
            if zlib.crc32(header, zlib.crc32(start[4:12])) != header_crc:
                raise _Damaged
            body = file.read(min(body_size, end - file.tell()))
            try:
                batch = Batch.of(header, body, formats)
            except ValueError:
                raise _Damaged from None
            if len(body) < body_size or crc32(body) != body_crc:
                raise _Damaged(batch)
            yield batch, _ENTRY.size + header_size + body_size
