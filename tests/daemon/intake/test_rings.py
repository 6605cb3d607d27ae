"""Data rings through a real daemon object and real sockets: made, used, adopted, corrupted, limited."""

from __future__ import annotations

import errno
import mmap
import os
import select
import struct
import time
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pytest

from tests.daemon.connections.program import JOURNAL, NO_STORE, FakeRingServices
from tests.daemon.intake.producing import HEAD, TAIL, Producer, Seen, adopt_new, copies, new_ring, number
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MIN_DATA_RING
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._giving_back import GivingBack
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake.rings import KnownRing, Rings
from utracefsd.machine import closing
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

SIZE = 64 << 10
COMMITTED = 1 << 31
DATA = 65536


# ---- how large a ring is


def test_256_processes_of_a_user_have_the_default_ring(bells: Bells) -> None:
    bells.peer = Peer(pid=os.getpid(), uid=12345, gid=12345, privileged=False)
    for _ in range(256):
        ring = adopt_new(bells.rings, IndexTable(), bells.peer, 16 << 20, lambda error: None)
        assert ring.size == 16 << 20
    with pytest.raises(TraceError, match="count as 262144 KiB; 262144 KiB are the limit") as caught:
        adopt_new(bells.rings, IndexTable(), bells.peer, MIN_DATA_RING, lambda error: None)
    assert caught.value.errno == errno.ENOMEM


# ---- times that records may have


def test_a_counter_that_jumps_is_believed_while_the_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = True
    monkeypatch.setattr("utracefsd.machine.procfs.tsc_is_trusted", lambda: trusted)
    rings = Rings(2, FakeRingServices(), NO_STORE, JOURNAL)
    peer = Peer(pid=os.getpid(), uid=os.getuid(), gid=os.getgid(), privileged=True)
    ring = adopt_new(rings, IndexTable(), peer, SIZE, lambda error: None)
    with mmap.mmap(ring.fd, 4096) as memory:

        def allowed() -> int:
            return int(struct.unpack_from("<I", memory, 260)[0])

        for expected in (1, 0, 0):
            rings.intake.clock_jumped = True
            rings.take_in()
            assert allowed() == expected
            trusted = not trusted
        other = adopt_new(rings, IndexTable(), peer, SIZE, lambda error: None)
        with mmap.mmap(other.fd, 4096) as later:
            assert struct.unpack_from("<I", later, 260) == (0,), "once distrusted it stays so"
    rings.close()


# ---- doorbells, which the other side owns as well


class Bells:
    """Rings without a daemon, and whether the edge would wake."""

    def __init__(self) -> None:
        self.rings = Rings(2, FakeRingServices(), NO_STORE, JOURNAL)
        self.peer = Peer.from_credentials(os.getpid(), os.getuid(), os.getgid(), owner_uid=os.getuid())

    def woken(self) -> bool:
        return bool(select.select([self.rings.fileno()], [], [], 0)[0])

    def adopt(self, doorbell: int) -> DataRing:
        made = new_ring(IndexTable())
        return self.rings.adopt(IndexTable(), self.peer, *copies(made.fd, doorbell), lambda error: None)


@pytest.fixture
def bells() -> Iterator[Bells]:
    made = Bells()
    yield made
    made.rings.close()


def test_the_edge_wakes_when_no_ring_is_waited_for_any_more() -> None:
    """The other rings have records, which it may take in then."""
    services = FakeRingServices(is_running=lambda pid, start: True)
    rings = Rings(
        2, services, NO_STORE, JOURNAL, known={(0, n): KnownRing(4711 + n, 1, 0, []) for n in range(2)}
    )
    for left_out, woken in ((4712, False), (0, True)):
        rings.stop_waiting(but_for=[left_out])
        assert bool(select.select([rings.fileno()], [], [], 0)[0]) == woken
    rings.close()


def test_a_ring_that_does_not_come_back_is_reported(bells: Bells) -> None:
    """Until it comes back after all."""
    made = new_ring(IndexTable(), pid=7)
    told: list[tuple[Sequence[int], int]] = []
    services = FakeRingServices(ring_gone=lambda ids, n: told.append((ids, n)))
    rings = Rings(1, services, NO_STORE, JOURNAL, known={made.key: KnownRing(7, 1, 1000, [20])})
    assert told == [([20], 1)]
    assert rings.nr_missing == 1
    rings.adopt(IndexTable(), bells.peer, *copies(made.fd, made.doorbell), lambda error: None)
    assert told[1:] == [([20], -1)]
    assert rings.nr_missing == 0
    rings.close()


@pytest.mark.parametrize(("pid", "uid"), [(999, 1000), (1001, 1000), (1000, 999), (1000, 1001)])
def test_only_its_own_program_ends_a_rings_former_connection(pid: int, uid: int) -> None:
    rings = Rings(1, FakeRingServices(), NO_STORE, JOURNAL)
    peer = Peer(pid=1000, uid=1000, gid=1000, privileged=True)
    ended: list[object] = []
    ring = adopt_new(rings, IndexTable(), peer, SIZE, ended.append)
    other = attrs.evolve(peer, pid=pid, uid=uid)
    with pytest.raises(TraceError) as caught:
        rings.adopt(IndexTable(), other, *copies(ring.fd, ring.doorbell), lambda error: None)
    assert caught.value.errno == errno.EBUSY
    assert not ended
    rings.adopt(IndexTable(), peer, *copies(ring.fd, ring.doorbell), lambda error: None)
    assert len(ended) == 1
    rings.close()


def test_consumers_are_detached_after_the_rings_are_closed() -> None:
    """Those of plug-ins, at the daemon's end."""
    made = Bells()
    made.rings.close()
    made.rings.note_off()


def test_a_doorbell_is_neither_read_nor_written(bells: Bells) -> None:
    """A read may block: O_NONBLOCK belongs to the open file, and the producer has that, too."""
    ring = adopt_new(bells.rings, IndexTable(), bells.peer, SIZE, lambda error: None)
    os.set_blocking(ring.doorbell, True)
    bells.rings.answer_doorbells()
    for _ in range(3):
        assert not bells.woken()
        os.eventfd_write(ring.doorbell, 1)
        assert bells.woken()
        bells.rings.answer_doorbells()
    assert os.eventfd_read(ring.doorbell) == 3


@pytest.mark.parametrize("flags", [0, os.EFD_SEMAPHORE])
@pytest.mark.parametrize("count", [1, 1 << 62, (1 << 64) - 2])
def test_an_adopted_doorbell_may_hold_any_count(bells: Bells, flags: int, count: int) -> None:
    """Read one by one it would keep the daemon busy forever, written it would be full."""
    doorbell = os.eventfd(0, flags | os.EFD_NONBLOCK)
    try:
        os.eventfd_write(doorbell, count)
        before = len(os.listdir("/proc/self/fd"))
        ring = bells.adopt(doorbell)
        assert bells.woken(), "what it holds is looked at"
        bells.rings.answer_doorbells()
        assert not bells.woken()
        bells.rings.drop(ring)
        del ring
        assert len(os.listdir("/proc/self/fd")) <= before  # what others sent may still be closing
    finally:
        os.close(doorbell)


def test_an_adopted_ring_is_found_among_others_without_a_look_at_them(
    bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand programs come back at once after a restart."""
    rings = [adopt_new(bells.rings, IndexTable(), bells.peer, SIZE, lambda error: None) for _ in range(20)]
    looked_at: list[int] = []
    fstat = os.fstat

    def counting(fd: int) -> os.stat_result:
        looked_at.append(fd)
        return fstat(fd)

    doorbell = os.eventfd(0)
    monkeypatch.setattr(os, "fstat", counting)
    adopted = bells.adopt(doorbell)
    assert not set(looked_at) & {ring.fd for ring in rings}
    other = Peer(pid=1, uid=0, gid=0, privileged=True)
    with pytest.raises(TraceError) as caught:
        bells.rings.adopt(IndexTable(), other, *copies(adopted.fd, doorbell), lambda error: None)
    assert caught.value.errno == errno.EBUSY
    assert bells.rings.in_use(adopted.fd)
    bells.rings.drop(adopted)
    assert not bells.rings.in_use(adopted.fd)
    os.close(doorbell)


def test_what_is_no_memory_file_is_not_looked_at(bells: Bells, monkeypatch: pytest.MonkeyPatch) -> None:
    """stat(2) of a file may wait for its server for ever (FUSE)."""
    before = len(os.listdir("/proc/self/fd"))
    file, doorbell = os.open("/dev/null", os.O_RDWR), os.eventfd(0)
    looked_at: list[int] = []
    with monkeypatch.context() as patched, pytest.raises(TraceError, match="is not a memfd"):
        patched.setattr(os, "fstat", looked_at.append)
        assert not bells.rings.in_use(file)
        bells.rings.adopt(IndexTable(), bells.peer, file, doorbell, lambda error: None)
    assert not looked_at
    while closing.waiting():
        time.sleep(0.001)
    assert len(os.listdir("/proc/self/fd")) <= before  # what others sent may have been closing


def test_rings_of_one_user_share_what_they_may_ask_of_proc() -> None:
    rings = Rings(2, FakeRingServices(), NO_STORE, JOURNAL)
    users = [Peer(pid=os.getpid(), uid=uid, gid=uid, privileged=False) for uid in (1000, 1000, 1001)]
    one, two, other = [adopt_new(rings, IndexTable(), peer, SIZE, lambda error: None) for peer in users]
    assert one.writers.lookups is two.writers.lookups is not other.writers.lookups
    rings.close()


def test_memory_that_is_given_back_while_the_ring_is_adopted_is_not_used_before() -> None:
    """A thread that gets no cpu may punch it later, with what the producer wrote there."""
    services = FakeRingServices(acquire_events=lambda ids: IndexTable(), is_running=lambda pid, start: True)
    rings = Rings(2, services, NO_STORE, JOURNAL, known={(0, 0): KnownRing(4711, 1, 0, [])})
    peer = Peer(pid=os.getpid(), uid=1000, gid=1000, privileged=False)
    ring = adopt_new(rings, IndexTable(), peer, SIZE, lambda error: None)
    memory, doorbell = os.dup(ring.fd), os.dup(ring.doorbell)
    rings.drop(ring)
    ring.giving_back = late = GivingBack(ring.fd, SIZE, 0, SIZE // 2)
    rings.stop_waiting()
    adopted = rings.adopt(IndexTable(), peer, *copies(memory, doorbell), lambda error: None)
    with mmap.mmap(memory, DATA + 24) as ring_memory:
        struct.pack_into("<II", ring_memory, DATA, COMMITTED, 0)
        struct.pack_into("<Q", ring_memory, 64, 24)
        for tail in (0, 24):
            rings.take_in()
            assert adopted.taken == 1
            assert struct.unpack_from("<Q", ring_memory, 128) == (tail,)
            late.run()
    rings.close()
    os.close(memory)
    os.close(doorbell)


def test_a_ring_without_a_connection_stays_when_its_new_user_may_not_have_it() -> None:
    """Its records are not lost: the check comes before it is given up."""
    shares = Shares(limits={Resource.RING_BYTES: SIZE})
    services = FakeRingServices(
        shares=shares, is_running=lambda pid, start: True, acquire_events=lambda ids: IndexTable()
    )
    rings = Rings(2, services, NO_STORE, JOURNAL, known={(0, 0): KnownRing(4711, 1, 0, [])})
    first, second = [Peer(pid=os.getpid(), uid=uid, gid=uid, privileged=False) for uid in (1000, 1001)]
    other = adopt_new(rings, IndexTable(), second, SIZE, lambda error: None)
    ring = adopt_new(rings, IndexTable(), first, SIZE, lambda error: None)
    memory, doorbell = os.dup(ring.fd), os.dup(ring.doorbell)
    rings.drop(ring)
    assert rings.has_orphans, "while rings are waited for"
    with pytest.raises(TraceError, match="ask for smaller ones"):
        rings.adopt(IndexTable(), second, *copies(memory, doorbell), lambda error: None)
    assert (rings.has_orphans, len(rings)) == (True, 2)
    rings.stop_waiting()
    rings.drop(other)
    adopted = rings.adopt(IndexTable(), second, *copies(memory, doorbell), lambda error: None)
    assert (rings.has_orphans, len(rings)) == (False, 1)
    assert shares.held(Resource.RING_BYTES, 1001) == adopted.size == SIZE
    assert shares.held(Resource.RING_BYTES, 1000) == 0
    os.close(memory)
    os.close(doorbell)
    rings.close()


def test_a_corrupt_ring_without_a_connection_is_forgotten() -> None:
    services = FakeRingServices(is_running=lambda pid, start: True, acquire_events=lambda ids: IndexTable())
    rings = Rings(2, services, NO_STORE, JOURNAL, known={(0, 0): KnownRing(4711, 1, 0, [])})
    peer = Peer(pid=os.getpid(), uid=1000, gid=1000, privileged=False)
    ring = adopt_new(rings, IndexTable(), peer, SIZE, lambda error: None)
    os.pwrite(ring.fd, struct.pack("<Q", 1 << 50), 64)  # head
    rings.drop(ring)
    assert rings.has_orphans
    rings.stop_waiting()
    rings.round()
    assert (rings.has_orphans, len(rings)) == (False, 0)
    rings.close()


def test_a_record_that_a_thread_is_writing_while_its_program_passes_the_ring_on(bells: Bells) -> None:
    """The daemon does not see the program's pid namespace, so it cannot look whether the program lives."""
    rings, seen, table = bells.rings, Seen(), IndexTable()
    table.append(seen.tracepoint)
    peer = Peer(pid=0, uid=os.getuid(), gid=os.getgid(), privileged=True)
    fd, doorbell = MadeRing.make(SIZE)
    former = rings.adopt(table, peer, *copies(fd, doorbell), lambda error: rings.drop(former))
    producer = Producer(former)
    assert producer.emit(0, number(1), 1, word=8)  # without COMMITTED
    assert producer.emit(0, number(2), 2)
    rings.adopt(table, peer, fd, doorbell, lambda error: None)
    assert len(rings) == 1
    rings.take_in()
    assert seen.numbers() == []
    struct.pack_into("<I", producer.memory, DATA, COMMITTED | 8)
    rings.take_in()
    assert seen.numbers() == [1, 2]
    producer.close()


@pytest.mark.parametrize("fault", ["no doorbell", "no room to watch"])
def test_a_ring_stays_where_it_is_when_handing_it_over_fails(
    fault: str, bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings, seen, table = bells.rings, Seen(), IndexTable()
    ended: list[TraceError] = []

    def refuse(_: DataRing) -> None:
        raise TraceError(errno.ENOMEM, "no room to watch a doorbell")

    table.append(seen.tracepoint)
    fd, doorbell = MadeRing.make(SIZE)
    former = rings.adopt(table, bells.peer, *copies(fd, doorbell), ended.append)
    producer = Producer(former)
    assert producer.emit(0, number(1), 1)
    with monkeypatch.context() as patched, pytest.raises(TraceError) as caught:
        if fault == "no room to watch":
            patched.setattr(rings, "_watch", refuse)
        second = fd if fault == "no doorbell" else doorbell
        rings.adopt(IndexTable(), bells.peer, *copies(fd, second), ended.append)
    assert caught.value.errno == (errno.EINVAL if fault == "no doorbell" else errno.ENOMEM)
    del caught  # its traceback has the refused ring
    assert not ended
    assert rings.in_use(fd)
    assert producer.emit(0, number(2), 2)
    rings.take_in()
    assert seen.numbers() == [1, 2]
    producer.close()
    for one in (fd, doorbell):
        os.close(one)


def test_a_ring_that_is_handed_over_again_continues_behind_space_that_was_withheld(
    bells: Bells, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is too fast gets less of its ring; the end of that gives it space of the last lap, which
    it may use at once."""
    rings, seen, table = bells.rings, Seen(), IndexTable()
    table.append(seen.tracepoint)
    fd, doorbell = MadeRing.make(32 << 20)
    producer = Producer(rings.adopt(table, bells.peer, *copies(fd, doorbell), lambda error: None))
    emitted = 0

    def fill() -> int:
        return sum(iter(lambda: producer.emit(0, bytes(65000), time.monotonic_ns()), False))

    until = time.monotonic() + 10
    while not rings.intake.nr_narrow and time.monotonic() < until:
        emitted += fill()
        rings.take_in(10)
    for _ in range(2):
        emitted += fill()
        rings.take_in()
    assert producer.u64(TAIL) < producer.u64(HEAD)
    at_once, drop = 0, Shares.drop

    def drop_and_fill(*args: Any) -> None:
        nonlocal at_once
        drop(*args)
        at_once += fill()

    with monkeypatch.context() as patch:
        patch.setattr(Shares, "drop", drop_and_fill)
        ring = rings.adopt(table, bells.peer, *copies(fd, doorbell), lambda error: None)
    assert at_once > 100 and not ring.corrupt
    rings.take_in()
    assert ring.taken == at_once and ring.pending_bytes == 0
    producer.close()
    for one in (fd, doorbell):
        os.close(one)
