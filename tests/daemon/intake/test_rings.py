"""Data rings through a real daemon object and real sockets: made, used, adopted, corrupted, limited."""

from __future__ import annotations

import errno
import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from tests.daemon.connections.program import FakeRingServices
from tests.daemon.intake.producing import copies
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import DATA_RING_SIZE, MIN_DATA_RING
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._giving_back import GivingBack
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake.known_rings import KnownRing
from utracefsd.intake.rings import Rings
from utracefsd.machine import closing
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares
from utracefsd.server.serve import Serving, serve

SIZE = 64 << 10
COMMITTED = 1 << 31
DATA = 65536


class Producer:
    """A client written from docs/protocol.md: msgpack, struct, a socket."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(path))
        self.sock.setblocking(False)
        self.unpacker = msgpack.Unpacker()
        self.fds: list[int] = []
        self.msgid = 0
        self.memory: mmap.mmap | None = None

    async def call(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> Any:
        self.msgid += 1
        data = msgpack.packb([0, self.msgid, method, list(params)])
        socket.send_fds(self.sock, [data], fds)
        with trio.fail_after(60):
            while True:
                for message in self.unpacker:
                    if message[0] == 2:
                        return message
                    assert message[1] == self.msgid
                    return message[2] or message[3]
                await trio.lowlevel.wait_readable(self.sock)
                data, got, _, _ = socket.recv_fds(self.sock, 65536, 4)
                self.fds += got
                if not data:
                    return None
                self.unpacker.feed(data)

    async def map_ring(self, size: int = SIZE) -> None:
        answer = await self.call("mmap_ring", {"size": size})
        assert answer == {"size": size, "version": 2}
        self.memory = mmap.mmap(self.fds[0], os.fstat(self.fds[0]).st_size)

    def reserve(self, index: int, payload: bytes) -> int:
        """Like `emit` of a thread that was stopped just before its commit; returns the record's place."""
        assert self.memory is not None
        place: int = DATA + struct.unpack_from("<Q", self.memory, 64)[0] % SIZE
        self.emit(index, payload)
        struct.pack_into("<I", self.memory, place, len(payload))
        return place

    def emit(self, index: int, payload: bytes) -> None:
        assert self.memory is not None
        (head,) = struct.unpack_from("<Q", self.memory, 64)
        place = DATA + head % SIZE
        need = (24 + len(payload) + 7) // 8 * 8
        struct.pack_into(
            "<IIQIHH",
            self.memory,
            place,
            COMMITTED | len(payload),
            index,
            time.monotonic_ns(),
            os.getpid(),
            0,
            0,
        )
        self.memory[place + 24 : place + 24 + len(payload)] = payload
        struct.pack_into("<Q", self.memory, 64, head + need)
        if struct.unpack_from("<I", self.memory, 256)[0] == 1:
            struct.pack_into("<I", self.memory, 256, 0)
            os.eventfd_write(self.fds[1], 1)

    def close(self) -> None:
        self.sock.close()
        if self.memory is not None:
            self.memory.close()
        for fd in self.fds:
            os.close(fd)
        self.fds = []


@pytest.fixture
async def serving(tmp_path: Path, nursery: trio.Nursery) -> Serving:
    started = await nursery.start(serve, tmp_path / "utracefs")
    assert isinstance(started, Serving)
    return started


@pytest.fixture
def producer(serving: Serving) -> Iterator[Producer]:
    made = Producer(serving.runtime.data_socket)
    yield made
    made.close()


async def enabled(serving: Serving, producer: Producer, command: str = "ring u64 n") -> int:
    registered = await producer.call("DIAG_IOCSREG", {"name_args": command})
    name = command.split()[0]
    event = serving.daemon.table.get(b"user_events", name.encode())
    assert event is not None
    serving.daemon.instances.top.events.enable(event)
    return int(registered["write_index"])


def entries(serving: Serving) -> int:
    return serving.daemon.instances.top.buffer.entries()


async def until(condition: Any) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.001)


async def test_the_doorbell_wakes_the_daemon(serving: Serving, producer: Producer) -> None:
    index = await enabled(serving, producer)
    await producer.map_ring()
    for n in range(10):
        producer.emit(index, struct.pack("<Q", n))
    await until(lambda: entries(serving) == 10)
    # Asleep again it asks for the doorbell, and is woken a second time.
    assert producer.memory is not None
    await until(lambda: struct.unpack_from("<I", producer.memory, 256)[0] == 1)
    producer.emit(index, struct.pack("<Q", 11))
    await until(lambda: entries(serving) == 11)


async def test_sync_is_answered_after_what_was_committed(serving: Serving, producer: Producer) -> None:
    index = await enabled(serving, producer)
    await producer.map_ring()
    producer.emit(index, struct.pack("<Q", 1))
    assert await producer.call("sync") is None
    assert entries(serving) == 1


async def test_what_a_living_process_still_fills_is_left_to_it(serving: Serving, producer: Producer) -> None:
    """Its connection ended, and one of its threads has reserved and not committed. If that were cleared and
    stepped over, the commit would be in free space, and the next lap would take it for a record."""
    index = await enabled(serving, producer)
    await producer.map_ring()
    assert producer.memory is not None
    producer.emit(index, struct.pack("<Q", 0))
    place = producer.reserve(index, struct.pack("<Q", 1))
    producer.emit(index, struct.pack("<Q", 2))
    producer.sock.close()
    await until(lambda: len(serving.daemon.data) == 0)
    assert entries(serving) == 1
    await until(lambda: len(serving.daemon.rings or ()) == 0)
    assert producer.memory[place + 24 : place + 32] == struct.pack("<Q", 1)
    other = Producer(serving.runtime.data_socket)
    try:
        assert await enabled(serving, other) == index
        await other.call("adopt_ring", {}, fds=(producer.fds[0], producer.fds[1]))
        assert entries(serving) == 1
        struct.pack_into("<I", producer.memory, place, COMMITTED | 8)
        await other.call("sync")
        assert entries(serving) == 3
    finally:
        other.close()


async def test_a_record_that_is_being_written_when_the_connection_ends(
    serving: Serving, producer: Producer
) -> None:
    """The ring is read for a second more, as its program runs."""
    index = await enabled(serving, producer)
    await producer.map_ring()
    assert producer.memory is not None
    place = producer.reserve(index, struct.pack("<Q", 0))
    producer.emit(index, struct.pack("<Q", 1))
    producer.sock.close()
    await until(lambda: len(serving.daemon.data) == 0)
    assert (entries(serving), len(serving.daemon.rings)) == (0, 1)
    struct.pack_into("<I", producer.memory, place, COMMITTED | 8)
    await until(lambda: len(serving.daemon.rings or ()) == 0)
    assert entries(serving) == 2


async def test_a_ring_is_closed_before_it_is_let_go(serving: Serving, producer: Producer) -> None:
    """Nobody would read later reservations. Adopted, it is open again."""
    index = await enabled(serving, producer)
    await producer.map_ring()
    producer.emit(index, struct.pack("<Q", 0))
    memory = producer.memory
    assert memory is not None

    def head() -> int:
        return int.from_bytes(memory[64:72], "little")

    before = head()
    producer.sock.close()
    await until(lambda: len(serving.daemon.data) == 0)
    assert (head(), entries(serving)) == (before | 1 << 62, 1)
    other = Producer(serving.runtime.data_socket)
    try:
        assert await enabled(serving, other) == index
        await other.call("adopt_ring", {}, fds=(producer.fds[0], producer.fds[1]))
        assert head() == before
    finally:
        other.close()


async def test_a_ring_is_adopted(serving: Serving, producer: Producer) -> None:
    index = await enabled(serving, producer)
    await producer.map_ring()
    producer.emit(index, struct.pack("<Q", 1))
    await producer.call("sync")
    other = Producer(serving.runtime.data_socket)
    try:
        assert await enabled(serving, other) == index
        producer.sock.close()
        await until(lambda: len(serving.daemon.data) == 1)
        producer.emit(index, struct.pack("<Q", 2))
        answer = await other.call("adopt_ring", {}, fds=(producer.fds[0], producer.fds[1]))
        assert answer == {"size": SIZE, "version": 2}
        assert entries(serving) == 2
        producer.emit(index, struct.pack("<Q", 3))
        await until(lambda: entries(serving) == 3)
        assert (await other.call("adopt_ring", {}, fds=(producer.fds[0], producer.fds[1])))[0] == errno.EEXIST
    finally:
        other.close()


@pytest.mark.parametrize(
    ("params", "number"),
    [
        ([{"size": 100_000}], errno.EINVAL),
        ([{"size": "x"}], errno.EINVAL),
        ([7], errno.EINVAL),
        ([], errno.EINVAL),
    ],
)
async def test_what_cannot_be_asked_for(producer: Producer, params: list[Any], number: int) -> None:
    assert (await producer.call("mmap_ring", *params))[0] == number


async def test_descriptors_that_are_no_ring(serving: Serving, producer: Producer) -> None:
    null = os.open("/dev/null", os.O_RDWR)
    try:
        assert (await producer.call("adopt_ring", {}, fds=(null, null)))[0] == errno.EINVAL
        assert (await producer.call("adopt_ring", {}, fds=(null,)))[0] == errno.EINVAL
        assert (await producer.call("adopt_ring", {}))[0] == errno.EINVAL
    finally:
        os.close(null)
    await producer.map_ring()


async def test_the_descriptors_are_not_leaked(serving: Serving, producer: Producer) -> None:
    await producer.call("sync")  # accepted: its descriptors are there
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        one = Producer(serving.runtime.data_socket)
        await one.map_ring()
        one.close()
    await until(lambda: len(serving.daemon.data) == 1 or len(serving.daemon.data) == 0)
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


# ---- how large a ring is


def test_256_processes_of_a_user_have_the_default_ring(bells: Bells) -> None:
    bells.peer = Peer(pid=os.getpid(), uid=12345, gid=12345, privileged=False)
    for _ in range(256):
        ring = bells.rings.create(IndexTable(), bells.peer, DATA_RING_SIZE, lambda error: None)
        assert ring.size == 16 << 20
    with pytest.raises(TraceError, match="count as 262144 KiB; 262144 KiB are the limit") as caught:
        bells.rings.create(IndexTable(), bells.peer, MIN_DATA_RING, lambda error: None)
    assert caught.value.errno == errno.ENOMEM


@pytest.mark.parametrize("size", [(1 << 20) + 1, 3 << 20, 128 << 20])
@pytest.mark.parametrize("privileged", [True, False])
def test_sizes_that_no_ring_has(bells: Bells, size: int, privileged: bool) -> None:
    bells.peer = Peer(pid=os.getpid(), uid=12345, gid=12345, privileged=privileged)
    with pytest.raises(TraceError) as caught:
        bells.rings.create(IndexTable(), bells.peer, size, lambda error: None)
    assert caught.value.errno == errno.EINVAL


# ---- times that records may have


def test_a_counter_that_jumps_is_believed_while_the_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    trusted = True
    monkeypatch.setattr("utracefsd.machine.procfs.tsc_is_trusted", lambda: trusted)
    rings = Rings(2, FakeRingServices())
    peer = Peer(pid=os.getpid(), uid=os.getuid(), gid=os.getgid(), privileged=True)
    ring = rings.create(IndexTable(), peer, SIZE, lambda error: None)
    with mmap.mmap(ring.fd, 4096) as memory:

        def allowed() -> int:
            return int(struct.unpack_from("<I", memory, 260)[0])

        for expected in (1, 0, 0):
            rings._intake.clock_jumped = True
            rings.take_in()
            assert allowed() == expected
            trusted = not trusted
        other = rings.create(IndexTable(), peer, SIZE, lambda error: None)
        with mmap.mmap(other.fd, 4096) as later:
            assert struct.unpack_from("<I", later, 260) == (0,), "once distrusted it stays so"
    rings.close()


# ---- doorbells, which the other side owns as well


class Bells:
    """Rings without a daemon, and whether the edge would wake."""

    def __init__(self) -> None:
        self.rings = Rings(2, FakeRingServices())
        self.peer = Peer.from_credentials(os.getpid(), os.getuid(), os.getgid(), owner_uid=os.getuid())

    def woken(self) -> bool:
        return bool(select.select([self.rings.fileno()], [], [], 0)[0])

    def adopt(self, doorbell: int) -> DataRing:
        made = DataRing.create(IndexTable(), os.getpid(), SIZE)
        return self.rings.adopt(IndexTable(), self.peer, *copies(made.fd, doorbell), lambda error: None)


@pytest.fixture
def bells() -> Iterator[Bells]:
    made = Bells()
    yield made
    made.rings.close()


def test_a_doorbell_is_neither_read_nor_written(bells: Bells) -> None:
    """A read may block: O_NONBLOCK belongs to the open file, and the producer has that, too."""
    ring = bells.rings.create(IndexTable(), bells.peer, SIZE, lambda error: None)
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
    rings = [bells.rings.create(IndexTable(), bells.peer, SIZE, lambda error: None) for _ in range(20)]
    looked_at: list[int] = []
    fstat = os.fstat

    def counting(fd: int) -> os.stat_result:
        looked_at.append(fd)
        return fstat(fd)

    doorbell = os.eventfd(0)
    monkeypatch.setattr(os, "fstat", counting)
    adopted = bells.adopt(doorbell)
    assert not set(looked_at) & {ring.fd for ring in rings}
    with pytest.raises(TraceError) as caught:
        bells.rings.adopt(IndexTable(), bells.peer, *copies(adopted.fd, doorbell), lambda error: None)
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
    rings = Rings(2, FakeRingServices())
    users = [Peer(pid=os.getpid(), uid=uid, gid=uid, privileged=False) for uid in (1000, 1000, 1001)]
    one, two, other = [rings.create(IndexTable(), peer, SIZE, lambda error: None) for peer in users]
    assert one.writers.lookups is two.writers.lookups is not other.writers.lookups
    rings.close()


async def test_only_rings_that_were_taken_in_from_are_searched_for_writers(
    serving: Serving, producer: Producer
) -> None:
    """This is called after each step, and a thousand rings may know 64 threads each."""
    rings = serving.daemon.rings
    index = await enabled(serving, producer)
    await producer.map_ring()
    for n in range(2):
        producer.emit(index, struct.pack("<Q", n))
        await producer.call("sync")
        assert list(rings.writers()) == [(os.getpid(), os.getpid())]
        assert list(rings.writers()) == []


@pytest.mark.parametrize("ends", [False, True])
async def test_the_writer_is_known_when_a_record_was_taken_in(
    serving: Serving, producer: Producer, ends: bool
) -> None:
    """A busy daemon finds the records and the end of their program in one step, and calls it in that, too."""
    daemon = serving.daemon
    daemon.comms.want_tgids(daemon, True)
    index = await enabled(serving, producer)
    await producer.map_ring()
    producer.emit(index, struct.pack("<Q", 1))
    if ends:
        producer.close()
    daemon.take_in_all()
    assert daemon.comms.saved_tgids_text() == b"%d %d\n" % (os.getpid(), os.getpid())


def test_memory_that_is_given_back_while_the_ring_is_adopted_is_not_used_before() -> None:
    """A thread that gets no cpu may punch it later, with what the producer wrote there."""
    services = FakeRingServices(acquire_events=lambda ids: IndexTable(), is_running=lambda pid, start: True)
    rings = Rings(2, services, known={(0, 0): KnownRing(4711, 1, 0, [])})
    peer = Peer(pid=os.getpid(), uid=1000, gid=1000, privileged=False)
    ring = rings.create(IndexTable(), peer, SIZE, lambda error: None)
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
    rings = Rings(2, services, known={(0, 0): KnownRing(4711, 1, 0, [])})
    first, second = [Peer(pid=os.getpid(), uid=uid, gid=uid, privileged=False) for uid in (1000, 1001)]
    other = rings.create(IndexTable(), second, SIZE, lambda error: None)
    ring = rings.create(IndexTable(), first, SIZE, lambda error: None)
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
