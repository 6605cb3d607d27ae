"""Who counts as an administrator."""

import os

import pytest

from utracefsd.machine.peer import Peer


@pytest.mark.parametrize(("uid", "privileged"), [(0, True), (1000, True), (1001, False), (65534, False)])
def test_owner_and_root_are_administrators(uid: int, privileged: bool) -> None:
    assert Peer.from_credentials(os.getpid(), uid, 1, owner_uid=1000).privileged is privileged
