"""The client against the real daemon: what the fake one cannot prove."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import wait_for
from tests.client.real_daemon import Utracefsd, running
from utracefs import LoggingHandler, Session
from utracefs.tracefs import Tracefs

pytestmark = pytest.mark.usefixtures("patience")


@pytest.fixture(params=["ring", "socket"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records travel: all of this holds for both."""
    monkeypatch.setenv("UTRACEFS_DATA_RING", "1" if request.param == "ring" else "0")
    return str(request.param)


@pytest.fixture
def utracefsd(directory: Path, transport: str) -> Iterator[Utracefsd]:
    yield from running(directory)


@pytest.fixture
def session(utracefsd: Utracefsd, new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture
def tree(utracefsd: Utracefsd) -> Iterator[Tracefs]:
    with Tracefs(str(utracefsd.directory)) as tree:
        yield tree


def stats(tree: Tracefs, name: str) -> str:
    return tree.read_file(f"events/user_events/{name}/stats").decode()


def test_a_record_all_the_way(session: Session, tree: Tracefs) -> None:
    event = session.event(
        "shop u16 status; u64 usec; char[8] kind; __rel_loc char[] path; __data_loc char[] user"
    )
    assert not event
    event.emit("not looked at")
    tree.write_file("events/user_events/shop/enable", b"1\n")
    assert event
    event.emit(200, 1834, "get", "/index.html", user="åsa")
    assert session.flush()
    trace = tree.read_file("trace").decode()
    assert "shop: status=0xc8 (200) usec=0x72a (1834) kind=get path=/index.html user=åsa" in trace
    assert f"-{os.getpid()} " in trace
    tree.write_file("events/user_events/shop/enable", b"0\n")
    assert not event
    assert session.stats().emitted == 1


def test_registering_finds_the_daemons_reasons(session: Session, new_session: Callable[..., Session]) -> None:
    assert not session.event("shop u16 status")
    other = new_session().event("shop u32 status")
    logging.getLogger("utracefs").disabled = True
    try:
        assert not other
        wait_for(lambda: other.error)
    finally:
        logging.getLogger("utracefs").disabled = False
    assert other.error is not None
    assert other.error.errno_name == "EADDRINUSE"


def test_every_record_is_somewhere(transport: str, session: Session, tree: Tracefs) -> None:
    """A short script's worth, faster than the daemon: emitted = recorded + lost, here and there."""
    event = session.event("flood u64 a; u64 b")
    assert not event
    tree.write_file("buffer_size_kb", b"8192")
    tree.write_file("events/user_events/flood/enable", b"1")
    for i in range(100_000):
        event.emit(i, b=i)
    assert session.flush(20)
    mine = session.stats()
    assert mine.emitted == 100_000 == mine.sent + mine.lost
    # What did not fit a data ring is told in it; what did not fit the FIFO, this process alone knows.
    lost = mine.lost if transport == "ring" else 0
    in_rings = f"lost in data rings: {lost}\n" if lost else ""
    expected = f"emitted: {mine.sent + lost}\n{in_rings}ftrace: recorded {mine.sent} filtered 0 lost {lost}\n"
    assert expected in stats(tree, "flood")


def test_records_for_an_event_that_was_disabled_meanwhile_are_told_back(
    session: Session, tree: Tracefs
) -> None:
    event = session.event("late u32 a")
    assert not event
    tree.write_file("events/user_events/late/enable", b"1")
    assert event

    # Between the daemon's two deeds, taking in and turning off, there is time for some.
    deadline = time.monotonic() + 0.02
    while time.monotonic() < deadline:
        event.emit(1)
    tree.write_file("events/user_events/late/enable", b"0")
    session.flush()
    mine = session.stats()
    recorded = int(stats(tree, "late").partition("recorded ")[2].split()[0])
    wait_for(lambda: recorded + session.stats().refused == mine.sent)
    assert set(event.refused) <= {"EBADF"}


def test_a_new_daemon(utracefsd: Utracefsd, session: Session) -> None:
    one, two = session.events(["one u32 a", "two u32 a"])
    assert not one
    with Tracefs(str(utracefsd.directory)) as tree:
        tree.write_file("events/user_events/enable", b"1")
    assert one
    one.emit(1)
    assert session.flush()
    utracefsd.stop()
    wait_for(lambda: not one and not two)
    two.emit(2)
    utracefsd.start()
    wait_for(lambda: session.stats().connected and one.registered, 10)
    with Tracefs(str(utracefsd.directory)) as tree:
        tree.write_file("events/user_events/two/enable", b"1")
        assert two
        two.emit(3)
        assert session.flush()
        assert b"two: a=0x3 (3)" in tree.read_file("trace")


def test_registering_4000_events(session: Session) -> None:
    first = session.event("first u8 a")
    assert not first
    texts = [f"many_{i} u64 a; u32 b" for i in range(4000)]
    events = session.events(texts)
    wait_for(lambda: all(event.registered for event in events), 20)


def test_workers_that_are_forked(session: Session, utracefsd: Utracefsd, tree: Tracefs) -> None:
    event = session.event("worker u32 who")
    assert not event
    tree.write_file("events/user_events/worker/enable", b"1")
    children = []
    for who in range(5):
        pid = os.fork()
        if not pid:
            event.emit(who)
            os._exit(0 if session.flush(10) else 1)
        children.append(pid)
    for pid in children:
        assert os.waitpid(pid, 0)[1] == 0
    trace = tree.read_file("trace").decode()
    for who, pid in enumerate(children):
        assert any(
            f"-{pid} " in line and line.endswith(f"worker: who={who:#x} ({who})")
            for line in trace.splitlines()
        )


def test_logging(session: Session, tree: Tracefs) -> None:
    logger = logging.getLogger("shop")
    handler = LoggingHandler(session=session)
    logger.addHandler(handler)
    try:
        logger.error("before")
        tree.write_file("events/user_events/python_log/enable", b"1")
        logger.error("%d items are %s", 3, "gone")
        assert session.flush()
        assert b"level=0x28 (40)" in tree.read_file("trace")
        assert b"message=3 items are gone" in tree.read_file("trace")
        assert b"before" not in tree.read_file("trace")
    finally:
        logger.removeHandler(handler)
