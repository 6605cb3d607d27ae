"""One data connection: each method with its errors, records, and errors that end the stream."""

import errno
import gc
import os
import struct
from typing import Any

import msgpack
import pytest

from tests.daemon.connections.program import (
    NO_STORE,
    PLAIN,
    ROOT,
    Client,
    FakeRingServices,
    enabler,
)
from tests.daemon.intake.producing import Producer
from tests.daemon.record_path import Collecting
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT
from utracefsd.connections import data_connection
from utracefsd.events.event import CommandString
from utracefsd.events.event_table import EventTable
from utracefsd.intake.rings import KnownRing, Rings
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource

pytestmark = pytest.mark.usefixtures("no_descriptor_is_leaked")


# DIAG_IOCSREG


def test_register(client: Client, table: EventTable) -> None:
    assert client.reg("test u32 a") == {"status_index": 1, "write_index": 0, "id": 20, "size": 4}
    assert client.reg(b"other") == {"status_index": 2, "write_index": 1, "id": 21, "size": 0}
    assert client.reg("test u32 a;") == {"status_index": 1, "write_index": 0, "id": 20, "size": 4}
    assert table.get(b"user_events", b"test").references == 1  # type: ignore[union-attr]
    assert client.connection.index_table.event_ids() == [20, 21]


@pytest.mark.parametrize("flags", [0, REG_MULTI_FORMAT])
@pytest.mark.parametrize("args", ["u32 ", "u32 a;; u32 b", ";", "struct foo a +8", "__rel_loc char[] "])
def test_what_its_own_command_does_not_find(client: Client, table: EventTable, args: str, flags: int) -> None:
    """The kernel's comparison of texts; a program that had it before finds it by its id, if it is the same
    event."""
    first = client.reg(f"test {args}", flags=flags)
    assert first["event_id"] == first["id"]
    other = Client(table)
    if not flags:
        assert other.reg_fails({"name_args": f"test {args}"}) == "EADDRINUSE"
    assert other.reg(f"test {args}", flags=flags, event_id=first["id"]) == first
    assert client.reg(f"other {args}", flags=flags, event_id=first["id"])["id"] != first["id"]
    other.connection.close(0)


def test_names_are_bytes(client: Client, table: EventTable) -> None:
    client.reg(b"caf\xe9")
    client.reg("caf\udce9")  # how a client in Python might send the same
    client.reg("café")
    assert [event.name for event in table.events()] == [b"caf\xe9", "café".encode()]


@pytest.mark.parametrize(
    "params",
    [
        [None],
        [{"name_args": "t", "enable_fd": 0, "enable_size": 4}],  # no descriptor came
    ],
)
def test_params_of_the_wrong_shape(client: Client, table: EventTable, params: list[Any]) -> None:
    assert client.fails("DIAG_IOCSREG", *params) == "EINVAL"
    assert len(table) == 0
    client.reg("still_there")


def test_unknown_flags_of_a_registration(client: Client, table: EventTable) -> None:
    assert client.reg_fails({"name_args": "t", "flags": 4}) == "EINVAL"
    client.reg("t", flags=3)
    assert table.events()[0].tracepoint_name == b"t.0"
    assert table.events()[0].persistent


def test_the_string(table: EventTable, memory: int) -> None:
    plain = Client(table, PLAIN)
    assert plain.reg_fails({"name_args": "n" * 512}) == "EINVAL"
    assert plain.reg_fails({"name_args": "t:flag", "flags": 1}) == "EINVAL"
    assert plain.reg_fails({"name_args": "t", "flags": 1}) == "EPERM"
    plain.reg("t u32 a")
    assert plain.reg_fails({"name_args": "t bad"}) == "EADDRINUSE"
    assert plain.reg_fails({"name_args": "u bad"}) == "EINVAL"
    table.user_events_max = 1
    assert plain.reg_fails({"name_args": "u u32 a"}) == "EMFILE"
    # nothing of the failed ones is left
    assert len(plain.connection.index_table) == 1
    assert plain.reg_fails({"name_args": "u", **enabler()}, memory) == "EMFILE"
    assert len(table.enablers) == 0
    plain.connection.close(0)


def test_events_of_a_user_are_counted(table: EventTable) -> None:
    table.shares.most[Resource.EVENTS] = 2
    plain, root = Client(table, PLAIN), Client(table)
    plain.reg("a")
    plain.reg("b")
    assert plain.reg_fails({"name_args": "c"}) == "EMFILE"
    root.reg("c")
    assert plain.reg("c")["write_index"] == 2
    plain.connection.close(0)
    root.connection.close(0)


# DIAG_IOCSDEL, DIAG_IOCSUNREG, DIAG_IOCQLOCOFFSET, mmap_status


@pytest.mark.parametrize("peer", [ROOT, PLAIN])
def test_an_administrators_delete_first_takes_in_what_others_sent(table: EventTable, peer: Peer) -> None:
    """For others it deletes nothing, and must not delay what others sent."""
    a = Client(table)
    a.reg("kept", flags=1)
    b = Client(table, peer, take_in_all=lambda: a.connection.close(0))
    (response,) = b.send(b.request("DIAG_IOCSDEL", "kept"))
    assert (response.error and response.error[0]) == (None if peer is ROOT else errno.EBUSY)
    a.connection.close(0)
    b.connection.close(0)


def test_a_user_has_so_many_registrations(table: EventTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_connection, "REGISTRATIONS_AT_ONCE", 1)
    table.shares.most[Resource.REGISTRATIONS] = 3
    a, b = Client(table, PLAIN), Client(table, PLAIN)
    for name in ("x", "y"):
        a.reg(name)
    b.reg("x")
    assert b.reg_fails({"name_args": "new"}) == "EMFILE"
    assert table.named(b"new") == []
    a.connection.close(0)
    b.reg("new")
    b.connection.close(0)
    assert table.shares.total(Resource.REGISTRATIONS) == 0


def test_an_early_ring_waits_for_no_event_beyond_the_users_share(
    table: EventTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do other rings, after a restart."""
    monkeypatch.setattr(data_connection, "REGISTRATIONS_AT_ONCE", 1)
    table.shares.most[Resource.REGISTRATIONS] = 1
    fds = MadeRing.make(65536)
    memory = os.fstat(fds[0])
    known = {(memory.st_dev, memory.st_ino): KnownRing(PLAIN.pid, 0, PLAIN.share, [1, 2])}
    rings = Rings(2, FakeRingServices(shares=table.shares), NO_STORE, known=known)
    client = Client(table, PLAIN, rings=rings)
    client.hand_over_ring(*fds, early=1)
    [ring] = rings.intake.rings
    producer = Producer(ring)
    producer.emit(1, bytes(8), 1)
    client.reg("x")
    assert (rings.gathering, ring.pending_bytes > 0) == (True, True)
    assert client.reg_fails({"name_args": "y", "write_index": 1}) == "EMFILE"
    assert (rings.gathering, ring.pending_bytes) == (False, 0)
    producer.close()
    client.connection.close(0)
    gc.collect()
    rings.close()
    for fd in client.fds:
        os.close(fd)


def test_an_empty_ring_is_not_searched(table: EventTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may sync a thousand times in a packet, and there may be a thousand rings."""
    rings = Rings(2, FakeRingServices(shares=table.shares), NO_STORE)
    client = Client(table, rings=rings)
    client.hand_over_ring()
    taken: list[None] = []
    monkeypatch.setattr(rings, "take_in", lambda: taken.append(None))
    client.call("sync")
    assert taken == []
    [ring] = rings.intake.rings
    producer = Producer(ring)
    producer.emit(0, bytes(8), 1)
    client.call("sync")
    assert taken == [None]
    producer.close()
    monkeypatch.undo()
    client.connection.close(0)
    rings.close()
    for fd in client.fds:
        os.close(fd)


def test_a_sync_waits_while_the_rings_of_another_daemon_may_still_come_back(
    table: EventTable,
) -> None:
    """Records in the ring have reached no consumer before that."""
    services = FakeRingServices(is_running=lambda pid, start: True)
    rings = Rings(1, services, NO_STORE, known={(0, 0): KnownRing(4711, 1, 0, [])})
    client = Client(table, ROOT, rings=rings, hand_over=lambda: flushed.append(1))
    flushed: list[int] = []
    client.reg("test u32 a")
    client.hand_over_ring()
    assert client.call("sync") is None, "nothing is in the ring"
    flushed.clear()
    [ring] = rings.intake.rings
    producer = Producer(ring)
    producer.emit(0, bytes(4), 1)
    assert client.send(client.request("sync") + client.request("sync")) == []
    assert client.connection.waiting
    assert client.take(client.connection.speak(0)) == []
    client.call("DIAG_IOCQLOCOFFSET")
    for _ in range(data_connection.MAX_WAITING_SYNCS - 2):
        client.send(client.request("sync"))
    assert client.fails("sync") == "EAGAIN"
    assert (ring.taken, flushed) == (0, [])
    rings.stop_waiting()
    responses = client.take(client.connection.speak(0))
    assert [response.error for response in responses] == [None] * data_connection.MAX_WAITING_SYNCS
    assert ring.taken == 1
    assert flushed
    assert not client.connection.waiting
    producer.close()
    client.connection.close(0)
    for fd in client.fds:
        os.close(fd)
    rings.close()
    del ring  # the frame stays with the exception of `fails`


class TestTimeOfRecords:
    """The data rings decide the time of records over the socket."""

    def test_records_and_all_behind_them_wait(self, table: EventTable) -> None:
        times: list[int | None] = [None]
        client = Client(table, time_of_records=lambda: times[0])
        event = table.register(CommandString.parse(b"waits u32 n"), 0, privileged=True)
        seen: list[Any] = []
        probe = Collecting("test", seen.extend)
        event.tracepoint.attach(probe)
        client.call("DIAG_IOCSREG", {"name_args": "waits u32 n"})
        record = msgpack.packb(struct.pack("<iI", 0, 7))
        turns = client.connection.receive(record + client.request("sync"), [], 0)
        assert [next(turns) for _ in range(3)] == [None] * 3
        assert client.connection.is_blocked
        assert (seen, event.tracepoint.emitted) == ([], 0)
        times[0] = 5_000
        assert not client.connection.is_blocked
        (answer,) = client.take(turns)
        probe.flush()
        assert (answer.error, [each[0] for each in seen]) == (None, [5_000])


def test_delete(client: Client, table: EventTable) -> None:
    client.reg("kept", flags=1)
    assert client.fails("DIAG_IOCSDEL", "kept") == "EBUSY"
    client.connection.close(0)
    again = Client(table)
    plain = Client(table, PLAIN)
    assert plain.fails("DIAG_IOCSDEL", "kept") == "EPERM"
    assert again.call("DIAG_IOCSDEL", b"kept") is None
    assert again.fails("DIAG_IOCSDEL", "kept") == "ENOENT"
    assert again.fails("DIAG_IOCSDEL", "n" * 512) == "EINVAL"
    for params in ([], [5], [None], ["a", "b"]):
        assert again.fails("DIAG_IOCSDEL", *params) == "EINVAL"
    again.connection.close(0)
    plain.connection.close(0)
