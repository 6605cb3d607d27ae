"""A port under attack: floods, memory, descriptors whose close hangs, unexpected exceptions."""

import errno
import functools
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest

from tests.daemon.connections.ports import Around, FakeConnection, error_in, read_all
from utracefs_protocol.connection import encode_request
from utracefsd.connections import port as port_module
from utracefsd.connections.accepted_connection import DATA, TRACEFS, Rules
from utracefsd.connections.acceptor import ACCEPT_PAUSE_NS, CLOSING_PART
from utracefsd.connections.fair_scheduler import HALF_LIFE_NS
from utracefsd.connections.port import (
    ACCEPT_NS,
    FEW,
    LOOK_NS,
    SMALL_PIECE_BYTES,
    TAKE_IN_NS,
)
from utracefsd.machine import closing
from utracefsd.machine.closing import MAX_WAITING
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import LIMITS, Resource, Shares


class TestFloods:
    """Waiting requests of hostile programs; counted in those carried out in one operation on the tree."""

    def many(self, around: Around, cost_ns: int, connections: int = 200, requests: int = 1000) -> list[int]:
        """Connections with so many requests each, of this cost; returns how many of each were carried out."""
        clients = [around.connect() for _ in range(connections)]
        while len(around.port) < connections:
            around.turn()
        done = [0] * connections

        def answer(n: int, data: bytes) -> Iterator[tuple[bytes, Sequence[int]] | None]:
            for _ in data:
                yield None
                around.now_ns += cost_ns
                done[n] += 1

        for n, made in enumerate(around.made[:connections]):
            made.answer = functools.partial(answer, n)
        for client in clients:
            client.sendall(bytes(requests))
        return done

    @pytest.mark.parametrize("cost_ns", [1_000, 27_000, 300_000])
    def test_an_operation_waits_for_requests_no_longer_than_it_should(
        self, around: Around, cost_ns: int
    ) -> None:
        self.many(around, cost_ns)
        before_ns = around.now_ns
        around.port.take_in_all()
        assert TAKE_IN_NS <= around.now_ns - before_ns <= TAKE_IN_NS + cost_ns

    @pytest.mark.parametrize("cost_ns", [27_000, 300_000, TAKE_IN_NS])
    def test_an_operation_waits_for_closed_connections_no_longer(self, around: Around, cost_ns: int) -> None:
        """Each has requests in progress."""
        self.many(around, cost_ns)
        around.turn()
        for client in around.clients:
            client.close()
        before_ns = around.now_ns
        around.port.take_in_ended()
        assert around.now_ns - before_ns <= max(TAKE_IN_NS + cost_ns, FEW * cost_ns)

    @pytest.mark.parametrize("ends", [False, True])
    def test_turns_are_bounded_in_time(self, around: Around, ends: bool) -> None:
        done = self.many(around, 27_000, 3)
        before_ns = around.now_ns
        around.turn()
        assert around.now_ns - before_ns <= 3 * (DATA.turn_ns + 27_000)
        assert min(done) > 0
        if ends:
            around.port.take_in_last()
        while around.port.has_more:
            assert not ends
            around.turn()
        assert done == [1000] * 3

    def test_an_ordinary_program_comes_first(self, around: Around) -> None:
        """It has used no time lately; flooding users have, and their new input came later."""
        program = around.connect()
        around.turn()
        around.now_ns += HALF_LIFE_NS
        flood = [around.connect() for _ in range(100)]
        around.turn()
        for made in around.made[1:]:
            made.answer = lambda data: self.endless(around)
        for client in flood:
            client.sendall(b"x")
        for _ in range(3):
            around.port.take_in_all()
        program.sendall(b"unregister")
        around.port.take_in_all()
        assert around.made[0].data == b"unregister"
        program.close()
        around.port.take_in_all()
        assert around.made[0].closed_ns

    def test_an_ordinary_program_comes_before_others_that_have_ended(self, around: Around) -> None:
        """A thousand connections of its user may hold requests for minutes."""
        self.many(around, 1_000_000, 5)
        for pid, accepted in enumerate(around.port, 1):
            accepted.link.peer = attrs.evolve(accepted.link.peer, pid=pid)
        for client in around.clients:
            client.close()
        around.turn()
        program, made = around.connected()
        program.sendall(b"request")
        assert around.port.ready()[0].connection is made

    def endless(self, around: Around, cost_ns: int = 100_000) -> Iterator[tuple[bytes, Sequence[int]] | None]:
        while True:
            yield None
            around.now_ns += cost_ns

    def test_records_are_taken_in_however_late_it_is(self, around: Around) -> None:
        flood, *programs = [around.connect() for _ in range(4)]
        around.turn()
        around.made[0].answer = lambda data: self.endless(around)
        flood.sendall(b"x")
        around.port.take_in_all()

        def slow(data: bytes) -> list[tuple[bytes, Sequence[int]]]:
            around.now_ns += TAKE_IN_NS
            return []

        record = msgpack.packb(bytes(14))  # none is cut by a piece
        for program, made in zip(programs, around.made[1:], strict=True):
            made.answer = slow
            program.sendall(record * 1000)
        around.port.take_in_all()
        assert [len(made.data) for made in around.made[1:]] == [1000 * len(record)] * 3

    def test_requests_are_not_touched_when_it_is_late(self, around: Around) -> None:
        """Except for a few: time passes, too, while the daemon has no cpu."""
        clients = [around.connect() for _ in range(FEW + 3)]
        around.turn()
        for made in around.made:
            made.answer = lambda data: self.endless(around, TAKE_IN_NS)
        for client in clients:
            client.sendall(encode_request(1, "sync", []) * 10_000)
        around.port.take_in_all()
        assert sum(bool(made.data) for made in around.made) == FEW

    def test_accepting_is_bounded_in_time(self, around: Around) -> None:
        def slow() -> None:
            around.now_ns += 1_000_000

        around.opening = slow
        for _ in range(100):
            around.connect()
        around.port.take_in_all()
        assert len(around.port) == max(FEW, ACCEPT_NS // 1_000_000)
        while not around.idle():
            around.turn()
        assert len(around.port) == 100

    def test_all_requests_of_a_child_that_is_gone(self, around: Around) -> None:
        """Its records need them, however late it is."""
        done = self.many(around, 1_000_000, 1)
        around.clients[0].close()
        around.turn()
        while len(around.port):
            around.now_ns += 4 * HALF_LIFE_NS
            around.turn()
        assert done == [1000]


class TestWhatIsKept:
    """Bytes of messages: counted for each user, and limited to his share."""

    @pytest.fixture
    def limited(self, tmp_path: Path) -> Iterator[Around]:
        shares = Shares({Resource.MESSAGE_BYTES: 100_000})
        made = Around(tmp_path / "limited", shares=shares, owner_uid=12345)
        yield made
        made.close()
        assert shares.total(Resource.MESSAGE_BYTES) == 0
        assert shares.total(Resource.CONNECTIONS) == 0
        assert shares.total(Resource.DESCRIPTORS) == 0

    @pytest.fixture(autouse=True)
    def plain(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            port_module, "peer_of", lambda sock, owner_uid: Peer(pid=1, uid=7, gid=7, privileged=False)
        )

    def test_descriptors_of_requests_that_wait_for_a_turn(self, limited: Around) -> None:
        """Each connection may bring some, and with many connections they are more than the limit."""
        slow: list[bool] = []

        def answer(data: bytes) -> Iterator[tuple[bytes, Sequence[int]] | None]:
            while slow:
                limited.now_ns += DATA.turn_ns
                yield None

        client, other = limited.connect(), limited.connect()
        limited.turn()
        for made in limited.made:
            made.answer = answer
        before = limited.shares.held(Resource.DESCRIPTORS, 7)
        slow.append(True)
        socket.send_fds(client, [b"slow"], [0, 0, 0])
        limited.turn()
        limited.turn()
        assert limited.shares.held(Resource.DESCRIPTORS, 7) == before + 3
        slow.clear()
        limited.turn()
        assert limited.shares.held(Resource.DESCRIPTORS, 7) == before

        room = LIMITS[Resource.DESCRIPTORS].most - before - 2
        limited.shares.add(Resource.DESCRIPTORS, 7, room)
        slow.append(True)
        socket.send_fds(client, [b"slow"], [0])
        socket.send_fds(other, [b"slow"], [0, 0, 0])
        limited.turn()
        assert error_in(read_all(other))[0] == errno.EMFILE
        assert limited.made[1].closed_ns
        assert len(limited.port) == 1
        assert limited.shares.held(Resource.DESCRIPTORS, 7) == room + 2, "one connection, and its one"
        client.close()
        slow.clear()
        limited.turn()
        limited.turn()
        assert limited.shares.held(Resource.DESCRIPTORS, 7) == room
        limited.shares.drop(Resource.DESCRIPTORS, 7, room)

    def test_what_is_read_is_small_when_much_is_kept(self, limited: Around) -> None:
        keeping, other = limited.connect(), limited.connect()
        limited.turn()
        limited.made[0].stream.bytes_pending = 60_000
        keeping.sendall(b"x")
        limited.turn()
        pieces: list[int] = []

        def answer(data: bytes) -> list[tuple[bytes, Sequence[int]]]:
            pieces.append(len(data))
            return []

        limited.made[1].answer = answer
        other.sendall(bytes(20_000))
        limited.turn()
        assert max(pieces) == SMALL_PIECE_BYTES
        assert sum(pieces) == 20_000

    def test_answers_that_are_not_read(self, limited: Around) -> None:
        client, made = limited.connected()
        made.answer = lambda data: [(bytes(1000), []) for _ in data]
        client.sendall(bytes(300))
        limited.turn()
        held = limited.shares.held(Resource.MESSAGE_BYTES, 7)
        assert 0 < held == next(iter(limited.port)).link.waiting_bytes
        read = 0
        while read < 300_000:
            read += len(client.recv(1 << 20))
            limited.turn()
        assert limited.shares.held(Resource.MESSAGE_BYTES, 7) == 0


class TestDescriptorsThatAreNotClosed:
    @pytest.fixture(autouse=True)
    def waiting(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
        counts: dict[int, int] = {}
        monkeypatch.setattr(closing, "waiting_of", lambda uid: counts.get(uid, 0))
        monkeypatch.setattr(closing, "waiting", lambda: sum(counts.values()))
        yield counts
        counts.clear()  # each test of the daemon ends when no close is waiting

    @pytest.mark.parametrize("rules", [DATA, TRACEFS], ids=["data", "tracefs"])
    def test_no_more_are_received_from_their_user(
        self, tmp_path: Path, waiting: dict[int, int], rules: Rules
    ) -> None:
        around = Around(tmp_path / "socket", rules)
        client, other = around.connect(), around.connect()
        around.turn()
        waiting[os.geteuid()] = MAX_WAITING + 1
        client.sendall(b"before")
        socket.send_fds(client, [b"more"], [0])
        other.sendall(b"without any")
        around.turn()
        assert around.made[0].fds == []
        assert around.made[0].closed_ns
        assert [made.data for made in around.made] == [b"", b"without any"]
        assert len(around.port) == 1
        around.connect()
        around.turn()
        assert len(around.port) == 2, "what he sends without descriptors is nobody's harm"
        around.close()

    def test_no_connection_is_accepted_above_the_limit(
        self, around: Around, waiting: dict[int, int], caplog: pytest.LogCaptureFixture
    ) -> None:
        most = LIMITS[Resource.DESCRIPTORS].in_all // CLOSING_PART
        waiting[54321] = most + 1
        around.connect()
        with caplog.at_level(logging.ERROR):
            around.turn()
        assert (len(around.port), around.idle()) == (0, True)
        waiting.clear()
        around.port.on_time(around.now_ns + ACCEPT_PAUSE_NS)
        around.turn()
        assert len(around.port) == 1


class TestOurMistakes:
    """An exception in the handling of a connection ends that connection, is logged and counted."""

    PLACES = ("receive", "close", "speak", "next_timer_ns", "stream")

    @pytest.mark.parametrize("place", PLACES)
    def test_in_a_connection(
        self, around: Around, place: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bad, other = around.connect(), around.connect()
        around.turn()

        def fail(*args: Any) -> None:
            raise RuntimeError("a mistake")

        class Bad(FakeConnection):
            pass

        setattr(Bad, place, property(fail) if place == "stream" else fail)
        made = around.made[0]
        made.__dict__.pop(place, None)
        made.__class__ = Bad
        with caplog.at_level(logging.ERROR):
            if place == "speak":
                monkeypatch.setattr(made, "waiting", True)
            bad.sendall(b"x")
            around.turn()
            around.port.answer_waiting()
            around.port.on_time(around.now_ns)
            bad.close()
            around.turn()
            around.port.on_time(around.now_ns)
            assert len(around.port) == 1
            other.sendall(b"y")
            around.turn()
        assert around.made[1].data == b"y"
        assert around.faults.count > 0
        assert "a mistake" in caplog.text

    def test_in_a_connection_that_is_not_made(self, around: Around, caplog: pytest.LogCaptureFixture) -> None:
        def fail() -> None:
            raise RuntimeError("a mistake")

        right, around.opening = around.opening, fail
        refused = around.connect()
        with caplog.at_level(logging.ERROR):
            around.turn()
        around.opening = right
        assert read_all(refused) == b""
        around.connect()
        around.turn()
        assert (len(around.port), around.faults.count) == (1, 1)


def test_a_client_that_does_not_read_gets_its_answer_in_time(around: Around) -> None:
    """Its timer was skipped, and the loop never slept again: the deadline stayed in the past."""
    client, made = around.connected()
    made.answer = lambda data: [(bytes(1 << 20), [])]
    made.timer_ns = 5_000
    client.sendall(b"x")
    around.turn()
    assert next(iter(around.port)).link.waiting_bytes > DATA.max_waiting_bytes
    assert around.port.next_deadline_ns() == 5_000
    around.now_ns = 5_000
    around.port.on_time(5_000)
    assert made.said == []
    assert around.port.next_deadline_ns() == 1_000 + LOOK_NS
