"""The data rings of all producers: adopting them, their limits, their doorbells, and the intake.

There is one `Rings` per daemon. It adopts the rings of programs; it counts the memory of each user's rings,
and adds all doorbells to one epoll(7) descriptor on which the edge waits. The record path itself is compiled
(`_intake`).

Use by the edge (server/serve.py):

    asleep ── doorbell ──> awake: every POLL_S a `round`; no doorbells, except where a ring fills
      ^                      │      (asleep with `has_large`: a `round` every GIVE_BACK_S)
      └── want_wakeup(True), once more a `round`: nothing ── after LINGER_ROUNDS rounds without a record

A daemon that adopts a ring knows from the journal how far a killed daemon had consumed it
(`_journal.Journal`).

**After a restart** no ring is read until all rings of the previous daemon are back: rings are merged by time,
and a ring that comes back later brings records older than those of the others. So while one may still come
back, or has yet to get its events (`early`), the intake waits (`gathering`); `stop_waiting` ends that. A ring
whose connection ends meanwhile becomes an orphan: it has no connection, holds references on its events
itself, and is freed when it is empty.

With a `store` (the service manager's; server/fd_store.py) each ring is kept there, and a new daemon has all
of them at once, also those of programs that have ended. They are orphans until their program adopts its ring,
or until their remaining records are taken in. Descriptors from the store are checked like those of a
producer. The store's places are shared among users (`Shares`); a ring without a place gets the next free one.

If a ring of the previous daemon is in no store, and its program does not bring it back, its unread records
are lost. Their number is unknown; each of their events counts one lost record (`gone`).

A ring whose memory is invalid is `corrupt`: `round` calls `failed`, and the ring's connection ends with
EPROTO.

Producers may stamp records with the time stamp counter while the kernel takes the time from it, too; when
counter and clock diverge, the daemon asks the kernel again.
"""

import errno
import os
import select
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MIN_DATA_RING
from utracefsd.daemon_log import daemon_log
from utracefsd.intake._data_ring import DataRing, key_of
from utracefsd.intake._giving_back import GivingBack, begin
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake
from utracefsd.intake._journal import Journal
from utracefsd.intake._writers import AllWriters
from utracefsd.machine import procfs
from utracefsd.machine.closing import close_foreign
from utracefsd.machine.comms import CommTable
from utracefsd.machine.peer import Peer, share_of
from utracefsd.machine.shares import Resource, Shares

# Longest time until a record is visible while the daemon is awake (the documented limit is 20 ms).
POLL_S = 0.002

# The same while a ring is narrow: it is full after a millisecond, and has no doorbell.
NARROW_POLL_S = 0.0002

# How many empty rounds before producers are asked for the doorbell again. A program that emits every few
# milliseconds then costs neither itself a system call per record nor the daemon a wake-up.
LINGER_ROUNDS = 10

# Records per round, at most some milliseconds; then other tasks run.
ROUND_RECORDS = 50_000

# Time between rounds, if there are no others, until the memory of a flood is given back.
GIVE_BACK_S = 0.1

# The part of a ring that counts in its user's share: what it takes but in a flood. The memory is the
# program's, which writes to it first.
_COUNTED_PART = 16


class DescriptorStore(Protocol):
    """A store that keeps descriptors beyond this process."""

    @property
    def limit(self) -> int:
        """How many descriptors it keeps; 0: none."""

    def keep(self, name: str, fd: int) -> bool:
        """Keep a duplicate of `fd`; False: not possible."""

    def drop(self, name: str) -> None:
        """Drop the descriptor of that name."""


class RingServices(Protocol):
    """The daemon, as its rings use it."""

    shares: Shares
    """Counts and limits the resources of each user."""
    comms: CommTable
    """Names and processes of threads."""
    all_writers: AllWriters
    """The threads of each process."""

    def save(self) -> None:
        """Write down the events for the next daemon, before records of them are taken in."""

    def is_running(self, pid: int, start_time: int, /) -> bool:
        """Whether this process has not ended."""

    def wait_us(self, uid: int, /) -> int:
        """How long a user's programs may wait for room."""

    def end_failed(self) -> None:
        """End the connections of corrupt rings, whose `failed` was called."""

    def acquire_events(self, event_ids: Sequence[int], /) -> IndexTable | None:
        """Take a reference on each event. The table of their tracepoints; None: one of them is gone."""

    def release_events(self, event_ids: Sequence[int], /) -> None:
        """Drop these references."""

    def ring_gone(self, event_ids: Sequence[int], number: int, /) -> None:
        """A ring with these events is lost: 1; it comes back later: -1."""


_CORRUPT = "the memory of the data ring is invalid"


def _needs(size: int) -> list[tuple[Resource, int]]:
    """Amounts that count in its user's share."""
    return [
        (Resource.RING_BYTES, max(size // _COUNTED_PART, MIN_DATA_RING)),
        (Resource.DESCRIPTORS, 2),
    ]


def _ignore(*_: object) -> None:
    return None


Key = tuple[int, int]
"""st_dev and st_ino of a ring's memory."""


def name_of(key: Key) -> str:
    """The ring's name in the descriptor store."""
    return f"{STORED}{key[1]}"


STORED = "data-ring."


@attrs.frozen
class KnownRing:
    """A data ring as the state describes it for the next daemon.

    The journal has how far a ring was consumed. This has its process, and the meaning of its records: the
    events of its write_index table. With it the next daemon waits for rings that may come back before it
    merges any (`Rings.gathering`), and reads a ring that the service manager kept after its program's end.
    """

    pid: int
    """Its process; 0 when that process's pid namespace is not visible."""
    start_time: int
    """When that process began, in clock ticks since boot; 0 if unknown."""
    uid: int
    """The user charged for its memory."""
    event_ids: list[int]
    """Trace event ids by write_index."""

    def is_registered_in(self, nr_events: int) -> bool:
        """Whether so many write indexes are all those of its events."""
        return not any(self.event_ids[nr_events:])

    def may_come_back(self, is_running: Callable[[int, int], bool]) -> bool:
        """Whether its process still runs and can bring the ring back; assumed of a process that is not
        visible."""
        return not self.pid or not self.start_time or is_running(self.pid, self.start_time)


@attrs.define(eq=False)
class _Owned:
    ring: DataRing
    peer: Peer
    """Its program; of a ring from the store as the state describes it."""
    failed: Callable[[TraceError], None]
    taken: int = 0
    """The ring's `taken` at the last call of `writers`."""
    looks: int = 20
    """How often `end_orphans` still waits for a record that a thread is writing."""
    left: bool = False
    """Its connection to this daemon has ended, and no other has adopted it."""
    stored: bool = False
    """The store keeps it."""

    @property
    def start_time(self) -> int:
        return self.peer.start_time or 0

    def belongs_to(self, peer: Peer) -> bool:
        return (self.peer.pid, self.peer.uid) == (peer.pid, peer.uid)


class Rings:
    """`nr_cpus`: of the machine; a record that claims another cpu counts as cpu 0's. `close` ends it.

    journal: keeps how far each ring is consumed. known: rings of the previous daemon. store: keeps the rings
    beyond this process. stored: the descriptors that it kept, owned by this object.
    """

    def __init__(
        self,
        nr_cpus: int,
        services: RingServices,
        store: DescriptorStore,
        journal: Journal,
        known: Mapping[Key, KnownRing] | None = None,
        stored: Iterable[int] = (),
    ) -> None:
        begin()
        self.on_kept: Callable[[Key, KnownRing], None] = _ignore
        """Called with each ring, for the state; then with further events of it."""
        self.on_grown: Callable[[Key, Iterable[int]], None] = _ignore
        self.on_gone: Callable[[Key], None] = _ignore
        """Called with each ring that is given up, or no longer waited for."""
        self._awaited = dict(known or {})
        self._services = services
        self._store = store
        self._missing: dict[Key, KnownRing] = {}
        """Rings that are lost, or may be: `gathering` no longer waits for them."""
        self.intake = Intake(nr_cpus, procfs.tsc_is_trusted(), journal, GivingBack.start)
        self._journal = journal
        self._handing_over = False
        self._shares = services.shares
        self._owned: dict[Key, _Owned] = {}
        self._orphans: dict[_Owned, None] = {}
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Private: wakes the edge as a doorbell does."""
        self._epoll.register(self._bell, select.EPOLLIN | select.EPOLLET)
        self._taking_in = False
        self._asleep = True
        """The edge waits for a doorbell."""
        self._behind: set[int] = set()
        """Users with many connections that wait to be set up."""
        self._lost_of_unknown = 0
        """In connections and rings that have ended."""
        self._take_over(stored)

    @property
    def gathering(self) -> bool:
        """A ring of the previous daemon may still come back: the intake waits."""
        return bool(self._awaited)

    def look_again(self) -> None:
        """Stop waiting for rings whose programs have ended."""
        gone = [
            key for key, ring in self._awaited.items() if not ring.may_come_back(self._services.is_running)
        ]
        self._wait_no_more(gone)

    def stop_waiting(self, but_for: Container[int] = ()) -> None:
        """Treat rings that come back from now on as late. but_for: processes to keep waiting for."""
        self._wait_no_more([key for key, ring in self._awaited.items() if ring.pid not in but_for])

    def _wait_no_more(self, keys: Iterable[Key]) -> None:
        for key in keys:
            known = self._awaited.pop(key)
            if (owned := self._owned.get(key)) is None:
                self._miss(key, known)
            else:
                self.on_kept(key, self._known(owned))
        if not self._awaited:
            self._wake()  # take in from the other rings

    def _miss(self, key: Key, known: KnownRing) -> None:
        if not self._missing:
            daemon_log("ring-lost", pid=known.pid)
        self._missing[key] = known
        self._services.ring_gone(known.event_ids, 1)
        self.on_gone(key)

    @property
    def nr_missing(self) -> int:
        """Rings of the previous daemon that have not come back."""
        return len(self._missing)

    @property
    def nr_unstored(self) -> int:
        """Rings that are lost if their program ends while no daemon runs."""
        return len(self._owned) - self._shares.total(Resource.STORED_RINGS)

    def _take_over(self, stored: Iterable[int]) -> None:
        """Take over the rings kept in the store, and drop unusable ones there."""
        for fd in stored:
            found = os.fstat(fd)  # no program chose the file: a daemon stored it
            key = found.st_dev, found.st_ino
            known = self._awaited.get(key)
            table = None if known is None else self._services.acquire_events(known.event_ids)
            if known is None or table is None:
                self._store.drop(name_of(key))
                close_foreign([fd], os.geteuid())
                continue
            try:
                peer = Peer(known.pid, known.uid, 0, False, known.start_time or None, share_of(known.uid))
                ring = DataRing.adopt(table, peer.pid, fd, -1, peer.share)
                self._journal.resume(ring)
            except (ValueError, OSError, MemoryError) as error:
                daemon_log("ring-not-taken-over", pid=known.pid, reason=error)
                self._services.release_events(known.event_ids)
                self._store.drop(name_of(key))
                self._miss(key, self._awaited.pop(key))
                continue
            del self._awaited[key]
            ring.dead = not known.may_come_back(self._services.is_running)
            ring.is_early = True  # it may not have registered all of its events yet
            owned = _Owned(ring, peer, _ignore)
            self._enter(owned)
            self._note_stored(owned)
            self._orphan(owned)
        self.look_again()

    def _orphan(self, owned: _Owned) -> None:
        owned.failed = _ignore  # holds nothing of its connection and forms no cycle: `_forget` frees it
        self._orphans[owned] = None

    def saved(self) -> Iterator[tuple[Key, KnownRing]]:
        """All rings, for the state of the next daemon."""
        for key, owned in self._owned.items():
            if key not in self._awaited:
                yield key, self._known(owned)
        yield from self._awaited.items()

    def _wake(self) -> None:
        if self._asleep:
            os.eventfd_write(self._bell, 1)

    def note_off(self) -> None:
        """An event is off now: rings without one that is on give their memory back."""
        self.intake.has_off = True
        self._wake()

    def grown(self, ring: DataRing, event_ids: Iterable[int]) -> None:
        """The table of a ring's connection has more events, or for each 0 a number without one."""
        known = self._awaited.get(ring.key)
        if known is None:
            self.on_grown(ring.key, event_ids)
        elif known.is_registered_in(len(ring.table)):
            self._wait_no_more([ring.key])

    def wait_no_more(self, ring: DataRing) -> None:
        """An early ring will have no more events: its records do not wait for them, nor do other rings."""
        ring.is_early = False
        if ring.key in self._awaited:
            self._wait_no_more([ring.key])

    def fileno(self) -> int:
        """Readable when a doorbell rang."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._owned)

    def adopt(
        self,
        table: IndexTable,
        peer: Peer,
        fd: int,
        doorbell: int,
        failed: Callable[[TraceError], None],
        *,
        early: bool = False,
    ) -> DataRing:
        """Use a ring that its program made, or an earlier daemon, and take in the records that it holds.
        early: a record may precede the registration of its event.

        A program may hand its ring over again: this ends its former connection, unless it fails. (The program
        put a file over its socket, which stays open while one of its threads waits in it, or as long as it
        has a duplicate.)

        The descriptors are the ring's from now on, also when it fails. TraceError: EINVAL saying what is
        wrong with them, EBUSY when a connection of another process has this ring, ENOMEM (the user's share,
        or the machine's memory).
        """
        try:
            ring = DataRing.adopt(table, peer.pid, fd, doorbell, peer.share)
        except ValueError as error:
            raise TraceError(errno.EINVAL, f"not a data ring that can be adopted: {error}") from None
        except (OSError, MemoryError) as error:
            raise TraceError(errno.ENOMEM, f"the data ring cannot be mapped: {error}") from error
        # Until now it belonged to nobody, was an orphan, or had a former connection of the same program.
        key = ring.key
        other = self._owned.get(key)
        former = None if other in self._orphans else other
        if former is not None and not former.belongs_to(peer):
            raise TraceError(errno.EBUSY, "this data ring is in use by another connection; close that first")
        if other is None or other.peer.share != peer.share:
            for resource, amount in _needs(ring.size):
                self._shares.check(resource, peer.share, amount, privileged=peer.privileged)
        ring.is_early = early
        self._watch(ring)
        # The journal continues where the other object of this ring stopped.
        if other is not None:
            self._forget(other, for_another=True)
            ring.start_again()
            ring.giving_back = other.ring.giving_back
        try:
            self._journal.resume(ring)  # a ring known before has its slot, so this cannot fail then
        except (OSError, MemoryError) as error:
            self._epoll.unregister(ring.doorbell)  # the producer keeps it open
            raise TraceError(errno.ENOMEM, f"no room to keep account of the ring: {error}") from error
        # Nothing fails from here on.
        missed = self._missing.pop(key, None)
        if missed is not None:
            self._services.ring_gone(missed.event_ids, -1)
        owned = _Owned(ring, peer, failed)
        self._enter(owned)
        if other is not None and other.stored:
            self._note_stored(owned)
        elif self._store.limit:
            self._keep(owned)
        known = self._awaited.get(key)
        if known is not None and (not early or known.is_registered_in(len(table))):
            self._wait_no_more([key])
        if former is not None:
            former.failed(TraceError(errno.EBUSY, "its program gave the ring to a new connection"))
            self._services.end_failed()
        return ring

    def in_use(self, fd: int) -> bool:
        """Whether a connection has the ring of this memory."""
        key = key_of(fd)
        owned = None if key is None else self._owned.get(key)
        return owned is not None and owned not in self._orphans

    def drop(self, ring: DataRing) -> None:
        """Its producer is gone: take in what it committed, and forget the ring; up to a second later if it
        lives, and a thread may still commit a record, or its next connection register the event of one."""
        owned = self._owned.get(ring.key)
        if owned is None or owned.ring is not ring:
            return  # another connection of its program has it
        is_left = False
        try:
            if not (self._handing_over or self.gathering):
                ring.close()
                if ring.has_rest:
                    self.take_in()
            if not self._handing_over and (self.gathering or (ring.has_rest and not ring.corrupt)):
                is_left = self._leave(owned)
        finally:
            if not is_left:
                self._forget(owned)
        if is_left and not self.gathering:
            self.take_in()  # stamped or committed after the previous call began, or behind what was not
            self._forget_finished([owned])

    def _leave(self, owned: _Owned) -> bool:
        """Continue to read a ring whose connection ends. False: its events are gone."""
        if self._services.acquire_events(owned.ring.table.event_ids()) is None:
            return False
        if not self._may_be_filling(owned):
            owned.ring.dead = True
            owned.ring.is_early = False  # no other connection will bring its registrations
        owned.left = True
        self._orphan(owned)
        return True

    def _may_be_filling(self, owned: _Owned) -> bool:
        """Whether a thread may still be about to commit what it reserved: only the connection has ended.

        Then its reserved space stays, since a commit into space that was given up would look like a record in
        the next lap. Records behind it wait until the next connection adopts the ring.
        """
        pid, start_time = owned.ring.pid, owned.start_time
        is_visible = pid > 0 and start_time > 0
        return is_visible and self._services.is_running(pid, start_time)

    def _forget(self, owned: _Owned, *, for_another: bool = False) -> None:
        """Stop reading a ring. for_another: this daemon continues with it in another object."""
        ring = owned.ring
        for tid, pid in self._writers_of(owned):
            self._services.comms.wrote(tid, pid)
        del self._owned[ring.key]
        self.intake.remove(ring)
        keep = self._handing_over or for_another
        (self._journal.leave if keep else self._journal.end)(ring)
        self._forget_place(owned, keep=keep)
        if not keep:
            self.on_gone(ring.key)
            if self._awaited.pop(ring.key, None) is not None:
                self._wait_no_more(())
        if owned in self._orphans:
            del self._orphans[owned]
            self._services.release_events(ring.table.event_ids())
            self.ended(ring.table)
        if ring.doorbell >= 0:
            self._epoll.unregister(ring.doorbell)
        for resource, amount in _needs(ring.size):
            self._shares.drop(resource, owned.peer.share, amount)

    def end_orphans(self, *, all_of_them: bool = False) -> None:
        """Forget the empty rings of programs that are gone; with `all_of_them` also of programs that did not
        adopt theirs."""
        if self.gathering:
            return
        ended = []
        for owned in self._orphans:
            ring = owned.ring
            if owned.left:
                ring.close()  # one that was left while others were awaited
            if (
                owned.left
                or all_of_them
                or ring.dead
                or not self._known(owned).may_come_back(self._services.is_running)
            ):
                # (Not each time a look into /proc: a user can have thousands of rings that are left.)
                if not (owned.left and owned.looks and ring.pending_bytes):
                    ring.dead = ring.dead or not self._may_be_filling(owned)
                owned.looks -= 1
                if ring.dead or owned.looks < 0:
                    ring.is_early = False  # no other connection has brought its registrations
                ended.append(owned)
        if ended:
            self.round()
            self._forget_finished(ended)

    def _forget_finished(self, orphans: Iterable[_Owned]) -> None:
        """Forget those of which everything is taken in that can be."""
        for owned in orphans:
            ring = owned.ring
            may_get_more = ring.waits_for_room or (not ring.dead and owned.looks >= 0)
            if owned in self._orphans and not (ring.has_rest and may_get_more):
                self._forget(owned)

    @property
    def has_orphans(self) -> bool:
        """There are rings without a connection: call `end_orphans` now and then."""
        return bool(self._orphans)

    def round(self, budget: int | None = None) -> int:
        """`take_in`, then end the connections of rings found corrupt. Not to be called from inside a
        connection."""
        taken = self.take_in(budget)
        corrupt = [owned for owned in self._owned.values() if owned.ring.corrupt]
        for owned in corrupt:
            if owned in self._orphans:
                daemon_log("ring-corrupt", pid=owned.ring.pid, reason=_CORRUPT)
                self._forget(owned)
            else:
                owned.failed(TraceError(errno.EPROTO, _CORRUPT))
        if corrupt:
            self._services.end_failed()
        return taken

    def take_in(self, budget: int | None = None) -> int:
        """Take what was committed before this call (at most `budget` records), oldest first; returns how
        many."""
        if self._taking_in or self._awaited:
            return 0
        self._taking_in = True
        self._services.save()
        try:
            return self.intake.take_in() if budget is None else self.intake.take_in(budget)
        finally:
            self._taking_in = False
            if self.intake.clock_jumped:
                self.intake.clock_jumped = False
                self.intake.tsc = self.intake.tsc and procfs.tsc_is_trusted()

    def take_in_before_others(self) -> int | None:
        """Take in what was committed before this call. Returns the time for a record that arrives another way
        now, so that none of these is older. None: wait, since rings with older records may come back."""
        if self._awaited:
            return None
        self.take_in()
        return self.intake.looked_ns

    @property
    def poll_s(self) -> float:
        """How long to wait for the next round while awake."""
        return NARROW_POLL_S if self.intake.nr_narrow else POLL_S

    def ended(self, table: IndexTable) -> None:
        """This table gets no more records."""
        self._lost_of_unknown += table.total_unknown
        table.total_unknown = 0

    @property
    def lost_of_unknown(self) -> int:
        """Lost records that are in no event's `stats`: their registration was refused or never came, or they
        found a ring full that does not count the losses of their event (`DataRing`)."""
        return self._lost_of_unknown + sum(owned.ring.table.total_unknown for owned in self._owned.values())

    def writers(self) -> Iterator[tuple[int, int]]:
        """(thread id, process id) of threads that wrote, for rings with new records since the previous
        call."""
        for owned in self._owned.values():
            yield from self._writers_of(owned)

    @staticmethod
    def _writers_of(owned: _Owned) -> Iterator[tuple[int, int]]:
        ring = owned.ring
        if owned.taken != ring.taken:
            owned.taken = ring.taken
            for tid in ring.writers.threads():
                yield tid, ring.pid

    def answer_doorbells(self) -> None:
        """Reset the doorbells that rang, so that each can wake the edge again."""
        self._epoll.poll(0, len(self._owned) + 1)

    def look_at_waits(self) -> None:
        """`wait_us` has changed."""
        for owned in self._owned.values():
            owned.ring.set_wait(self._services.wait_us(owned.peer.uid))

    def note_behind(self, share: int, is_behind: bool) -> None:
        """Many connections of this user wait to be set up, or no longer: children that his programs fork now
        might be refused, and their records would be in no number if they end before they read that."""
        (self._behind.add if is_behind else self._behind.discard)(share)
        for owned in self._owned.values():
            if owned.peer.share == share:
                owned.ring.set_behind(is_behind)

    def want_wakeup(self, wanted: bool) -> None:
        """Whether producers shall ring the doorbell. After True, run one more `round` before sleeping."""
        self._asleep = wanted
        self.intake.want_wakeup(wanted)

    def hand_over(self) -> None:
        """The daemon ends, the producers stay: rings that are dropped from now on are left unchanged for the
        next daemon."""
        self._handing_over = True

    def close(self) -> None:
        """Forget all rings; the intake ends."""
        self._awaited.clear()
        for owned in list(self._owned.values()):
            self.drop(owned.ring)
        for owned in list(self._orphans):
            self._forget(owned)
        self._epoll.close()
        os.close(self._bell)
        self._asleep = False  # consumers that are detached after this ring no bell

    def _known(self, owned: _Owned) -> KnownRing:
        return KnownRing(owned.ring.pid, owned.start_time, owned.peer.uid, owned.ring.table.event_ids())

    def _watch(self, ring: DataRing) -> None:
        """From now on its doorbell wakes the edge.

        Edge-triggered, and never read or written here: the producer shares the open file and may make it
        block (O_NONBLOCK belongs to the file), fill it, or make reads count down by one (EFD_SEMAPHORE).
        """
        try:
            self._epoll.register(ring.doorbell, select.EPOLLIN | select.EPOLLET)
        except OSError as error:
            raise TraceError(errno.ENOMEM, f"no room to watch a doorbell: {error.strerror}") from error

    def _keep(self, owned: _Owned) -> None:
        """Store it, at once or when there is a place."""
        try:
            self._shares.check(Resource.STORED_RINGS, owned.peer.share, privileged=owned.peer.privileged)
        except TraceError:
            return
        if self._store.keep(name_of(owned.ring.key), owned.ring.fd):
            self._note_stored(owned)

    def _note_stored(self, owned: _Owned) -> None:
        owned.stored = True
        self._shares.add(Resource.STORED_RINGS, owned.peer.share)

    def _forget_place(self, owned: _Owned, *, keep: bool) -> None:
        """Give its place in the store to another ring. keep: leave the ring stored."""
        if not owned.stored:
            return
        self._shares.drop(Resource.STORED_RINGS, owned.peer.share)
        if keep:
            return
        self._store.drop(name_of(owned.ring.key))
        waiting: dict[int, _Owned] = {}  # of each user the first
        for other in self._owned.values() if self.nr_unstored else ():
            if not other.stored:
                waiting.setdefault(other.peer.share, other)
        for share in sorted(waiting, key=lambda uid: self._shares.held(Resource.STORED_RINGS, uid)):
            self._keep(waiting[share])
            if waiting[share].stored:
                return

    def _enter(self, owned: _Owned) -> None:
        """Begin to read its ring."""
        ring, peer = owned.ring, owned.peer
        ring.writers = self._services.all_writers.of(ring.pid, owned.start_time, peer.share, peer.lives)
        self.intake.add(ring)
        ring.set_wait(self._services.wait_us(owned.peer.uid))
        ring.set_behind(owned.peer.share in self._behind)
        self._owned[ring.key] = owned
        for resource, amount in _needs(ring.size):
            self._shares.add(resource, owned.peer.share, amount)
        if ring.key not in self._awaited:
            self.on_kept(ring.key, self._known(owned))
        ring.want_wakeup(self._asleep)
        self._wake()  # read at once what an adopted ring holds
