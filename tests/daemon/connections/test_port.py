"""The sockets' side of the daemon: the order of service, and reasons to end; real sockets, fake
connections."""

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.daemon.connections.ports import Around, error_in, read_all
from utracefs_protocol.connection import encode_notification
from utracefs_protocol.errors import TraceError
from utracefsd.connections.accepted_connection import DATA, MAX_DESCRIPTORS_SENT
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares


class TestScheduling:
    def test_a_turn_receives_though_its_time_is_over_at_the_first_look(self, around: Around) -> None:
        client, made = around.connected()
        around.look_ns = 10 * DATA.turn_ns
        client.sendall(b"abc")
        around.turn()
        assert made.data == b"abc"
        client.sendall(b"def")
        around.port.take_in_all()
        assert made.data == b"abcdef"

    @pytest.mark.parametrize("turn", [Around.turn, lambda around: around.port.take_in_all()])
    def test_a_program_that_connects_again_is_served_in_order(
        self, around: Around, turn: Callable[[Around], object]
    ) -> None:
        """Its next connection has used less time than the one that it has closed."""
        order: list[bytes] = []

        def note(data: bytes) -> Sequence[tuple[bytes, Sequence[int]]]:
            order.append(data)
            return []

        (before, first), (again, second) = around.connected(), around.connected()
        first.answer = second.answer = note
        around.look_ns = DATA.turn_ns
        before.sendall(b"0")
        around.turn()
        before.sendall(b"1")
        before.close()
        again.sendall(b"2")
        turn(around)
        assert order == [b"0", b"1", b"2"]

    def test_closing_ends_it_after_its_last_words(self, around: Around) -> None:
        client, made = around.connected()

        def refuse(data: bytes) -> Sequence[tuple[bytes, Sequence[int]]]:
            made.closing = True
            return [(encode_notification("error", [errno.EPROTO, "no"]), [])]

        made.answer = refuse
        client.sendall(bytes(150_000))
        around.turn()
        assert error_in(read_all(client)) == (errno.EPROTO, "no")
        assert made.closed_ns == [around.now_ns]
        assert len(around.port) == 0


class TestTakeInAll:
    def test_what_comes_meanwhile_waits(self, around: Around) -> None:
        """A producer that is as fast as the daemon must not delay the caller."""
        client, made = around.connected()

        def more(data: bytes) -> Sequence[tuple[bytes, Sequence[int]]]:
            client.sendall(bytes(len(data)))
            return []

        made.answer = more
        client.sendall(bytes(1000))
        around.port.take_in_all()
        assert len(made.data) == 1000

    def test_costs_nothing_when_nothing_came(self, around: Around, monkeypatch: pytest.MonkeyPatch) -> None:
        for _ in range(50):
            around.connect()
        around.turn()
        monkeypatch.setattr(around.port, "pump", None)
        around.port.take_in_all()


class TestSlowReaders:
    def test_thousands_of_small_replies_are_welcome(self, around: Around) -> None:
        """Registering everything in one round trip, and reading only then."""
        client, made = around.connected()
        made.answer = lambda data: [(bytes(60), []) for _ in range(len(data))]
        client.sendall(bytes(8000))
        around.turn()
        assert not made.closed_ns
        client.shutdown(socket.SHUT_WR)
        got = 0
        while got < 8000 * 60:
            got += len(client.recv(1 << 20))
            around.turn()

    def test_asking_for_descriptors_for_ever(self, around: Around) -> None:
        client, made = around.connected()
        made.answer = lambda data: [(b"\0", [os.open("/dev/null", os.O_RDONLY)]) for _ in data]
        before = len(os.listdir("/proc/self/fd"))
        client.sendall(bytes(MAX_DESCRIPTORS_SENT + 1))
        around.turn()
        client.recv(1)
        data = read_all(client).lstrip(b"\0")
        assert error_in(data)[0] == errno.EMSGSIZE
        assert len(os.listdir("/proc/self/fd")) == before - 1


def test_a_connection_that_speaks_for_another_process(tmp_path: Path) -> None:
    shares = Shares({Resource.CONNECTIONS: 2})
    with contextlib.closing(Around(tmp_path / "data", shares=shares)) as around:
        clients = [around.connect() for _ in range(4)]
        around.turn()
        user = Peer(77, 1000, 1000, privileged=False)
        own = around.made[0].peer
        first = next(iter(around.port))
        for made in around.made[:2]:
            around.port.belongs_to(made, user)
        with pytest.raises(TraceError) as caught:
            around.port.belongs_to(around.made[2], user)
        assert caught.value.errno == errno.EMFILE
        held = [shares.held(Resource.CONNECTIONS, peer.share) for peer in (own, user)]
        assert held == [2, 2]
        assert first.share == user.share, "its time is that user's, too"
        clients[0].close()
        around.turn()
        around.port.belongs_to(around.made[2], user)
    assert shares.total(Resource.CONNECTIONS) == shares.total(Resource.DESCRIPTORS) == 0
