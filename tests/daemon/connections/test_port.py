"""The sockets' side of the daemon: the order of service, and reasons to end; real sockets, fake
connections."""

import contextlib
import errno
import functools
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.daemon.connections.ports import Around, FakeConnection, error_in, fill, read_all
from utracefs_protocol.connection import encode_notification
from utracefs_protocol.errors import TraceError
from utracefsd.connections.accepted_connection import DATA, MAX_DESCRIPTORS_SENT, TRACEFS
from utracefsd.connections.port import FEW
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares


class TestScheduling:
    def test_idle_means_nothing_is_ready(self, around: Around) -> None:
        around.connect()
        around.turn()
        assert around.idle()
        assert around.port.next_deadline_ns() is None

    def test_a_flood_gets_its_share_and_no_more(self, around: Around) -> None:
        flooding, other = around.connect(), around.connect()
        around.turn()
        sent = fill(flooding)
        other.sendall(b"here")
        budget = sent // 4
        for accepted in around.port.ready():
            around.port.pump(accepted, budget)
        assert sorted(len(file.data) for file in around.made) == [4, budget]
        assert not around.idle()

    def test_a_turn_receives_though_its_time_is_over_at_the_first_look(self, around: Around) -> None:
        client, made = around.connected()
        around.look_ns = 10 * DATA.turn_ns
        client.sendall(b"abc")
        around.turn()
        assert made.data == b"abc"
        client.sendall(b"def")
        around.port.take_in_all()
        assert made.data == b"abcdef"

    def test_the_end_of_a_connection_drops_it_at_once(self, around: Around) -> None:
        client = around.connect()
        client.sendall(b"last words")
        client.close()
        around.turn()
        assert around.made[0].data == b"last words"
        assert around.made[0].closed_ns == [around.now_ns]
        assert len(around.port) == 0
        assert [peer.pid for peer in around.left] == [os.getpid()]
        assert around.idle()

    def test_at_the_daemons_end_connections_that_wait_to_be_accepted_are_read(self, around: Around) -> None:
        """A forked child that has ended keeps nothing for the next daemon."""
        for _ in range(FEW + 1):
            client = around.connect()
            client.sendall(b"last words")
            client.close()
        around.port.accept_last()
        around.listener.close()
        around.port.take_in_last()
        assert [made.data for made in around.made] == [b"last words"] * (FEW + 1)

    def test_a_reset_connection_loses_nothing_that_it_sent(self, around: Around) -> None:
        client, made = around.connected()
        made.answer = lambda data: [(b"unread", [])]
        client.sendall(b"1")
        around.turn()
        client.sendall(b"2")
        client.close()  # with an unread reply: ECONNRESET here
        around.turn()
        assert made.data == b"12"
        assert made.closed_ns

    def test_half_closed_still_gets_its_reply(self, around: Around) -> None:
        client, made = around.connected()
        made.answer = lambda data: [(b"answer", [])]
        client.sendall(b"?")
        client.shutdown(socket.SHUT_WR)
        around.turn()
        assert read_all(client) == b"answer"
        assert made.closed_ns

    def test_an_unexpected_exception_ends_that_connection_only(
        self, around: Around, caplog: pytest.LogCaptureFixture
    ) -> None:
        client, other = around.connect(), around.connect()
        around.turn()

        def fail(data: bytes) -> Sequence[tuple[bytes, Sequence[int]]]:
            raise RuntimeError("a mistake")

        around.made[0].answer = fail
        client.sendall(b"x")
        with caplog.at_level(logging.ERROR):
            around.turn()
        assert [record.exc_info is not None for record in caplog.records] == [True]
        assert error_in(read_all(client))[0] == errno.EIO
        other.sendall(b"y")
        around.turn()
        assert around.made[1].data == b"y"
        assert len(around.port) == 1

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
    def test_everything_that_was_sent(self, around: Around) -> None:
        clients = [around.connect() for _ in range(20)]
        around.turn()
        sent = [fill(client) for client in clients]
        around.port.take_in_all()
        assert [len(file.data) for file in around.made] == sent

    def test_what_was_not_accepted_yet(self, around: Around) -> None:
        for i in range(200):
            client = around.connect()
            client.sendall(b"%d" % i)
            client.close()
        around.port.take_in_all()
        assert [bytes(file.data) for file in around.made] == [b"%d" % i for i in range(200)]
        assert all(file.closed_ns for file in around.made)

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

    def test_from_inside_an_operation(self, around: Around) -> None:
        """DIAG_IOCSDEL on one connection takes in the others; it is itself being pumped."""
        deleting, other = around.connect(), around.connect()
        around.turn()
        order: list[str] = []

        def delete(data: bytes) -> Sequence[tuple[bytes, Sequence[int]]]:
            order.append("delete")
            around.port.take_in_all()
            order.append("deleted")
            return []

        def record(data: bytes) -> Sequence[tuple[bytes, Sequence[int]]]:
            order.append("record")
            return []

        around.made[0].answer, around.made[1].answer = delete, record
        deleting.sendall(b"del")
        other.sendall(b"rec")
        other.close()
        first = next(link for link in around.port.ready() if link.connection is around.made[0])
        around.port.pump(first)
        assert order == ["delete", "record", "deleted"]
        assert around.made[1].closed_ns

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


class TestOneByOne:
    """The rules of the tree: requests in turns of a millisecond, and none while many responses wait."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Iterator[Around]:
        made = Around(tmp_path / "tree", TRACEFS)
        yield made
        made.close()

    def test_short_requests_share_a_turn(self, tree: Around) -> None:
        client, made = tree.connected()

        def answer(data: bytes) -> Iterator[tuple[bytes, Sequence[int]] | None]:
            for _ in data:
                yield b"x", []
                yield None

        made.answer = answer
        client.sendall(bytes(100))
        tree.turn()
        assert client.recv(1000) == b"x" * 100

    def test_a_request_that_takes_long_ends_the_turn(self, tree: Around) -> None:
        clients = [tree.connect() for _ in range(3)]
        tree.turn()
        order: list[tuple[int, int]] = []

        def answer(client: int, data: bytes) -> Iterator[tuple[bytes, Sequence[int]] | None]:
            for request in data:
                order.append((request, client))
                tree.now_ns += TRACEFS.turn_ns
                yield b"%d" % request, []
                if request < 3:
                    yield None

        for number, made in enumerate(tree.made):
            made.answer = functools.partial(answer, number)
            clients[number].sendall(bytes([1, 2, 3]))
        assert not tree.port.has_more
        tree.turn()
        assert tree.port.has_more
        while tree.port.has_more:
            tree.turn()
        assert [request for request, _ in order] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
        assert {client.recv(100) for client in clients} == {b"123"}
        assert tree.idle()

    def large(self, tree: Around) -> list[int]:
        """Each byte is answered with 400 KB; returns the requests carried out."""
        carried_out: list[int] = []

        def answer(data: bytes) -> Iterator[tuple[bytes, Sequence[int]] | None]:
            for request in data:
                carried_out.append(request)
                yield bytes([request]) * 400_000, []
                yield None

        tree.made[0].answer = answer
        return carried_out

    def test_a_client_that_does_not_read_waits_by_itself(self, tree: Around) -> None:
        slow, other = tree.connect(), tree.connect()
        tree.turn()
        carried_out = self.large(tree)
        slow.sendall(bytes(range(50)))
        for _ in range(20):
            tree.turn()
        assert len(carried_out) < 8
        assert tree.idle(), "it is not reported again and again"
        assert not tree.port.has_more
        slow.sendall(b"more")
        assert tree.idle()
        tree.made[1].answer = lambda data: [(b"quick", [])]
        other.sendall(b"?")
        tree.turn()
        assert other.recv(100) == b"quick"
        slow.shutdown(socket.SHUT_WR)
        got = bytearray()
        while len(tree.port) == 2:
            tree.turn()
            slow.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                got += slow.recv(1 << 20)
        slow.settimeout(60)
        got += read_all(slow)
        assert bytes(carried_out) == bytes(range(50)) + b"more"
        assert got == b"".join(bytes([request]) * 400_000 for request in carried_out)

    def test_it_is_closed_when_it_goes_away(self, tree: Around) -> None:
        slow, made = tree.connected()
        self.large(tree)
        slow.sendall(bytes(10))
        for _ in range(10):
            tree.turn()
        slow.close()
        while len(tree.port):
            tree.turn()
        assert made.closed_ns
        assert not tree.port.has_more
        assert tree.idle()

    def test_a_request_that_waits_is_answered_after_the_step_that_it_waits_for(self, tree: Around) -> None:
        client, made = tree.connected()
        made.waiting = True
        client.sendall(b"read")
        tree.turn()
        assert tree.idle()
        made.said = [(b"data", [])]
        tree.port.answer_waiting()
        assert client.recv(100) == b"data"
        made.waiting = False
        made.said = [(b"never asked for", [])]
        tree.port.answer_waiting()
        client.close()
        tree.turn()
        assert made.closed_ns

    def test_no_more_answers_than_it_reads(self, tree: Around) -> None:
        client, made = tree.connected()
        made.waiting = True
        client.sendall(b"reads")
        tree.turn()
        said: Iterator[Any] = iter([(bytes(400_000), [])] * 50)
        made.speak = lambda now_ns: said  # type: ignore[method-assign]
        for _ in range(20):
            tree.port.answer_waiting()
        left = len(list(said))
        assert left > 40

    def test_an_unexpected_exception_is_its_last_message(
        self, tree: Around, caplog: pytest.LogCaptureFixture
    ) -> None:
        client, made = tree.connected()

        def answer(data: bytes) -> Iterator[tuple[bytes, Sequence[int]]]:
            yield encode_notification("fine", []), []
            raise RuntimeError("a mistake")

        made.answer = answer
        client.sendall(b"??")
        with caplog.at_level(logging.ERROR):
            while len(tree.port):
                tree.turn()
        heard = msgpack.Unpacker()
        heard.feed(read_all(client))
        assert [message[1] for message in heard] == ["fine", "error"]
        assert "a mistake" in caplog.text


def test_what_must_be_kept_is_kept_before_an_answer_is_sent(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def before_sending() -> None:
        client.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            seen.append(client.recv(100))
        client.settimeout(60)
        seen.append(b"kept")

    around = Around(tmp_path / "data", before_sending=before_sending)
    try:
        client, made = around.connected()
        client.sendall(b"no answer")
        around.turn()
        assert seen == []
        made.answer = lambda data: [(b"answer", [])]
        client.sendall(b"?")
        around.turn()
        assert client.recv(100) == b"answer"
        assert seen == [b"kept"]
    finally:
        around.close()


def test_notifications_that_are_due_later(around: Around) -> None:
    client, made = around.connected()
    made.timer_ns = 5_000
    client.sendall(b"x")
    around.turn()
    assert around.port.next_deadline_ns() == 5_000
    around.port.on_time(4_999)
    around.port.on_time(5_000)
    assert around.port.next_deadline_ns() is None
    assert client.recv(100) == b"due"
    made.timer_ns = 9_000
    client.sendall(b"x")
    around.turn()
    client.close()
    around.turn()
    assert around.port.next_deadline_ns() is None


def test_a_connection_speaks_up(around: Around) -> None:
    """At the end of the step, without a request, and once."""
    client, made = around.connected()
    made.waiting = True
    around.port.answer_waiting()
    assert made.said, "nobody said that there is something to say"
    around.port.speak_up(made)
    around.port.answer_waiting()
    assert client.recv(100) == b"due"
    made.waiting = False
    made.said = [(b"again", [])]
    around.port.speak_up(made)
    around.port.answer_waiting()
    assert made.said
    assert around.idle()


def test_one_that_has_to_read_first_speaks_later(around: Around) -> None:
    client, made = around.connected()
    made.answer = lambda data: [(bytes(1 << 20), [])]
    client.sendall(b"x")
    around.turn()
    made.waiting = True
    around.port.speak_up(made)
    around.port.answer_waiting()
    assert made.said
    left = 1 << 20
    while left:
        left -= len(client.recv(left))
        around.turn()
    around.port.answer_waiting()
    assert client.recv(100) == b"due"


def test_withheld_answers_are_sent_after_the_last_request(around: Around) -> None:
    """By a peer that sends no more and reads on, or because the daemon ends."""
    half, other = around.connect(), around.connect()
    around.turn()
    for made in around.made:
        made.last = [(b"withheld", [])]
    half.shutdown(socket.SHUT_WR)
    around.turn()
    assert read_all(half) == b"withheld"
    around.port.close()
    assert read_all(other) == b"withheld"


def test_one_that_sends_no_more_is_kept_while_it_is_held(
    around: Around, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a response that is not possible yet."""
    client, made = around.connected()

    def hold() -> list[tuple[bytes, Sequence[int]]]:
        made.is_blocked = made.waiting
        return []

    monkeypatch.setattr(made, "last_answers", hold)
    made.waiting = True
    around.port.speak_up(made)
    client.shutdown(socket.SHUT_WR)
    around.turn()
    assert (made.closed_ns, around.idle()) == ([], True)
    around.port.answer_waiting()
    assert made.said
    made.is_blocked = False
    around.port.answer_waiting()
    made.waiting = False
    around.turn()
    assert read_all(client) == b"due"
    assert made.closed_ns


def test_one_that_is_gone_may_speak_up(around: Around) -> None:
    client, made = around.connected()
    client.close()
    around.turn()
    made.waiting = True
    around.port.speak_up(made)
    around.port.answer_waiting()
    assert made.said
    assert around.port.next_deadline_ns() is None


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
        assert around.left == [user]
        around.port.belongs_to(around.made[2], user)
    assert shares.total(Resource.CONNECTIONS) == shares.total(Resource.DESCRIPTORS) == 0


def hold(made: FakeConnection, answers: list[tuple[bytes, Sequence[int]] | None]) -> None:
    """Further input has to wait; the responses to it."""
    rest = iter(answers)

    def answer(data: bytes) -> Iterable[tuple[bytes, Sequence[int]] | None]:
        made.is_blocked = True
        made.answer = lambda data: []
        return rest

    made.answer = answer


class TestHeld:
    """A connection whose records have to wait is left alone, and costs nothing, until `go_on`."""

    def test_it_is_not_listened_to(self, around: Around) -> None:
        client, made = around.connected()
        hold(made, [None, (b"now", [])])
        client.send(b"first")
        around.turn()
        client.send(b"second")
        assert not around.port.has_more
        assert around.idle()
        assert made.data == b"first"
        made.is_blocked = False
        around.port.go_on()
        assert not around.idle()
        around.turn()
        around.turn()
        assert client.recv(100) == b"now"
        assert made.data == b"firstsecond"

    def test_one_whose_peer_is_gone_is_reported_once(self, around: Around) -> None:
        client, made = around.connected()
        hold(made, [None])
        client.send(b"first")
        around.turn()
        client.close()
        around.turn()
        assert around.idle()
        assert not made.closed_ns
        made.is_blocked = False
        around.port.go_on()
        while not around.idle():
            around.turn()
        assert made.closed_ns
