"""Operations on the tree and notified connections, with the daemon's parts together and a clock that is
set."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.daemon.restarting import daemon_in
from utracefs_protocol.connection import encode_notification, encode_request
from utracefsd.connections.port import Port
from utracefsd.events.notifier import ACKNOWLEDGE_NS
from utracefsd.machine.procfs import read_task

SECOND_NS = 10**9
ENABLE = "events/user_events/ev/enable"


class Client:
    """One end of a connection; messages are kept until they are read."""

    def __init__(self, around: Around, port: Port) -> None:
        self.around = around
        ours, self.sock = socket.socketpair()
        port.add(ours)
        self.unpacker = msgpack.Unpacker()
        self.msgid = 0

    def send(self, method: str, *params: Any) -> int:
        self.msgid += 1
        self.sock.sendall(encode_request(self.msgid, method, list(params)))
        return self.msgid

    def heard(self) -> list[Any]:
        """The messages until now."""
        with contextlib.suppress(BlockingIOError):
            while data := self.sock.recv(1 << 16, socket.MSG_DONTWAIT):
                self.unpacker.feed(data)
        return list(self.unpacker)

    def call(self, method: str, *params: Any) -> Any:
        msgid = self.send(method, *params)
        self.around.turn()
        [[kind, answered, error, result]] = self.heard()
        assert (kind, answered, error) == (1, msgid, None)
        return result

    def written(self, seq: int) -> None:
        self.sock.sendall(encode_notification("enablers_written", [seq]))

    def enable(self, on: bool) -> int:
        return self.send("write_file", ENABLE, b"1" if on else b"0", True)


class Around:
    def __init__(self, folder: Path) -> None:
        self.now_ns = SECOND_NS
        self.daemon = daemon_in(folder, lambda: self.now_ns)
        self.clients: list[Client] = []
        self.closed = False

    def program(self, tokens: int = 1) -> Client:
        self.clients.append(Client(self, self.daemon.data))
        client = self.clients[-1]
        client.call("notify_enablers", {})
        for token in range(tokens):
            client.call("DIAG_IOCSREG", {"name_args": "ev u32 a", "enable_token": token})
        return client

    def program_of(self, uid: int) -> Client:
        """A client that registers on its own; its notifications belong to a user."""
        self.clients.append(Client(self, self.daemon.data))
        client = self.clients[-1]
        task = read_task(os.getppid())
        assert task is not None
        process = {"pid": os.getppid(), "start_time": task.start_time, "uid": uid, "gid": uid}
        client.call("open_for", process)
        client.call("notify_enablers", {})
        client.call("DIAG_IOCSREG", {"name_args": "ev u32 a", "enable_token": 0})
        return client

    def administrator(self) -> Client:
        self.clients.append(Client(self, self.daemon.tracefs))
        return self.clients[-1]

    def turn(self) -> None:
        """Does the work of the loop until nothing is ready."""
        while True:
            ready = 0
            for port in (self.daemon.data, self.daemon.tracefs):
                for accepted in port.ready():
                    port.pump(accepted)
                    self.daemon.hand_on()
                    ready += 1
            if not ready:
                return

    def at(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self.daemon.on_time(now_ns)
        self.turn()

    def close(self) -> None:
        for client in self.clients:
            client.sock.close()
        if not self.closed:
            self.daemon.close()


@pytest.fixture
def around(folder: Path) -> Iterator[Around]:
    made = Around(folder)
    yield made
    made.close()


def changed(seq: int, *pairs: list[int]) -> list[Any]:
    return [2, "enablers_changed", [seq, list(pairs)]]


def test_enable_is_answered_when_all_have_acknowledged(around: Around) -> None:
    programs = [around.program() for _ in range(3)]
    tree, other = around.administrator(), around.administrator()
    msgid = tree.enable(True)
    around.turn()
    assert tree.heard() == []
    assert [program.heard() for program in programs] == [[changed(1, [0, 1])]] * 3
    assert other.call("read_file", ENABLE) == b"1\n", "others are not held up"
    for program in programs[:2]:
        program.written(1)
    around.turn()
    assert tree.heard() == []
    programs[2].written(1)
    around.turn()
    assert tree.heard() == [[1, msgid, None, 1]]
    deadline_ns = around.daemon.next_deadline_ns()
    assert deadline_ns is None or deadline_ns > around.now_ns + ACKNOWLEDGE_NS
    assert other.call("write_file", ENABLE, b"1", True) == 1, "nothing changes, so nobody is waited for"


def test_what_is_withheld_is_answered_before_a_broken_byte(around: Around) -> None:
    """Earlier requests have been carried out and answered."""
    around.program()
    tree = around.administrator()
    msgid = tree.enable(True)
    tree.sock.sendall(b"\xc1")
    around.turn()
    answer, (kind, method, _) = tree.heard()
    assert answer == [1, msgid, None, 1]
    assert (kind, method) == (2, "error")


def test_a_user_with_new_connections_each_time_has_a_bounded_wait(
    around: Around, log: pytest.LogCaptureFixture
) -> None:
    tree, honest = around.administrator(), around.program_of(12345)
    waited = 0

    def operation() -> bool:
        """Whether it had to wait for others than the honest one."""
        around.program_of(54321)
        around.turn()
        tree.enable(around.daemon.now_ns() // ACKNOWLEDGE_NS % 2 == 1)
        around.turn()
        assert tree.heard() == [], "the other user's program is waited for, whatever this one does"
        [[_, _, [seq, _]]] = honest.heard()
        honest.written(seq)
        around.turn()
        answered = bool(tree.heard())
        around.at(around.now_ns + ACKNOWLEDGE_NS)
        assert answered != bool(tree.heard())
        return not answered

    waited = sum(operation() for _ in range(40))
    assert 5 <= waited <= 7, "two at once, and a tenth of the time"
    assert sum("of user 54321 took 2000 ms" in message for message in log.messages) == 1
    around.at(around.now_ns + 20 * SECOND_NS)
    assert operation(), "refilled"


def test_the_daemon_ends_while_somebody_waits(around: Around) -> None:
    """It was carried out, so it is answered."""
    around.program()
    tree = around.administrator()
    msgid = tree.enable(True)
    around.turn()
    around.daemon.close()
    around.closed = True
    assert tree.heard() == [[1, msgid, None, 1]]
