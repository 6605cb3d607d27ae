"""One data connection: each method with its errors, records, and errors that end the stream."""

import errno
import os
from typing import Any

import pytest

from tests.daemon.connections.program import (
    JOURNAL,
    NO_STORE,
    PLAIN,
    ROOT,
    Client,
    FakeRingServices,
    enabler,
)
from tests.daemon.intake.producing import Producer
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT
from utracefsd.events.event_table import EventTable
from utracefsd.intake.rings import KnownRing, Rings
from utracefsd.machine.peer import Peer

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


def test_an_empty_ring_is_not_searched(table: EventTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may sync a thousand times in a packet, and there may be a thousand rings."""
    rings = Rings(2, FakeRingServices(shares=table.shares), NO_STORE, JOURNAL)
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
    """Records in the ring have reached no consumer before that; nor do they if the daemon ends before."""
    services = FakeRingServices(is_running=lambda pid, start: True)
    rings = Rings(1, services, NO_STORE, JOURNAL, known={(0, 0): KnownRing(4711, 1, 0, [])})
    flushed: list[int] = []
    ends: list[int] = []
    client = Client(
        table,
        ROOT,
        rings=rings,
        hand_over=lambda: flushed.append(1),
        time_of_records=lambda: 0 if ends or not rings.gathering else None,
    )
    client.reg("test u32 a")
    client.hand_over_ring()
    assert client.call("sync") is None, "nothing is in the ring"
    flushed.clear()
    [ring] = rings.intake.rings
    producer = Producer(ring)
    producer.emit(0, bytes(4), 1)
    ends.append(1)
    assert client.send(client.request("sync")) == []
    ends.clear()
    sent = client.request("sync") + client.request("DIAG_IOCQLOCOFFSET")
    turns = client.connection.receive(sent, [], 0)
    assert [next(turns) for _ in range(9)] == [None] * 9
    assert client.connection.is_blocked
    assert (ring.taken, flushed) == (0, [])
    rings.stop_waiting()
    assert not client.connection.is_blocked
    assert [(one.error, one.result) for one in client.take(turns)] == [(None, None), (None, 8)]
    assert ring.taken == 1
    assert flushed
    producer.close()
    client.connection.close(0)
    for fd in client.fds:
        os.close(fd)
    rings.close()


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
