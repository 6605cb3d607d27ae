"""Who counts as an administrator, and how many connections a user may have."""

import errno
import os

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.machine.peer import Peer, PeerLimits, read_comm


@pytest.mark.parametrize(("uid", "privileged"), [(0, True), (1000, True), (1001, False), (65534, False)])
def test_owner_and_root_are_administrators(uid: int, privileged: bool) -> None:
    assert Peer.from_credentials(os.getpid(), uid, 1, owner_uid=1000).privileged is privileged


def test_the_comm_is_read_from_proc() -> None:
    with open("/proc/self/comm", "rb") as file:
        assert read_comm(os.getpid()) == file.read().strip()
    assert read_comm(0) == b"<...>"
    assert read_comm(2**30) == b"<...>"


def test_a_user_has_so_many_connections() -> None:
    limits = PeerLimits(max_connections_per_uid=2)
    plain = Peer(1, 1000, 1000, privileged=False)
    other = Peer(2, 1001, 1001, privileged=False)
    limits.enter(plain)
    limits.enter(plain)
    with pytest.raises(TraceError) as caught:
        limits.enter(plain)
    assert caught.value.errno == errno.EMFILE
    limits.enter(other)
    assert limits.connections(1000) == 2
    limits.leave(plain)
    limits.enter(plain)
    limits.leave(plain)
    limits.leave(plain)
    assert limits.connections(1000) == 0


def test_administrators_are_counted_and_not_refused() -> None:
    limits = PeerLimits(max_connections_per_uid=1)
    root = Peer(1, 0, 0, privileged=True)
    limits.enter(root)
    limits.enter(root)
    assert limits.connections(0) == 2
