"""Connections whose peer does not read its responses, and which of them can only be ended."""

import socket

from tests.daemon.connections.ports import Around, FakeConnection, fill
from utracefsd.connections.accepted_connection import MAX_WAITING_BYTES
from utracefsd.connections.port import LOOK_NS


def deaf_client(around: Around) -> tuple[socket.socket, FakeConnection]:
    client = around.connect()
    around.turn()
    made = around.made[-1]
    made.answer = lambda data: [(bytes(MAX_WAITING_BYTES + (1 << 20)), [])]
    client.sendall(b"x")
    around.turn()
    made.answer = lambda data: []
    return client, made


def later(around: Around) -> None:
    around.now_ns += LOOK_NS
    around.port.on_time(around.now_ns)
    around.turn()


def test_a_connection_that_lies_in_itself_ends(around: Around) -> None:
    """No process had its other end, and it stayed forever."""
    client, made = deaf_client(around)
    client.sendall(bytes(1000))  # not only the first message is checked
    socket.send_fds(client, [b"y"], [client.fileno()])
    client.close()
    around.turn()
    assert not made.closed_ns
    assert around.port.next_deadline_ns() == around.now_ns + LOOK_NS
    later(around)
    assert made.closed_ns
    later(around)  # the time for its last message is over
    assert len(around.port) == 0
    assert around.port.next_deadline_ns() is None
    assert around.idle()


def test_two_that_lie_in_each_other_end(around: Around) -> None:
    one, _ = deaf_client(around)
    two, _ = deaf_client(around)
    socket.send_fds(one, [b"y"], [two.fileno()])
    socket.send_fds(two, [b"y"], [one.fileno()])
    one.close()
    two.close()
    later(around)
    later(around)
    assert len(around.port) == 0


def test_a_peer_without_descriptors_is_waited_for(around: Around) -> None:
    client, made = deaf_client(around)
    fill(client)
    for _ in range(3):
        later(around)
    assert not made.closed_ns
    received = 0
    client.settimeout(60)
    while received < MAX_WAITING_BYTES + (1 << 20):
        received += len(client.recv(1 << 20))
        around.turn()
    around.turn()
    assert len(made.data) > 1
    assert around.port.next_deadline_ns() is None
