"""`utracefs forward nats://...` between a daemon and a nats-server that is killed: its sum."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.nats.server import NatsServer
from tests.integration.conftest import DaemonProcess
from tests.integration.forward.conftest import WAIT_S, Start, stop
from tests.judges import library
from utracefs import Session
from utracefs.forward.nats_messages import Arrived, Reader
from utracefs.nats.jetstream import JetStream

library("pyarrow")

EVENT = "user_events:work"


@pytest.fixture
def start(forward: Start, server: NatsServer) -> Start:
    words = [f"nats://{server.at}/RECORDS", "-O", "max_bytes=1G", "-e", "work", "--timeout", "20"]
    return lambda spool="spool": forward(*words, spool=spool)


def emit(session: Session, first: int, end: int) -> None:
    event = session.event("work u32 a")
    wait_for(lambda: event.registered and event, WAIT_S)
    for number in range(first, end):
        event.emit(number)
    assert session.flush(WAIT_S)


def read(server: NatsServer) -> list[Arrived]:
    found = []
    with server.connection() as connection, Reader(JetStream(connection), "RECORDS") as reader:
        while reader.pending:
            one = reader.next(WAIT_S)
            assert one is not None
            found.append(one)
        assert not reader.vanished and not reader.invalid
    return found


def values(found: list[Arrived]) -> list[int]:
    return [v for one in found for t in one.tables.get(EVENT, ()) for v in t.column("a").to_pylist()]


def total(found: list[Arrived]) -> Counter[tuple[str, str]]:
    """Records arrived and lost, by host and event."""
    sums: Counter[tuple[str, str]] = Counter()
    for one in found:
        for event, count in one.counts.items():
            sums[one.host, event] += count
        for loss in one.losses:
            sums[one.host, loss.event] += loss.count or 0
    return sums


def test_emitted_is_arrived_and_lost(
    daemon: DaemonProcess, server: NatsServer, session: Session, start: Start
) -> None:
    """The server is killed meanwhile, and away."""
    process = start()
    emit(session, 0, 5000)
    server.kill()
    emit(session, 5000, 10_000)
    server.start()
    emit(session, 10_000, 15_000)
    stop(process)
    found = read(server)
    with daemon.tree() as tree:
        emitted = re.match(rb"emitted: (\d+)\n", tree.read_file("events/user_events/work/stats"))
    assert emitted
    (sums,) = total(found).values()
    assert sums == int(emitted[1]) == 15_000
    assert values(found) == list(range(15_000))
