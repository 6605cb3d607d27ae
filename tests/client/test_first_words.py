"""What a forked child says first; here one process is both, and the fake daemon answers."""

from __future__ import annotations

import os
from pathlib import Path

from tests.client.conftest import descriptors
from tests.client.fake_daemon import FakeDaemon, wait_for
from utracefs._descriptors import Descriptor, receive
from utracefs.connection import Action, DataConnection, MapStatus, MoveAll
from utracefs.first_words import FirstWords
from utracefs.session import Session
from utracefs.tree.runtime_dir import DATA_SOCKET

ONE = b"first_words u32 a"


def test_they_are_answered_like_any_client(daemon: FakeDaemon, session: Session, directory: Path) -> None:
    event = session.event(ONE)
    assert not event
    words = FirstWords(os.path.join(directory, DATA_SOCKET), [event], [event], None)
    before = len(daemon.clients)
    spoken = words.speak()
    assert spoken is not None
    sock, connection = spoken
    wait_for(lambda: len(daemon.clients) > before and daemon.clients[-1].names == [ONE])
    actions: list[Action] = []
    while not actions or not isinstance(actions[-1], MoveAll):
        came: dict[int, Descriptor] = {}
        data = receive(sock, came)
        if data:
            actions += connection.receive(data, came)
    assert [type(one) for one in actions] == [MapStatus, MoveAll]
    assert isinstance(actions[0], MapStatus)
    os.close(actions[0].fd)
    assert [place[0] for place in actions[-1].places] == [event]
    sock.close()


def test_what_is_rehearsed_is_what_comes(session: Session) -> None:
    """All answers of the made-up daemon are understood; nothing is left to be answered."""
    event = session.event(ONE)
    words = FirstWords("/nowhere", [event], [], 1 << 20)
    rehearsed: DataConnection = words._rehearsed
    assert not rehearsed.is_idle([event])
    kinds = [type(one).__name__ for one in rehearsed.receive(words._answers, (0, 1, 2))]
    assert kinds == ["MapStatus", "MapRing", "MoveAll"]
    assert rehearsed.is_idle([event])


def test_without_a_daemon_nothing_is_left(session: Session, tmp_path: Path) -> None:
    event = session.event(ONE)
    assert not event  # it is answered
    words = FirstWords(os.path.join(tmp_path, "none"), [event], [], None)
    before = descriptors()
    assert words.speak() is None
    assert descriptors() == before
