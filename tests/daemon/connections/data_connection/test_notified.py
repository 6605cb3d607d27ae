"""Enablers with tokens and connections on behalf of another process: each message and each refusal, without a
socket."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import attrs
import pytest

from tests.daemon.connections.program import (
    JOURNAL,
    NO_STORE,
    PLAIN,
    ROOT,
    Client,
    FakeRingServices,
    enabler,
    record,
    word,
)
from tests.daemon.record_path import Collecting
from utracefs_protocol.connection import Notification, encode_notification
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages import data as messages
from utracefsd.connections.data_connection import DataConnection
from utracefsd.events.event_table import EventTable
from utracefsd.intake.rings import Rings
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource

pytestmark = pytest.mark.usefixtures("no_descriptor_is_leaked")

TARGET = Peer(300, 1000, 1000, privileged=False, start_time=77)
PROCESS = {"pid": 300, "start_time": 77, "uid": 1000, "gid": 1000}


class Notified(Client):
    """A program that is notified of its tokens."""

    def __init__(self, table: EventTable, peer: Peer = ROOT, **options: Any) -> None:
        super().__init__(table, peer, **options)
        self.call("notify_enablers", {})

    def token(self, name_args: str, token: int, **members: Any) -> dict[str, int]:
        return self.reg(name_args, enable_token=token, **members)

    def hear(self) -> list[Notification]:
        """Its messages without a request."""
        before = len(self.notifications)
        self.take(self.connection.speak(self.now_ns))
        return self.notifications[before:]

    def written(self, *params: Any) -> None:
        assert self.send(encode_notification("enablers_written", list(params))) == []


@pytest.fixture
def notified(table: EventTable) -> Iterator[Notified]:
    notified = Notified(table)
    yield notified
    notified.connection.close(0)


def attach(table: EventTable, name: bytes) -> Collecting:
    event = table.get(b"user_events", name)
    assert event is not None
    probe = Collecting("test", lambda batch: None)
    table.attach(event, probe)
    return probe


def test_what_a_registration_says_of_payloads(client: Client) -> None:
    assert client.reg("none")["size"] == 0
    registered = client.reg("locs u16 a; __rel_loc char[] s; __data_loc u8[] d; __data_loc char[] t; u64 b")
    assert registered["size"] == 22
    assert registered["locs"] == [[2, 3], [6, 0], [10, 2]]  # type: ignore[comparison-overlap]
    assert "locs" not in client.reg("plain u32 a")


def test_a_token_is_an_enabler_and_nothing_else(notified: Notified, table: EventTable) -> None:
    assert notified.token("test u32 a", 5) == {"status_index": 1, "id": 20, "enabled": 0}
    event = table.get(b"user_events", b"test")
    assert event is not None
    assert event.references == 1
    notified.send(record(0, bytes(4)))
    assert notified.notifications[-1].params[0] == errno.ENOENT
    assert notified.reg("test u32 a")["write_index"] == 0
    assert event.references == 2
    assert notified.token("test u32 a", 6)["id"] == 20
    assert event.references == 3
    assert notified.call("DIAG_IOCSUNREG", {"disable_token": 5}) is None
    assert event.references == 2
    assert notified.fails("DIAG_IOCSUNREG", {"disable_token": 5}) == "ENOENT"
    notified.connection.close(0)
    assert event.references == 0
    assert table.shares.total(Resource.ENABLERS) == 0


def test_a_token_of_an_event_that_is_on(notified: Notified, table: EventTable) -> None:
    notified.reg("test u32 a")
    attach(table, b"test")
    assert notified.token("test u32 a", 5)["enabled"] == 1


def test_once_on_a_connection(notified: Notified) -> None:
    assert notified.fails("notify_enablers", {}) == "EEXIST"
    assert notified.fails("notify_enablers") == "EINVAL"


# Every row has the faults of the rows below it, too.
FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"size": 4097}, "E2BIG"),
    ({"flags": 4}, "EINVAL"),
    ({"enable_token": -1}, "EINVAL"),
    ({"enable_token": 1 << 63}, "EINVAL"),
    ({"enable_fd": 1}, "EINVAL"),
    ({"enable_token": 3}, "EADDRINUSE"),
    ({"name_args": "x" * 512}, "EINVAL"),
    ({"flags": 1}, "EPERM"),
    ({"name_args": "test u64 a"}, "EADDRINUSE"),
    ({"name_args": "fresh nonsense a"}, "EINVAL"),
]


@pytest.mark.parametrize("fault", range(len(FAULTS)))
def test_order_of_checks(table: EventTable, fault: int) -> None:
    notified = Notified(table, PLAIN)
    notified.token("test u32 a", 3)
    reg: dict[str, Any] = {"name_args": "test u32 a", "enable_token": 4}
    for members, _ in reversed(FAULTS[fault:]):
        reg |= members
    if FAULTS[fault][1] == "EADDRINUSE" and "enable_token" not in FAULTS[fault][0]:
        reg["enable_token"] = 4
    assert notified.reg_fails(reg) == FAULTS[fault][1]
    assert len(table) == 1
    notified.connection.close(0)


@pytest.mark.parametrize("params", [[], [1, 2], ["1"], [None], [-1], [0], [2], [1 << 63], [[1]], [True]])
def test_an_answer_that_is_none(notified: Notified, table: EventTable, params: list[Any]) -> None:
    notified.token("test", 1)
    attach(table, b"test")
    notified.hear()
    notified.written(*params)
    assert notified.dead() in ("EPROTO", "EINVAL")


def test_a_user_has_so_many(table: EventTable) -> None:
    table.shares.most[Resource.ENABLERS] = 2
    notified = Notified(table, PLAIN)
    notified.token("test", 0)
    notified.token("test", 1)
    assert notified.reg_fails({"name_args": "fresh", "enable_token": 2}) == "ENOMEM"
    assert table.get(b"user_events", b"fresh") is None, "nothing is left of what was refused"
    notified.connection.close(0)


def test_a_refusal_is_forgotten_when_a_token_is_registered(table: EventTable) -> None:
    table.shares.most[Resource.ENABLERS] = 0
    notified = Notified(table, PLAIN)
    assert notified.reg_fails({"name_args": "test", "enable_token": 0}) == "ENOMEM"
    assert b"test" in table.refused
    table.shares.most[Resource.ENABLERS] = 1
    notified.token("test", 0)
    assert not table.refused
    notified.connection.close(0)


# On behalf


class OnBehalf(Client):
    """A connection whose port lets it represent TARGET."""

    def __init__(self, table: EventTable, peer: Peer = ROOT, *, found: Peer = TARGET, **options: Any) -> None:
        self.asked: list[messages.OpenFor] = []
        self.refusal: TraceError | None = None
        self.found = found
        self.wrote: list[tuple[int, int]] = []
        self.process_of = {301: 300, 400: 399}
        self.cpu_of = {301: 5, 400: 6}
        super().__init__(
            table,
            peer,
            open_for=self._open_for,
            wrote=lambda tid, pid: self.wrote.append((tid, pid)),
            meet=self._meet,
            **options,
        )

    def _open_for(self, connection: DataConnection, process: messages.OpenFor) -> Peer:
        assert connection is self.connection
        self.asked.append(process)
        if self.refusal is not None:
            raise self.refusal
        return self.found

    def _meet(self, tid: int) -> tuple[int | None, int | None]:
        return self.process_of.get(tid), self.cpu_of.get(tid)


def test_the_writing_thread(table: EventTable) -> None:
    client = OnBehalf(table)
    client.call("open_for", PROCESS)
    client.reg("test u32 a")
    seen: list[tuple[int, int]] = []
    probe = Collecting("test", lambda batch: seen.extend((record[2], record[1]) for record in batch))
    table.attach(table.events()[0], probe)
    for tid in (301, 400, 5, 301):
        assert client.call("write", bytes(4) + struct.pack("<I", tid), tid) == 8
    client.call("write", bytes(8))
    probe.flush()
    assert [pid for pid, _ in seen] == [301, 400, 5, 301, 300]
    assert [seen[i][1] for i in (0, 1, 3)] == [5, 6, 5], "where it sleeps, not where the daemon runs"
    # The second is of a child that inherited the file, the third is hidden from us.
    assert client.wrote == [(301, 300), (400, 399), (5, 300), (301, 300), (300, 300)]
    assert client.fails("write", bytes(8), 0) == "EINVAL"
    assert client.fails("write", struct.pack("<i", 9), 301) == "ENOENT"
    client.connection.close(0)


def test_only_root_and_the_daemons_user(table: EventTable) -> None:
    client = OnBehalf(table, PLAIN)
    assert client.fails("open_for", PROCESS) == "EPERM"
    assert client.asked == []
    client.reg("test")
    attach(table, b"test")
    assert client.fails("write", bytes(4), 5) == "EPERM"
    client.connection.close(0)


def test_first_or_never(table: EventTable) -> None:
    with closing(Rings(1, FakeRingServices(), NO_STORE, JOURNAL)) as rings:
        firsts: list[Callable[[Client], object]] = [
            lambda one: one.reg("test"),
            lambda one: one.hand_over_ring(),
            lambda one: one.call("notify_enablers", {}),
            lambda one: one.call("open_for", PROCESS),
        ]
        for first in firsts:
            client = OnBehalf(table, found=attrs.evolve(TARGET, privileged=True), rings=rings)
            first(client)
            assert client.fails("open_for", PROCESS) == "EBUSY"
            client.connection.close(0)
            for fd in client.fds:
                os.close(fd)


def test_no_data_ring(table: EventTable) -> None:
    with closing(Rings(1, FakeRingServices(), NO_STORE, JOURNAL)) as rings:
        client = OnBehalf(table, rings=rings)
        client.call("open_for", PROCESS)
        assert client.fails("adopt_ring", {}) == "EPERM"
        own = Client(table, rings=rings)
        own.hand_over_ring()
        assert own.fails("adopt_ring", {}, fds=(own.fds[0], own.fds[1])) == "EEXIST"
        for one in (client, own):
            one.connection.close(0)
        for fd in own.fds:
            os.close(fd)


def test_everything_is_that_process(table: EventTable, memory: int) -> None:
    client = OnBehalf(table)
    assert client.call("open_for", PROCESS) is None
    assert client.asked == [messages.OpenFor(300, 77, 1000, 1000)]
    assert client.connection.peer is TARGET
    assert client.reg_fails({"name_args": "kept", "flags": 1}) == "EPERM"
    client.reg("test u32 a", memory, **enabler(0, 1))
    assert table.shares.held(Resource.EVENTS, 1000) == table.shares.held(Resource.ENABLERS, 1000) == 1
    assert table.shares.held(Resource.EVENTS, 0) == 0
    attach(table, b"test")
    client.send(record(0, bytes(4)))
    assert client.wrote == [(300, 300)]
    assert word(memory) == 2
    other = Client(table, attrs.evolve(TARGET, start_time=99))
    client.connection.close(0)
    assert word(memory) == 0, "a later process of this pid does not hold its words"
    other.connection.close(0)
    assert table.shares.total(Resource.ENABLERS) == 0
