"""Which peers are administrators."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import attrs
import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.machine import peer as peer_module
from utracefsd.machine.peer import Peer, peer_of, share_of


@pytest.mark.parametrize(("uid", "privileged"), [(0, True), (1000, True), (1001, False), (65534, False)])
def test_owner_and_root_are_administrators(uid: int, privileged: bool) -> None:
    assert Peer.from_credentials(os.getpid(), uid, 1, owner_uid=1000).privileged is privileged


def test_peer_of() -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with one, other:
        peer = peer_of(one, owner_uid=os.geteuid())
        assert (peer.pid, peer.uid, peer.gid) == (os.getpid(), os.geteuid(), os.getegid())
        assert peer.privileged
        assert peer_of(one, owner_uid=os.geteuid() + 1).privileged == (os.geteuid() == 0)


def test_a_number_that_was_given_to_another_process_is_not_the_peer() -> None:
    peer = Peer.from_credentials(os.getpid(), 7, 7, owner_uid=0)
    assert peer.lives()
    assert peer.start_time is not None
    assert not attrs.evolve(peer, start_time=peer.start_time - 1).lives(), "the same pid, another process"
    assert not attrs.evolve(peer, start_time=None).lives()
    assert not Peer.from_credentials(0, 7, 7, owner_uid=0).lives(), "in a namespace that we do not see"


def test_a_process_that_was_gone_before_it_was_accepted() -> None:
    """Its connection is its child's. The present owner of the pid is not asked for a start time."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(b"\0utracefs-test-%d" % os.getpid())
        listener.listen()
        program = (
            "import os, socket, time; s = socket.socket(socket.AF_UNIX); "
            f"s.connect(b'\\0utracefs-test-{os.getpid()}'); os.fork() and os._exit(0); s.recv(1)"
        )
        process = subprocess.Popen([sys.executable, "-c", program])
        accepted, _ = listener.accept()
        with accepted:
            process.wait()
            peer = peer_of(accepted, owner_uid=0)
            assert peer.pid == process.pid
            assert peer.start_time is None
            assert not peer.lives()


def test_a_process_with_a_connection_on_its_behalf() -> None:
    own = Peer.from_credentials(os.getpid(), 7, 7, owner_uid=0)
    assert own.start_time is not None
    found = Peer.of_process(os.getpid(), own.start_time, 1000, 100, owner_uid=1000)
    assert (found.uid, found.gid, found.privileged, found.process) == (1000, 100, True, own.process)
    assert not Peer.of_process(os.getpid(), own.start_time, 1001, 100, owner_uid=1000).privileged
    with pytest.raises(TraceError, match="no process") as caught:
        Peer.of_process(os.getpid(), own.start_time + 1, 1000, 100, owner_uid=1000)
    assert caught.value.errno_name == "ESRCH"


def test_subordinate_users_have_their_owners_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_module, "share_of", lambda uid: 1000)
    assert Peer.from_credentials(os.getpid(), 100001, 7, owner_uid=0).share == 1000
    assert Peer(1, 7, 7, privileged=False).share == 7


PASSWD = b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\n"


@pytest.fixture
def subuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "passwd").write_bytes(PASSWD)
    monkeypatch.setattr(peer_module, "PASSWD", tmp_path / "passwd")
    monkeypatch.setattr(peer_module, "SUBUID", tmp_path / "subuid")
    peer_module._ranges.cache_clear()
    return tmp_path / "subuid"


def test_subordinate_ids_are_their_owner(subuid: Path) -> None:
    subuid.write_bytes(b"ann:100000:65536\n1001:200000:10\nafar:300000:10\nroot:1000000:65536\n")
    expected = {
        1000: 1000,
        99999: 99999,
        100000: 1000,
        165535: 1000,
        165536: 165536,
        200009: 1001,
        300009: 300000,  # a user that only a server knows: one at least
        1000001: 1000001,  # a container of the administrator's: users of their own
    }
    assert {uid: share_of(uid) for uid in expected} == expected


@pytest.mark.parametrize(
    "text", [b"", b"# nothing\n\n", b"ann\nann:\nann:x:y\nann:1:2:3\n:::\n", b"\xff\0:1:\n"]
)
def test_what_is_no_line_is_passed_over(subuid: Path, text: bytes) -> None:
    subuid.write_bytes(text)
    assert share_of(100000) == 100000


def test_a_change_is_seen_and_the_file_may_be_missing(subuid: Path) -> None:
    assert share_of(100000) == 100000
    subuid.write_bytes(b"ann:100000:1\n")
    assert share_of(100000) == 1000
    subuid.write_bytes(b"ann:100001:10\n")
    assert share_of(100000) == 100000
    os.unlink(subuid)
    assert share_of(100001) == 100001


def test_ordinary_ids_read_no_file(subuid: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "stat")
    assert share_of(1000) == 1000
