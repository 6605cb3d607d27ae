"""The data rings of all producers: who may have one, their doorbells, and taking them in together.

One `Rings` for the daemon. It makes a ring for a connection or adopts one from before a restart, counts the
memory that each user's rings take, and hangs all doorbells on one epoll(7) descriptor for the edge to wait
on. The record path itself is compiled (`_intake`).

How the edge (server/serve.py) uses it:

    asleep ── doorbell ──> awake: every POLL_S a `round`; no doorbells, except where a ring passes half full
      ^                      │
      └── want_wakeup(True), once more a `round`: nothing ── after LINGER_ROUNDS rounds without a record

With a journal, what a killed daemon had consumed of a ring is known to the one that adopts it
(`_journal.Journal`).

A ring whose memory is invalid is `corrupt`: `round` tells its owner by `failed`, whose connection ends with
EPROTO.
"""

import errno
import os
import select
from collections.abc import Callable

import attrs

from utracefs_protocol.errors import TraceError
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake
from utracefsd.intake._journal import Journal
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

# A record is visible after this long at most while the daemon is awake (the promise is 20 ms).
POLL_S = 0.002

# How many empty rounds before producers are asked for the doorbell again. A program that emits every few
# milliseconds then costs neither itself a system call per record nor the daemon a wake-up.
LINGER_ROUNDS = 10

# Records in one round before others have their turn: some milliseconds.
ROUND_RECORDS = 50_000


_DESCRIPTORS_OF_A_RING = 2


def _nothing() -> None:
    return None


@attrs.define(eq=False)
class _Owned:
    ring: DataRing
    share: int
    failed: Callable[[TraceError], None]


class Rings:
    """`nr_cpus`: of the machine; a record that claims another cpu counts as cpu 0's. `close` ends it.

    journal: where it is kept how far each ring is consumed. new_thread: told of each thread that is seen
    writing. save: called before records are taken in, to write down their events for a daemon that comes
    after this one. end_failed: called when owners of corrupt rings were told.
    """

    def __init__(
        self,
        nr_cpus: int,
        *,
        shares: Shares | None = None,
        journal: Journal | None = None,
        new_thread: Callable[[int], None] | None = None,
        save: Callable[[], None] = _nothing,
        end_failed: Callable[[], None] = _nothing,
    ) -> None:
        self._save = save
        self._end_failed = end_failed
        self._new_thread = new_thread
        self._intake = Intake(nr_cpus)
        self._journal = journal
        self._handing_over = False
        self._shares = Shares() if shares is None else shares
        self._owned: dict[DataRing, _Owned] = {}
        self._keys: set[tuple[int, int]] = set()
        self._epoll = select.epoll()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Ours alone: wakes the edge as a doorbell does."""
        self._epoll.register(self._bell, select.EPOLLIN | select.EPOLLET)
        self._taking_in = False

    def fileno(self) -> int:
        """Readable when a doorbell rang."""
        return self._epoll.fileno()

    def __len__(self) -> int:
        return len(self._owned)

    def create(
        self, table: IndexTable, peer: Peer, size: int, failed: Callable[[TraceError], None]
    ) -> DataRing:
        """A new ring of `size` bytes for the connection that `table` belongs to; `failed` is told when it
        turns corrupt.

        TraceError: EINVAL (not a power of two from 64 KiB to 64 MiB), ENOMEM (the user's share, or the
        machine's).
        """
        self._check_shares(peer, size)
        try:
            ring = DataRing.create(table, peer.pid, size)
            if self._journal is not None:
                self._journal.begin(ring)
        except ValueError as error:
            raise TraceError(errno.EINVAL, str(error)) from None
        except (OSError, MemoryError) as error:
            raise TraceError(errno.ENOMEM, f"no memory for a data ring: {error}") from error
        return self._own(ring, peer, failed)

    def adopt(
        self, table: IndexTable, peer: Peer, fd: int, doorbell: int, failed: Callable[[TraceError], None]
    ) -> DataRing:
        """Go on with a ring that a daemon before this one made, and take in what waits in it.

        The descriptors stay the caller's. TraceError: EINVAL with what is wrong with them, EBUSY when another
        connection has this ring, ENOMEM as for `create`.
        """
        try:
            mine = os.dup(fd)
            try:
                doorbell = os.dup(doorbell)
            except OSError:
                os.close(mine)
                raise
            ring = DataRing.adopt(table, peer.pid, mine, doorbell)
        except ValueError as error:
            raise TraceError(errno.EINVAL, f"not a data ring that can be adopted: {error}") from None
        except (OSError, MemoryError) as error:
            raise TraceError(errno.ENOMEM, f"the data ring cannot be mapped: {error}") from error
        if ring.key() in self._keys:
            raise TraceError(errno.EBUSY, "this data ring is in use by another connection; close that first")
        self._check_shares(peer, ring.size)
        if self._journal is not None:
            try:
                self._journal.resume(ring)
            except (OSError, MemoryError) as error:
                raise TraceError(errno.ENOMEM, f"no room to keep account of the ring: {error}") from error
        return self._own(ring, peer, failed)

    def in_use(self, fd: int) -> bool:
        """Whether a connection has the ring of this memory."""
        found = os.fstat(fd)
        return (found.st_dev, found.st_ino) in self._keys

    def drop(self, ring: DataRing) -> None:
        """Its producer is gone: take what it committed, and forget it."""
        owned = self._owned.pop(ring)
        self._keys.discard(ring.key())
        if not self._handing_over:
            ring.dead = True
            self.take_in()
        self._intake.remove(ring)
        if self._journal is not None:
            (self._journal.leave if self._handing_over else self._journal.end)(ring)
        self._epoll.unregister(ring.doorbell)
        self._shares.drop(Resource.RING_BYTES, owned.share, ring.size)
        self._shares.drop(Resource.DESCRIPTORS, owned.share, _DESCRIPTORS_OF_A_RING)

    def round(self, budget: int | None = None) -> int:
        """`take_in`, and end the connections of rings that turned out corrupt. Not from inside a
        connection."""
        taken = self.take_in(budget)
        corrupt = [owned for owned in self._owned.values() if owned.ring.corrupt]
        for owned in corrupt:
            owned.failed(TraceError(errno.EPROTO, "the memory of the data ring is invalid"))
        if corrupt:
            self._end_failed()
        return taken

    def take_in(self, budget: int | None = None) -> int:
        """Take what was committed before this call (at most `budget` records), oldest first; returns how
        many."""
        if self._taking_in:
            return 0
        self._taking_in = True
        self._save()
        try:
            return self._intake.take_in() if budget is None else self._intake.take_in(budget)
        finally:
            self._taking_in = False

    def threads(self) -> set[int]:
        """Threads that were seen writing."""
        return {tid for ring in self._owned for tid in ring.threads()}

    def answer_doorbells(self) -> None:
        """Note those that rang: one that rings again wakes again."""
        self._epoll.poll(0, len(self._owned) + 1)

    def want_wakeup(self, wanted: bool) -> None:
        """Whether producers shall ring the doorbell. After asking for it, have one more `round` before
        sleeping."""
        self._intake.want_wakeup(wanted)

    def hand_over(self) -> None:
        """The daemon ends, the producers go on: rings that are dropped from now on stay as they are, for its
        successor."""
        self._handing_over = True

    def close(self) -> None:
        """Forget all rings; nothing more is taken in."""
        for ring in list(self._owned):
            self.drop(ring)
        self._epoll.close()
        os.close(self._bell)

    def _check_shares(self, peer: Peer, size: int) -> None:
        for resource, amount in (
            (Resource.RING_BYTES, size),
            (Resource.DESCRIPTORS, _DESCRIPTORS_OF_A_RING),
        ):
            self._shares.check(resource, peer.share, amount, privileged=peer.privileged)

    def _own(self, ring: DataRing, peer: Peer, failed: Callable[[TraceError], None]) -> DataRing:
        try:
            # Edge-triggered, and never read or written here: the producer has the same open file, may make it
            # block (O_NONBLOCK is the file's), or fill it, or have it count down one by one (EFD_SEMAPHORE).
            self._epoll.register(ring.doorbell, select.EPOLLIN | select.EPOLLET)
        except OSError as error:
            if self._journal is not None:
                self._journal.end(ring)
            raise TraceError(errno.ENOMEM, f"no room to watch a doorbell: {error.strerror}") from error
        # From here on nothing fails.
        ring.new_thread = self._new_thread
        ring.peer_lives = peer.lives
        self._intake.add(ring)
        self._owned[ring] = _Owned(ring, peer.share, failed)
        self._keys.add(ring.key())
        self._shares.add(Resource.RING_BYTES, peer.share, ring.size)
        self._shares.add(Resource.DESCRIPTORS, peer.share, _DESCRIPTORS_OF_A_RING)
        # The daemon may be asleep: the next commit shall ring the doorbell.
        ring.want_wakeup(True)
        os.eventfd_write(self._bell, 1)  # and look at once at what an adopted one holds
        return ring
