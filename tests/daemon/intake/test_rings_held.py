"""Resources of rings, in any order of events: descriptors, shares, references on events.

Garbage collection is off: an idle daemon runs none, so a descriptor in a cycle stays open forever.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections import Counter
from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.connections.program import NO_STORE, FakeRingServices
from tests.daemon.intake.producing import COMMITTED, DATA, HEAD, adopt_new, copies, new_ring
from tests.daemon.record_path import tracepoint
from utracefs_protocol.errors import TraceError
from utracefs_protocol.pages.status_page import StatusBit
from utracefsd.events._tracepoint import Probe
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake.rings import Key, KnownRing, Rings, name_of
from utracefsd.machine import closing
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

SIZE = 64 << 10
USERS = (1000, 1001)
PLACES = 4
"""In the store."""


def peer_of(uid: int) -> Peer:
    return Peer(pid=os.getpid(), uid=uid, gid=uid, privileged=False, start_time=1, share=uid)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


pytestmark = pytest.mark.usefixtures("no_collection")


class Store:
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.limit = PLACES

    def keep(self, name: str, fd: int) -> bool:
        self.names.add(name)
        return True

    def drop(self, name: str) -> None:
        self.names.discard(name)


@attrs.define(eq=False)
class Held:
    """A ring as its program sees it: descriptors of its own."""

    fds: tuple[int, int]
    key: Key
    size: int
    uid: int | None
    """The program that has it in a connection or had it last; None: none yet."""
    ring: DataRing | None = None
    """While a connection has it."""
    orphan: int = 0
    """Descriptors of the daemon that it has without one."""
    corrupt: bool = False
    unfinished: int = 0
    """Position, plus one, of a record that a thread is writing."""
    looks: int = 20
    """How often `end_orphans` still waits for it, without a connection."""


class Model:
    """Some rings of the previous daemon, of which some come from the store, and random events."""

    def __init__(self, before: int, stored: int) -> None:
        self.references: Counter[int] = Counter()
        self.shares = Shares(limits={Resource.RING_BYTES: 3 * SIZE}, in_all={Resource.STORED_RINGS: PLACES})
        self.store = Store()
        self.base = open_descriptors()
        self.tracepoint = tracepoint(b"seen u64 n", 20)
        self.tracepoint.attach(Probe("test", StatusBit.OTHER))
        self.all: list[Held] = []
        known = {}
        for n in range(before):
            held = self.forge()
            known[held.key] = KnownRing(os.getpid(), 1, USERS[n % 2], [20])
            if n < stored:
                self.store.names.add(name_of(held.key))
            held.uid, held.orphan = USERS[n % 2], int(n < stored)
        self.awaited = {held.key for held in self.all if not held.orphan}
        self.services = FakeRingServices(
            shares=self.shares,
            is_running=lambda pid, start_time: True,
            acquire_events=self.hold,
            release_events=self.references.subtract,
        )
        self.rings = Rings(
            2,
            self.services,
            known=known,
            store=self.store,
            stored=[os.dup(held.fds[0]) for held in self.all[:stored]],
        )

    def hold(self, event_ids: Sequence[int]) -> IndexTable:
        self.references.update(event_ids)
        return self.table(len(event_ids))

    def table(self, events: int = 1) -> IndexTable:
        table = IndexTable()
        for _ in range(events):
            table.append(self.tracepoint)
        return table

    def forge(self) -> Held:
        made = new_ring(IndexTable())
        held = Held((os.dup(made.fd), os.dup(made.doorbell)), made.key, SIZE, None)
        self.all.append(held)
        return held

    # Events; n selects the ring

    def connected(self) -> list[Held]:
        return [held for held in self.all if held.ring is not None]

    def create(self, n: int) -> None:
        self.forge()
        self.adopt(len(self.all) - 1 + 7 * len(self.all) * n)

    def adopt(self, n: int) -> None:
        held, uid = self.all[n % len(self.all)] if self.all else self.forge(), USERS[n // 7 % 2]
        with contextlib.suppress(TraceError):
            ring = self.rings.adopt(self.table(), peer_of(uid), *copies(*held.fds), lambda error: None)
            assert held.ring is None
            held.ring, held.uid, held.orphan = ring, uid, 0
            self.awaited.discard(held.key)

    def adopt_forged(self, n: int) -> None:
        self.forge()
        self.adopt(7 * n + len(self.all) - 1 if len(self.all) == 1 else len(self.all) - 1)

    def adopt_nonsense(self, n: int) -> None:
        pipe = os.pipe()
        with pytest.raises(TraceError):
            self.rings.adopt(self.table(), peer_of(USERS[n % 2]), *pipe, lambda error: None)

    def adopt_without_room(self, n: int) -> None:
        """The kernel has no memory for one more watch."""
        held = self.forge()
        real, self.rings._epoll = self.rings._epoll, Full()  # type: ignore[assignment]
        try:
            for one in (held, self.all[n % len(self.all)]):
                with contextlib.suppress(TraceError):
                    self.rings.adopt(
                        self.table(), peer_of(USERS[n % 2]), *copies(*one.fds), lambda error: None
                    )
                    raise AssertionError("adopted")
            with contextlib.suppress(TraceError):
                adopt_new(self.rings, self.table(), peer_of(USERS[n % 2]), SIZE, lambda error: None)
                raise AssertionError("created")
        finally:
            self.rings._epoll = real

    def end(self, n: int) -> None:
        if connected := self.connected():
            self.end_one(connected[n % len(connected)])

    def end_one(self, held: Held) -> None:
        assert held.ring is not None
        gathering = self.rings.gathering
        self.rings.drop(held.ring)
        held.ring = None
        held.orphan = 2 if gathering or (held.unfinished and not held.corrupt) else 0
        held.looks = 20

    def reserve(self, n: int) -> None:
        if connected := [held for held in self.connected() if not held.unfinished and not held.corrupt]:
            held = connected[n % len(connected)]
            (head,) = struct.unpack("<Q", os.pread(held.fds[0], 8, HEAD))
            held.unfinished = head + 1
            os.pwrite(held.fds[0], struct.pack("<IIQIHHQ", 8, 0, 1, 0, 0, 0, n), DATA + head % SIZE)
            os.pwrite(held.fds[0], struct.pack("<Q", head + 32), HEAD)

    def commit(self, n: int) -> None:
        if unfinished := [held for held in self.all if held.unfinished]:
            held = unfinished[n % len(unfinished)]
            place = DATA + (held.unfinished - 1) % SIZE
            os.pwrite(held.fds[0], struct.pack("<I", COMMITTED | 8), place)
            held.unfinished = 0

    def corrupt(self, n: int) -> None:
        if self.all:
            held = self.all[n % len(self.all)]
            held.corrupt = True
            os.pwrite(held.fds[0], struct.pack("<Q", 1 << 50), HEAD)

    def round(self, n: int) -> None:
        self.rings.round()
        if not self.rings.gathering:
            for held in self.all:
                if held.corrupt and held.orphan:
                    held.orphan = 0

    def end_orphans(self, n: int) -> None:
        self.rings.end_orphans(all_of_them=n % 2 == 0)
        if not self.rings.gathering:
            for held in self.all:
                # Connections of some have ended; those of the store may be asked for again.
                if held.orphan == 2 or (n % 2 == 0 and held.orphan):
                    if held.looks and held.unfinished and not held.corrupt:
                        held.looks -= 1
                    else:
                        held.orphan = 0
            if any(held.corrupt and held.orphan for held in self.all):
                self.round(n)

    def stop_waiting(self, n: int) -> None:
        self.rings.stop_waiting()
        self.awaited.clear()

    # Invariants

    def check(self) -> None:
        self.rings.take_in()
        deadline = time.monotonic() + 60
        while closing.waiting():
            assert time.monotonic() < deadline
        there = [held for held in self.all if held.ring is not None or held.orphan]
        assert len(self.rings) == len(there)
        assert self.rings.gathering == bool(self.awaited)
        descriptors = sum(2 if held.ring is not None else held.orphan for held in there)
        own = 2 * len(self.all) + 2  # our duplicates; epoll and bell
        assert open_descriptors() == self.base + own + descriptors
        for uid in USERS:
            mine = [held for held in there if held.uid == uid]
            assert self.shares.held(Resource.RING_BYTES, uid) == SIZE * len(mine)
            assert self.shares.held(Resource.DESCRIPTORS, uid) == 2 * len(mine)
        orphans = sum(1 for held in there if held.ring is None)
        assert self.references.total() == orphans
        assert self.store.names <= {name_of(held.key) for held in there}
        assert len(self.store.names) == self.shares.total(Resource.STORED_RINGS) <= PLACES
        assert self.rings.nr_unstored == len(there) - len(self.store.names)
        assert bool(self.store.names) == bool(there)

    def finish(self) -> None:
        """All programs leave."""
        for held in self.connected():
            self.end_one(held)
        self.stop_waiting(0)
        for _ in range(21):
            self.end_orphans(0)
        self.check()
        assert len(self.rings) == 0
        assert all(not self.shares.total(resource) for resource in Resource)
        assert not self.store.names


class Full:
    """An epoll instance without memory."""

    def register(self, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


STEPS = (
    "create",
    "adopt",
    "adopt",
    "adopt_forged",
    "adopt_nonsense",
    "adopt_without_room",
    "end",
    "end",
    "reserve",
    "reserve",
    "commit",
    "corrupt",
    "round",
    "end_orphans",
    "stop_waiting",
)


def test_places_in_the_store_are_shared_out() -> None:
    """One user takes half of them at most, and a ring without a place gets the next free one."""
    shares, store = Shares(in_all={Resource.STORED_RINGS: PLACES}), Store()
    rings = Rings(1, FakeRingServices(shares=shares), store)

    def create(uid: int, number: int) -> list[DataRing]:
        return [adopt_new(rings, IndexTable(), peer_of(uid), SIZE, lambda error: None) for _ in range(number)]

    def held() -> tuple[int, int]:
        return shares.held(Resource.STORED_RINGS, USERS[0]), shares.held(Resource.STORED_RINGS, USERS[1])

    hostile = create(USERS[0], 10)
    honest = create(USERS[1], 2)
    assert held() == (2, 1)
    assert rings.nr_unstored == 9
    rings.drop(honest[0])
    assert held() == (2, 1)
    assert name_of(honest[1].key) in store.names
    for ring in hostile[1:]:
        rings.drop(ring)
    assert held() == (1, 1)
    for ring in (hostile[0], honest[1]):
        rings.drop(ring)
    assert not store.names
    rings.close()


def test_a_ring_that_does_not_come_back_is_reported() -> None:
    """Until it comes back after all."""
    forged = new_ring(IndexTable(), pid=7)
    told: list[tuple[Sequence[int], int]] = []
    services = FakeRingServices(ring_gone=lambda ids, n: told.append((ids, n)))
    rings = Rings(1, services, NO_STORE, known={forged.key: KnownRing(7, 1, 1000, [20])})
    assert told == [([20], 1)]
    assert rings.nr_missing == 1
    rings.adopt(IndexTable(), peer_of(1000), *copies(forged.fd, forged.doorbell), lambda error: None)
    assert told[1:] == [([20], -1)]
    assert rings.nr_missing == 0
    rings.close()


@given(
    before=st.integers(0, 4),
    stored=st.integers(0, 4),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 30)), max_size=25),
)
def test_any_order(before: int, stored: int, steps: list[tuple[str, int]]) -> None:
    base = open_descriptors()
    model = Model(before, min(before, stored))
    try:
        model.check()
        for name, n in steps:
            getattr(model, name)(n)
            model.check()
        model.finish()
    finally:
        model.rings.close()
        for held in model.all:
            held.ring = None
            for fd in held.fds:
                os.close(fd)
    assert open_descriptors() == base


def test_a_ring_whose_connection_ends_after_a_restart_is_closed_when_it_is_empty() -> None:
    """It was in a reference cycle, so its descriptors were open until a garbage collection."""
    model = Model(1, 0)
    model.adopt_forged(0)
    model.end(0)
    before = open_descriptors()
    model.stop_waiting(0)
    model.end_orphans(1)
    assert open_descriptors() == before - 2
    model.rings.close()
    for held in model.all:
        for fd in held.fds:
            os.close(fd)


def test_rings_that_are_left_cost_no_look_into_proc_each_time() -> None:
    """One user can have two thousand of them."""
    model = Model(0, 0)
    asked: list[int] = []

    def is_running(pid: int, start_time: int) -> bool:
        asked.append(pid)
        return True

    vars(model.services).update(is_running=is_running)
    model.create(0)
    model.reserve(0)
    model.end(0)
    before = len(asked)
    for _ in range(19):
        model.end_orphans(1)
        model.check()
    assert (len(model.rings), len(asked)) == (1, before)
    model.commit(0)  # a ring is read before it is decided whether to wait for it
    model.end_orphans(1)
    assert len(model.rings) == 0
    model.finish()
    model.rings.close()
    for held in model.all:
        for fd in held.fds:
            os.close(fd)
