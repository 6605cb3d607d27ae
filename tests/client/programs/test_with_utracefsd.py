"""The client against the real daemon: what the fake one cannot prove."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess, running
from utracefs import Session
from utracefs.tree.tracefs import Tracefs


@pytest.fixture(params=["ring", "socket"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How records travel: all of this holds for both."""
    monkeypatch.setenv("UTRACEFS_DATA_RING", "1" if request.param == "ring" else "0")
    return str(request.param)


@pytest.fixture
def utracefsd(directory: Path, transport: str) -> Iterator[DaemonProcess]:
    with running(directory) as process:
        yield process


@pytest.fixture
def session(utracefsd: DaemonProcess, new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture
def tree(utracefsd: DaemonProcess) -> Iterator[Tracefs]:
    with Tracefs(utracefsd.directory) as tree:
        yield tree


def stats(tree: Tracefs, name: str) -> str:
    return tree.read_file(f"events/user_events/{name}/stats").decode()


def test_refusals_of_a_child(session: Session, tree: Tracefs) -> None:
    event = session.event("refusing u32 a")
    wait_for(lambda: not event)
    tree.write_file("events/user_events/refusing/enable", b"1")
    assert event
    pid = os.fork()
    if not pid:
        event.emit(None)  # type: ignore[arg-type]
        session.flush(60)
        os._exit(0)
    os.waitpid(pid, 0)
    wait_for(lambda: stats(tree, "refusing").startswith("emitted: 0\nrefused: 1 a was None\n"))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_refusals_that_find_no_room(
    utracefsd: DaemonProcess,
    new_session: Callable[..., Session],
    tree: Tracefs,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are lost, and the program and the daemon count the same."""
    monkeypatch.setenv("UTRACEFS_RING_KB", "64")
    monkeypatch.setenv("UTRACEFS_BUFFER_KB", "64")
    event = new_session().event("refusing u32 a")
    wait_for(lambda: not event)
    tree.write_file("events/user_events/refusing/enable", b"1")
    with utracefsd.paused():
        for _ in range(50_000):
            event.emit(None)  # type: ignore[arg-type]
    assert event.emitted == 50_000
    counted, lost = event.refused["a was None"], event.lost
    assert counted > 0 and lost > 0 and counted + lost == 50_000
    expected = f"emitted: {lost}\nlost in data rings: {lost}\nrefused: {counted} a was None\n"
    wait_for(lambda: stats(tree, "refusing").startswith(expected))


def test_what_a_handler_emits_while_its_thread_waits_is_of_that_thread(
    utracefsd: DaemonProcess, session: Session, tree: Tracefs
) -> None:
    tree.write_file("standing_events", b"user_events:waiting\n")
    utracefsd.signal(signal.SIGSTOP)
    event = session.event("waiting u32 a")

    def handler(signum: int, frame: FrameType | None) -> None:
        utracefsd.signal(signal.SIGCONT)
        event.emit(1)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    event.emit(0)
    try:
        assert session.flush(60)
    finally:
        signal.signal(signal.SIGALRM, before)
    wait_for(lambda: b"waiting: a=0x1" in tree.read_file("trace"))
    assert f"-{os.getpid()} ".encode() in tree.read_file("trace").splitlines()[-1]


def test_a_relative_directory(
    utracefsd: DaemonProcess, tree: Tracefs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(utracefsd.directory).parent)
    session = Session(Path(utracefsd.directory).name)
    event = session.event("step u32 n")
    wait_for(lambda: event.registered)
    tree.write_file("events/user_events/step/enable", b"1")
    os.chdir("/")
    child = os.fork()
    if not child:
        event.emit(5)
        os._exit(not session.flush(60))
    assert os.waitpid(child, 0)[1] == 0
    session.close()
    assert b"step: n=0x5 (5)" in tree.read_file("trace")
