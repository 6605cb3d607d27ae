"""The spool: batches on disk until a target has them.

    DIR/lock           locked by the forwarder
    DIR/spool.sqlite   a database of SQLite (with -wal and -shm while it is open):
        batch          a row for each: sequence number, number of records, crc, header and body (see `batch`)
        mark           event, and JSON of its count and epoch (see `losses`)
        state          one row of JSON: the spool's id, the boot, the next sequence number, losses that are in
                       no batch yet, the other members of the marks

Each change is one transaction: a batch with the losses that it reports and the marks that count it; the end
of batches with the records that the target refused. A forwarder that is killed at any point leaves the state
before a change or after it. A batch sent, but not yet deleted, is sent again. Memory keeps a change that
fails, and it is part of the next transaction.

One reader takes batches in their order, in flight until `done`; recent ones are still in memory, so nothing
is read from the disk for a target that keeps up. When the spool is full, the oldest batches that are not in
flight are dropped. Each loss is in `losses` of the next batch, and until then in the state.

A crash of the system leaves the transactions that were synced: Sync.ALWAYS, or INTERVAL, which is up to a
second before it. With Sync.NEVER it may damage the database. A damaged one is renamed to
spool.sqlite.damaged, and its batches that can be read move to a new one.

Then a target may have batches that the spool has not, and their numbers are given out again. So the state has
the boot in which the spool is used, from before the first batch is sent until it is closed. If the next one
finds another boot there, its batches get a new id of the spool.

Disk errors, a full disk among them, lose batches and are counted; no method raises them but `__init__`."""

import contextlib
import enum
import errno
import fcntl
import json
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs

from utracefs.forward.batch import Batch, Formats
from utracefs.forward.losses import ANY, AWAY, REFUSED, SPOOL, Loss, Losses, Marks
from utracefs.forward.target import Limits
from utracefs.recordings.origin import Origin
from utracefs_protocol.text import bytes_of, text_of

MIN_SIZE: Final = 1 << 20
"""Smallest size of a spool in bytes."""

SEGMENTS: Final = 16
"""A full spool drops this part of its batches at once; SQLite's log is about as large."""

_IN_MEMORY: Final = 2
"""Limit of batches kept also in memory until they are taken, in units of the largest `take` of the target;
one more may be kept."""

_LEAST_LOG: Final = 16 << 20
"""If the log becomes larger before `sync`, the thread that appends copies it into the database, and waits."""

_VERSION: Final = 2
"""Version of the tables. 1 was another format."""

_PAGE: Final = 16384
"""With SQLite's 4096 bytes a full batch takes 1.6 of the time. Even a small one writes four pages."""

_SCHEMA: Final = f"""
begin;
create table batch (sequence integer primary key, records integer, crc integer, header blob, body blob);
create table mark (event blob primary key, value blob) without rowid;
create table state (value blob);
pragma user_version = {_VERSION};
commit;
"""


class Sync(enum.Enum):
    """When to fsync(2)."""

    ALWAYS = "always"
    INTERVAL = "interval"
    """Each second, see Spool.sync."""
    NEVER = "never"


_SYNCHRONOUS: Final = {Sync.ALWAYS: "full", Sync.INTERVAL: "normal", Sync.NEVER: "off"}


class Spool:
    """Used by one process; its methods by several threads, `take` and `done` by one. Close it.

    size: bytes of batches at most; the files take more (docs/forward.md). OSError: the directory cannot be
    used; EBUSY: another forwarder uses it; EPROTO: another version wrote it."""

    def __init__(self, directory: Path, size: int, sync: Sync = Sync.INTERVAL) -> None:
        self.directory: Final = directory
        self.size: Final = max(size, MIN_SIZE)
        self.error = ""
        """Error of the last failed disk access; empty again when batches can be written again."""
        self._failure: object = None
        """Error of the disk; None: `error` is empty, or tells of damage."""
        self.lost: Final[dict[str, dict[str, int]]] = {}
        """Event to cause to number, since the start."""
        self.lost_unknown = 0
        """Number of losses of an unknown number of records."""
        self.forwarder = secrets.token_hex(8)
        self._boot = boot_id()
        self._path: Final = directory / "spool.sqlite"
        self._aside: Final = directory / "spool.sqlite.damaged"
        self._log_size: Final = max(self.size // SEGMENTS, _LEAST_LOG)
        self._sync: Final = sync
        self._formats: Final = Formats()
        self._changed: Final = threading.Condition()
        self._syncing: Final = threading.Lock()
        """Taken by a thread that closes the database, or uses a connection of its own: SQLite removes the log
        by its name when the last connection is closed."""
        self._losses: Final = Losses()
        self._marks: Marks | None = None
        self._changed_marks: set[str] | None = set()
        """Events whose marks are newer than those on the disk; None: all are."""
        self._next = 1
        self._taken = 0
        """The last batch that was taken or dropped."""
        self._peeked: tuple[Batch, int] | None = None
        """The batch behind it, already read, and its size."""
        self._recent: Final[dict[int, tuple[Batch, int]]] = {}
        """Some of those to take, which need not be read from the disk."""
        self._most_recent_bytes = 0
        self._unread_records = 0
        self._unread_bytes = 0
        self._in_flight: list[Batch] = []
        self._bytes_in_flight = 0
        self._to_delete: Final[list[tuple[int, int]]] = []
        """First and last sequence number: batches on the disk that were sent, dropped or found damaged."""
        self._is_closed = False
        self._unfinished: str | None = None
        """Why `_replace` was called, if the new database could not be made so far."""
        # One forwarder of this version at a time has the directory.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (directory / "state.json").exists():
            why = "an earlier version wrote this spool: let that version send its records, then remove "
            raise OSError(errno.EPROTO, why + "state.json, acked and *.segment", str(directory))
        self.is_new = not (directory / "lock").exists()
        """False: it was used before."""
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, _lock(directory / "lock"))
            self._db = sqlite3.connect(":memory:")  # until the file is open
            stack.callback(lambda: self._db.close())
            try:
                self._open()
            except sqlite3.Error as error:
                raise OSError(errno.EIO, str(error), str(self._path)) from None
            self._files: Final = stack.pop_all()
        # A disk that is full now may have room later: that is no error of the start.
        try:
            self._store()
            self._fsync()
        except sqlite3.Error as error:
            self._failed(error)

    def _open(self) -> None:
        try:
            self._connect()
            self._load()
        except sqlite3.Error as error:
            if not _is_damage(error):
                raise
            self._replace(str(error))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._replace(f"its state is invalid: {error!r}")

    def _connect(self) -> None:
        self._db.close()
        # SQLite gives its log the same mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        for pragma in (
            f"page_size = {_PAGE}",
            "journal_mode = wal",
            "secure_delete = off",  # Debian's default overwrites what it deletes: 25 ns a record
            # normal: fsync only before and after the log is copied into the database
            f"synchronous = {_SYNCHRONOUS[self._sync]}",
            f"wal_autocheckpoint = {self._log_size // _PAGE}",
            f"journal_size_limit = {self._log_size}",
        ):
            self._db.execute(f"pragma {pragma}")
        (version,) = self._db.execute("pragma user_version").fetchone()
        if version == 0:
            self._db.executescript(_SCHEMA)
        elif version != _VERSION:
            raise OSError(errno.EPROTO, f"is of version {version}, not {_VERSION}", str(self._path))

    def _load(self) -> None:
        row = self._db.execute("select value from state").fetchone()
        if row is not None:
            state = json.loads(row[0])
            self._next = int(state["next"])
            if state.get("boot", "") in ("", self._boot):
                self.forwarder = str(state["forwarder"])
            self._losses.extend(Loss(*loss) for loss in state["losses"])
            if state["marks"] is not None:
                rows = self._db.execute("select event, value from mark")
                events = {text_of(event): json.loads(value) for event, value in rows}
                self._marks = Marks.from_json({**state["marks"], "events": events})
        self._count()

    def _count(self) -> None:
        """Count the batches to take."""
        last, records, size = self._db.execute(
            "select max(sequence), sum(records), sum(length(header) + length(body)) from batch "
            "where sequence > ?",
            (self._taken,),
        ).fetchone()
        self._next = max(self._next, (last or 0) + 1)
        self._unread_records, self._unread_bytes = int(records or 0), int(size or 0)

    def _replace(self, why: str = "") -> None:
        """Set a damaged database aside; without `why`, remove one of which all was sent. sqlite3.Error."""
        with self._syncing:
            self._db.close()
            self._unfinished = ""
            for suffix in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    if why:
                        os.replace(f"{self._path}{suffix}", f"{self._aside}{suffix}")
                    else:
                        os.unlink(f"{self._path}{suffix}")
                self._unfinished = why
        self._renew(why)
        self._store()

    def _renew(self, why: str) -> None:
        """Make the new database, in which the next transaction stores everything. sqlite3.Error, OSError."""
        with self._syncing:
            self._connect()
        self._unfinished = None
        if why:
            name = self._aside.name
            self.error = f"{self._path} was damaged ({why}): it is {name} now; batches may be lost"
            self._lose(ANY, SPOOL, None)
            with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._aside)) as old:
                self._move_batches(old)
        self._recent.clear()
        self._peeked = None
        self._count()
        self._changed_marks = None

    def _move_batches(self, old: sqlite3.Connection) -> None:
        with self._db:
            self._db.execute("begin")
            for key in old.execute("select sequence from batch").fetchall():
                with contextlib.suppress(sqlite3.Error):  # this one is damaged
                    row = old.execute("select * from batch where sequence = ?", key).fetchone()
                    self._db.execute("insert into batch values (?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        """Close the files; calls of other threads no longer change the disk. May be called twice."""
        with self._changed:
            if self._is_closed:
                return
            self._boot = ""
            self._store()
            self._is_closed = True
        with self._syncing:
            self._files.close()

    @property
    def used_bytes(self) -> int:
        """Bytes of batches on disk."""
        return self._unread_bytes + self._bytes_in_flight

    @property
    def lag_s(self) -> float:
        """Age of the oldest batch that the target has not accepted."""
        with self._changed:
            oldest = self._in_flight or self._peek()
            return max(0.0, time.time() - oldest[0].clock.unix_ns / 1e9) if oldest else 0.0

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
            self._changed_marks = None
            self._store()
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
                    if self._changed_marks is not None:
                        self._changed_marks.add(event)

    def _lose(self, event: str, cause: str, count: int | None) -> None:
        self._losses.add(event, cause, count)
        if count is None:
            self.lost_unknown += 1
        elif count:
            causes = self.lost.setdefault(event, {})
            causes[cause] = causes.get(cause, 0) + count

    def _lose_records(self, batch: Batch, cause: str = SPOOL) -> None:
        for event, count in batch.counts.items():
            self._lose(event, cause, count)

    @property
    def has_losses(self) -> bool:
        """Whether there are losses that are in no batch yet."""
        return bool(self._losses)

    def append(self, batch: Batch) -> bool:
        """Store a batch, whose `forwarder`, `sequence` and `losses` are set here. False: there is no room for
        it, or the disk has failed; its records are losses now."""
        with self._changed:
            self._advance(batch.counts)  # stored or lost, the marks count it
            while True:
                batch = attrs.evolve(
                    batch,
                    forwarder=self.forwarder,
                    sequence=self._next,
                    losses=list(self._losses),
                    formats=self._formats,
                )
                header = batch.header()
                size = len(header) + len(batch.body)
                has_room = self.used_bytes + size <= self.size
                if has_room or not self._drop_oldest():
                    break
            if not has_room:
                self._failed("the spool is full")
            if not has_room or not self._store(batch, header):
                self._lose_records(batch)
                self._store()
                return False
            if self._failure is not None:
                self.error, self._failure = "", None
            if self._unread_bytes < self._most_recent_bytes:
                self._recent[self._next] = batch, size
            self._losses.clear()
            self._next += 1
            self._unread_records += batch.nr_records
            self._unread_bytes += size
            self._changed.notify_all()
        return True

    def _drop_oldest(self) -> bool:
        """Drop the oldest batches that are not in flight. False: there are none."""
        least = self._unread_bytes - self.size // SEGMENTS
        is_done = False
        while self._unread_bytes > least and self._peek() is not None:
            batch = self._pop()
            self._losses.extend(batch.losses)
            self._lose_records(batch)
            self._to_delete.append((batch.sequence, batch.sequence))
            is_done = True
        return is_done

    def _store(self, batch: Batch | None = None, header: bytes = b"") -> bool:
        """One transaction: changes since the last one, with a batch that has the losses. False: it failed."""
        if self._is_closed:
            return False
        try:
            if self._unfinished is not None:
                self._renew(self._unfinished)
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            return False
        marks = self._marks
        state = {
            "forwarder": self.forwarder,
            "boot": self._boot,
            "next": self._next + (batch is not None),
            "losses": [attrs.astuple(loss) for loss in self._losses] if batch is None else [],
            "marks": marks and attrs.evolve(marks, events={}).to_json(),
        }
        try:
            with self._db:
                self._db.execute("begin immediate")
                self._db.executemany("delete from batch where sequence between ? and ?", self._to_delete)
                if batch is not None:
                    crc = zlib.crc32(batch.body, zlib.crc32(header))
                    row = (batch.sequence, batch.nr_records, crc, header, batch.body)
                    self._db.execute("insert into batch values (?, ?, ?, ?, ?)", row)
                if (changed := self._changed_marks) is None:
                    self._db.execute("delete from mark")
                    changed = set() if marks is None else set(marks.events)
                if marks is not None:
                    rows = [(bytes_of(event), json.dumps(marks.events[event])) for event in changed]
                    self._db.executemany("replace into mark values (?, ?)", rows)
                self._db.execute("replace into state (rowid, value) values (1, ?)", (json.dumps(state),))
        except sqlite3.Error as error:
            self._failed(error)
            return False
        self._to_delete.clear()
        self._changed_marks = set()
        return True

    def _failed(self, why: object) -> bool:
        """Returns whether a damaged database was replaced."""
        if isinstance(why, sqlite3.Error) and _is_damage(why) and self._unfinished is None:
            try:
                self._replace(str(why))
            except (sqlite3.Error, OSError) as error:
                why = error
            else:
                return True
        self.error = f"{self.directory}: {why}"
        self._failure = why
        return False

    def sync(self) -> None:
        """fsync(2), unless Sync.NEVER. Give the disk space of a spool that was full back."""
        pages = 0
        try:
            if self._sync is not Sync.NEVER:
                pages = self._fsync()
            with self._changed:
                if self._is_closed:
                    return
                if pages * _PAGE > self._log_size // 2:
                    # The rest: SQLite begins the log anew only if all of it is in the database.
                    self._db.execute("pragma wal_checkpoint(passive)").fetchall()
                is_unused = not self.used_bytes and not self._to_delete
                if is_unused and self._path.stat().st_size > self.size // SEGMENTS:
                    self._db.execute("vacuum")
        except (sqlite3.Error, OSError) as error:
            with self._changed:
                self._failed(error)

    def _fsync(self) -> int:
        """Returns the pages of the log. sqlite3.Error."""
        with self._syncing:
            if self._is_closed:
                return 0
            # Its own connection: `append` need not wait.
            uri = f"{self._path.absolute().as_uri()}?mode=rw"
            with contextlib.closing(sqlite3.connect(uri, uri=True)) as db:
                pages: int = db.execute("pragma wal_checkpoint(passive)").fetchone()[1]
                return pages

    # Reading

    def take(self, limits: Limits, timeout_s: float, *, at_once: bool = False) -> list[Batch]:
        """The next batches, of one id of the spool and within the limits, in flight from now on; none came in
        the time: empty. at_once: do not gather."""
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
                if (peeked := self._peek()) is None:
                    break
                batch, more = peeked
                if found and (records + batch.nr_records > limits.records or size + more > limits.bytes):
                    break
                if found and batch.forwarder != found[0].forwarder:
                    break
                records += batch.nr_records
                size += more
                self._bytes_in_flight += more
                self._in_flight.append(self._pop())
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
        return limits.gather_s - abs(time.time() - oldest[0].clock.unix_ns / 1e9)

    def _peek(self) -> tuple[Batch, int] | None:
        """The next batch to take, and its size."""
        while self._peeked is None and not self._is_closed:
            if (recent := self._recent.pop(self._taken + 1, None)) is not None:
                self._peeked = recent
                break
            sql = "select sequence, crc, header, body from batch where sequence > ? order by sequence limit 1"
            try:
                row = self._db.execute(sql, (self._taken,)).fetchone()
                if row is None:
                    return None
                if row[0] <= self._taken:  # else it would come again and again
                    raise sqlite3.DatabaseError("batches are not in their order")
                self._peeked = self._checked(*row)
            except sqlite3.Error as error:
                if not self._failed(error):
                    return None
        return self._peeked

    def _checked(self, sequence: int, crc: int, header: bytes, body: bytes) -> tuple[Batch, int] | None:
        """A row as a batch. None: its bytes have changed, and its records are lost. sqlite3.Error."""
        with contextlib.suppress(ValueError, TypeError):
            if zlib.crc32(body, zlib.crc32(header)) == crc:
                return Batch.of(header, body, self._formats), len(header) + len(body)
        self.error = f"{self._path}: batch {sequence} is damaged"
        self._lose(ANY, SPOOL, None)
        self._to_delete.append((sequence, sequence))
        self._taken = sequence
        self._count()
        return None

    def _pop(self) -> Batch:
        """Move on to the batch behind `_peeked`."""
        assert self._peeked is not None
        batch, size = self._peeked
        self._peeked = None
        self._taken = batch.sequence
        self._unread_records -= batch.nr_records
        self._unread_bytes -= size
        return batch

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
            if self._in_flight:
                self._to_delete.append((self._in_flight[0].sequence, self._in_flight[-1].sequence))
            self._in_flight = []
            self._bytes_in_flight = 0
            code = 0 if self._store() else getattr(self._failure, "sqlite_errorcode", 0)
            if code == sqlite3.SQLITE_FULL and not self.used_bytes:
                # The disk has no room for the transaction that gives some back.
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._replace()


def boot_id() -> str:
    return Origin.here("mono").boot_id


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is damaged. SQLITE_ERROR: a table is missing; no code: a text is not UTF-8."""
    codes = sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_ERROR
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    is_closed = isinstance(error, sqlite3.ProgrammingError)
    return not is_closed and code & 0xFF in codes


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
