"""The user charged for a connection: the charges move with it, and are zero at the end; limits of a port."""

import errno
import socket
from collections.abc import Iterator

import pytest

from tests.daemon.connections.ports import FakeConnection
from utracefs_protocol.errors import TraceError
from utracefsd.connections.accepted_connection import DATA, TRACEFS, AcceptedConnection
from utracefsd.connections.connection_shares import ConnectionShares
from utracefsd.connections.link import Link
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Resource, Shares

MOUNT = Peer(1, 0, 0, privileged=True)
USER = Peer(2, 1000, 1000, privileged=False)


@pytest.fixture
def accepted() -> Iterator[AcceptedConnection]:
    one, other = socket.socketpair()
    with other:
        link = Link(one, MOUNT)
        yield AcceptedConnection(link, FakeConnection(MOUNT), link.fileno(), 0, 0)
        link.close()


def held(accounting: ConnectionShares, peer: Peer) -> list[int]:
    of = (Resource.CONNECTIONS, Resource.DESCRIPTORS, Resource.MESSAGE_BYTES)
    return [accounting.shares.held(resource, peer.share) for resource in of]


def test_a_connection_moves_with_all_that_is_kept_for_it(accepted: AcceptedConnection) -> None:
    accounting = ConnectionShares(Shares())
    accounting.check(MOUNT)
    accounting.add(accepted)
    assert accounting.hold(accepted, Resource.DESCRIPTORS, 4) is None
    assert accounting.hold(accepted, Resource.MESSAGE_BYTES, 100) is None
    assert held(accounting, MOUNT) == [1, 4, 100]
    accounting.belongs_to(accepted, USER)
    assert accepted.link.peer is USER
    assert accepted.share == USER.share
    assert (held(accounting, MOUNT), held(accounting, USER)) == ([0, 0, 0], [1, 4, 100])
    assert accounting.hold(accepted, Resource.MESSAGE_BYTES, 30) is None
    assert held(accounting, USER) == [1, 4, 30]
    for _ in range(2):
        accounting.drop(accepted)
        assert not any(accounting.shares.total(resource) for resource in Resource)


def test_a_connection_on_behalf_gets_no_more(accepted: AcceptedConnection) -> None:
    accounting = ConnectionShares(Shares({Resource.CONNECTIONS: 1}))
    accounting.add(accepted)
    accounting.shares.add(Resource.CONNECTIONS, USER.share)
    with pytest.raises(TraceError) as caught:
        accounting.belongs_to(accepted, USER)
    assert caught.value.errno == errno.EMFILE
    assert accepted.link.peer is MOUNT
    assert (held(accounting, MOUNT)[0], held(accounting, USER)[0]) == (1, 1)
    with pytest.raises(TraceError):
        accounting.check(USER)
    accounting.check(MOUNT)


def test_another_process_of_the_same_user_needs_no_room(accepted: AcceptedConnection) -> None:
    accounting = ConnectionShares(Shares({Resource.CONNECTIONS: 1}))
    accounting.add(accepted)
    other = Peer(3, 0, 0, privileged=True)
    accounting.belongs_to(accepted, other)
    assert accepted.link.peer is other
    assert held(accounting, MOUNT)[0] == 1


def test_too_much_is_refused_and_counted_all_the_same(accepted: AcceptedConnection) -> None:
    accounting = ConnectionShares(Shares({Resource.MESSAGE_BYTES: 50, Resource.DESCRIPTORS: 2}))
    accepted.link.peer = USER
    accounting.add(accepted)
    refusal = accounting.hold(accepted, Resource.DESCRIPTORS, 3)
    assert refusal is not None
    refusal = accounting.hold(accepted, Resource.MESSAGE_BYTES, 60)
    assert refusal is not None
    assert refusal.errno == errno.ENOBUFS
    assert held(accounting, USER) == [1, 3, 60]
    assert accounting.scarce(USER)
    accounting.drop(accepted)
    assert not accounting.scarce(USER)


def test_nothing_is_counted_after_the_end(accepted: AcceptedConnection) -> None:
    accounting = ConnectionShares(Shares())
    accounting.add(accepted)
    accepted.link.close()
    assert accounting.hold(accepted, Resource.DESCRIPTORS, 5) is None
    accounting.drop(accepted)
    assert not any(accounting.shares.total(resource) for resource in Resource)


def test_without_limits_nothing_is_too_much(accepted: AcceptedConnection) -> None:
    accounting = ConnectionShares(Shares.without_limits())
    accounting.shares.add(Resource.CONNECTIONS, USER.share, 10_000)
    accounting.check(USER)
    assert accounting.hold(accepted, Resource.DESCRIPTORS, 1 << 20) is None
    assert accounting.hold(accepted, Resource.MESSAGE_BYTES, 1 << 40) is None
    assert not accounting.scarce(USER)


def test_the_tree_may_have_larger_answers_waiting() -> None:
    assert DATA.max_waiting_bytes < TRACEFS.max_waiting_bytes
