"""The parts together, without a loop: what is saved before a response, and the results of a step."""

from __future__ import annotations

import os
import re
import select
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgpack
import pytest

from tests.daemon.restarting import daemon_in, logged
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.connection import encode_request
from utracefsd.connections.port import Port
from utracefsd.machine.shares import Resource
from utracefsd.state.log import parse_log


class Around:
    """A daemon and its clients; `turn` runs a port's steps without `hand_on` at their end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.daemon = daemon_in(folder, started_ms=time.time_ns() // 1_000_000)
        self.clients: list[socket.socket] = []

    def connect(self, port: Port) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.settimeout(60)
        self.clients.append(theirs)
        port.add(ours)
        return theirs

    def turn(self, port: Port) -> None:
        for accepted in port.ready():
            port.pump(accepted)

    def ask(
        self, port: Port, client: socket.socket, method: str, *params: Any, fds: Sequence[int] = ()
    ) -> Any:
        socket.send_fds(client, [encode_request(1, method, list(params))], fds)
        until = time.monotonic() + 60
        while not select.select([client], [], [], 0)[0]:  # a step that began late leaves the rest to the next
            assert time.monotonic() < until
            self.turn(port)
        return msgpack.unpackb(client.recv(1 << 20))[3]

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.daemon.close()


@pytest.fixture
def around(folder: Path) -> Iterator[Around]:
    made = Around(folder)
    yield made
    made.close()


def test_numbers_without_an_event_are_one_line_of_the_state(around: Around) -> None:
    """A line for each took 0.1 s of one request."""
    daemon = around.daemon
    producer = around.connect(daemon.data)
    fds = MadeRing.make(65536)
    around.ask(daemon.data, producer, "adopt_ring", {}, fds=fds)
    for fd in fds:
        os.close(fd)
    daemon.rings.on_grown = grown = Mock(side_effect=daemon.rings.on_grown)
    around.ask(daemon.data, producer, "DIAG_IOCSREG", {"name_args": "one u32 n", "write_index": 65535})
    assert grown.call_count == 1
    (ring,) = parse_log(logged(around.folder)).rings.values()
    assert len(ring.event_ids) == 65536


def test_held_resources_and_their_limits(around: Around) -> None:
    daemon = around.daemon
    producer, tree = around.connect(daemon.data), around.connect(daemon.tracefs)
    around.ask(daemon.data, producer, "DIAG_IOCSREG", {"name_args": "one u32 n"})
    daemon.data._scheduler.charge(os.geteuid(), 0, 5_000_000_000)
    text = around.ask(daemon.tracefs, tree, "read_file", "daemon_stats").decode()
    assert text.startswith(f"faults: 0\npid: {os.getpid()}\n")
    numbers = dict(re.findall(r"^(\w.*): (\d+)", text, re.MULTILINE))
    assert abs(int(numbers["started, ms since 1970"]) - time.time_ns() // 1_000_000) < 3_600_000
    assert int(numbers["resident memory, in bytes"]) > 1 << 20
    assert "\nconnections to the tree: 1 of 256\n" in text
    assert "\nconnections to be accepted: 0\nconnections refused: 0\n" in text
    uid, most = os.geteuid(), daemon.shares.most_of(Resource.EVENTS, os.geteuid())
    assert f"\nevents: 1 of {daemon.shares.in_all[Resource.EVENTS]}\n  user {uid}: 1 of {most}\n" in text
    lately = text.partition("\ntime of the daemon lately, in ms:\n")[2]
    assert lately.startswith(f"  user {uid}: ")
    assert float(lately.split()[2]) > 0


@pytest.mark.parametrize("remove_state", [False, True])
def test_at_its_end_it_leaves_no_record_unread(
    folder: Path, monkeypatch: pytest.MonkeyPatch, remove_state: bool
) -> None:
    """Before its last look a record is taken in; later the program cannot send it, and keeps it. Plug-ins and
    readers of streams get it also where no state is kept."""
    around = Around(folder)
    daemon = around.daemon
    daemon.remove_state = remove_state
    tree = around.connect(daemon.tracefs)
    producer = around.connect(daemon.data)
    index = around.ask(daemon.data, producer, "DIAG_IOCSREG", {"name_args": "one u32 n"})["write_index"]
    around.ask(daemon.tracefs, tree, "write_file", "events/user_events/one/enable", b"1", True)
    [event] = daemon.table.events()
    record = msgpack.packb(index.to_bytes(4, "little") + bytes(4))
    take_in_all, hand_over = daemon.data.take_in_all, daemon.rings.hand_over
    publish, close_tree = daemon.streams.publish, daemon.tracefs.close
    sent = published = 0

    def and_more() -> None:
        nonlocal sent
        take_in_all()
        producer.sendall(record * 1000)
        sent += 1000

    def too_late() -> None:
        with pytest.raises(BrokenPipeError):
            producer.sendall(record)
        hand_over()

    def note_published() -> None:
        nonlocal published
        publish()
        published = event.tracepoint.emitted

    def all_is_published() -> None:
        assert published == event.tracepoint.emitted == sent
        close_tree()

    monkeypatch.setattr(type(daemon.streams), "publish", lambda _streams: note_published())
    monkeypatch.setattr(daemon.tracefs, "close", all_is_published)
    monkeypatch.setattr(daemon.data, "take_in_all", and_more)
    monkeypatch.setattr(daemon.rings, "hand_over", too_late)
    daemon.close()
    assert event.tracepoint.emitted == sent > 0
    for client in around.clients:
        client.close()
