"""The user whose limits count a user id."""

import os
from pathlib import Path

import pytest

from utracefsd.machine import subordinates
from utracefsd.machine.subordinates import share_of

PASSWD = b"root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\nbroken\n"


@pytest.fixture
def subuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "passwd").write_bytes(PASSWD)
    monkeypatch.setattr(subordinates, "PASSWD", tmp_path / "passwd")
    monkeypatch.setattr(subordinates, "SUBUID", tmp_path / "subuid")
    monkeypatch.setattr(subordinates, "_read_of", None)
    monkeypatch.setattr(subordinates, "_ranges", [])
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
