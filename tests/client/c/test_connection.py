"""A daemon that ends, is killed, comes back or starts late, as programs in C see it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.c.programs import Program, started
from tests.client.c.test_emit import WAYS, lines, of_way
from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.integration.conftest import DaemonProcess
from utracefs import Session
from utracefsd.server.runtime import locate


def emit(program: Program, number: int) -> tuple[int, int, int]:
    """(lost, enabled, error): of which the emit itself comes between enabled and lost."""
    lost, enabled, error = map(int, re.findall(r"\d+", program.ask(number)))
    return lost, enabled, error


def until(program: Program, wanted: Callable[[tuple[int, int, int]], bool], first: int) -> int:
    """Emits until the state is reached; returns how many of these emits were made while the event was on."""
    deadline = time.monotonic() + 60
    made = 0
    while True:
        answer = emit(program, first + made)
        made += answer[1]
        if wanted(answer):
            return made
        assert time.monotonic() < deadline, answer
        time.sleep(0.002)


def values(daemon: DaemonProcess) -> list[int]:
    return [int(n) for line in lines(daemon, "c_count") for n in re.findall(r" i=0x\w+ \((\d+)\)", line)]


@WAYS
@pytest.mark.parametrize("kill", [False, True])
def test_a_daemon_is_started_again(
    daemon: DaemonProcess, events_on: None, built: Path, way: str, kill: bool
) -> None:
    """The buffer has each emitted record once, from before and after."""
    with started(built / "tests" / "emitting", "steady", **of_way(way)) as program:
        number = 0
        for _ in range(3):
            for _ in range(100):
                assert emit(program, number) == (0, 1, 0)
                number += 1
            if way == "socket":
                deadline = time.monotonic() + 60
                while number - 1 not in values(daemon):
                    assert time.monotonic() < deadline
            daemon.stop(kill=kill)
            until(program, lambda answer: answer[1] == 0, 10_000_000)
            daemon.start()
            until(program, lambda answer: answer[1] == 1, 10_000_000)
    # (Records of several cpus that came in one read have one time.)
    assert sorted(n for n in values(daemon) if n < 10_000_000) == list(range(300))


def test_every_record_is_there_or_lost_whenever_the_daemon_is_killed(
    daemon: DaemonProcess, events_on: None, built: Path
) -> None:
    with daemon.tree() as tree:
        tree.write_file("buffer_size_kb", b"32768")
    with started(built / "tests" / "emitting", "busy") as program:
        for _ in range(4):
            seen = len(values(daemon))
            deadline = time.monotonic() + 60
            while len(values(daemon)) < seen + 1000:
                assert time.monotonic() < deadline
            daemon.stop(kill=True)
            daemon.start()
        assert program.process.stdin and program.process.stdout
        program.process.stdin.close()
        taken, lost = map(int, re.findall(r"\d+", program.process.stdout.read()))
    with daemon.tree() as tree:
        text = tree.read_file("trace").decode()
    found = re.findall(r" c_count: who=0x(\d) \(\d\) i=0x\w+ \((\d+)\)", text)
    assert len(found) == len(set(found)) == taken - lost
    assert taken > 4000


def test_records_that_no_daemon_will_have_are_counted_as_lost(
    daemon: DaemonProcess, events_on: None, built: Path, directory: Path
) -> None:
    """The next daemon knows nothing of the ring, and has another event of this name."""
    with started(built / "tests" / "emitting", "steady") as program:
        assert emit(program, 0) == (0, 1, 0)
        with daemon.tree() as tree:
            tree.read_file("trace")
        daemon.signal(signal.SIGSTOP)
        for number in range(1, 500):
            assert emit(program, number) == (0, 1, 0)
        program.process.send_signal(signal.SIGSTOP)
        daemon.stop(kill=True)
        shutil.rmtree(locate(str(directory)).status_folder)
        daemon.start()
        with Session(daemon.directory) as session:
            wait_for(lambda: not session.event("c_count u8 other"))
            assert session.event("c_count u8 other").error is None
            program.process.send_signal(signal.SIGCONT)
            # Until the program notices the end, some more are lost like the 499. They are counted after the
            # event is refused, with EADDRINUSE.
            more = until(program, lambda answer: answer[0] >= 499 and answer[1:] == (0, 98), 1_000_000)
            assert emit(program, 0)[0] <= 499 + more


def test_the_daemon_comes_late(directory: Path, built: Path) -> None:
    with started(built / "tests" / "emitting", "steady") as program:
        assert emit(program, 0) == (0, 0, 107)
        daemon = DaemonProcess(str(directory))
        daemon.start()
        try:
            until(program, lambda answer: answer[2] == 0, 1)
            with daemon.tree() as tree:
                tree.write_file("events/user_events/c_count/enable", b"1")
                assert emit(program, 5) == (0, 1, 0)
                tree.write_file("events/user_events/c_count/enable", b"0")
                assert emit(program, 6) == (0, 0, 0)
            assert values(daemon) == [5]
        finally:
            daemon.stop()


def test_the_directory_of_an_environment(
    daemon: DaemonProcess, events_on: None, built: Path, tmp_path: Path, directory: Path
) -> None:
    """XDG_RUNTIME_DIR counts without UTRACEFS_DIR; a name that is too long for a socket is none."""
    (tmp_path / "x").symlink_to(directory)
    (directory / "utracefs").symlink_to(directory)
    program = built / "tests" / "emitting"
    with started(program, "steady", UTRACEFS_DIR="", XDG_RUNTIME_DIR=str(directory)) as found:
        assert emit(found, 0) == (0, 1, 0)
    with started(program, "steady", UTRACEFS_DIR=f"/{'x' * 200}") as lost:
        assert emit(lost, 0) == (0, 0, 107)


USER = 4_294_900_000 + os.getpid() % 60_000


@pytest.fixture
def in_tmp(built: Path) -> Iterator[Path]:
    """/tmp/utracefs-USER, with a program that USER may start."""
    place = Path(f"/tmp/utracefs-{USER}")
    place.mkdir(mode=0o700)
    try:
        shutil.copy(built / "tests" / "emitting", place)
        shutil.copy(built / "libutracefs.so.0", place)
        yield place
    finally:
        shutil.rmtree(place)


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/usr/bin/setpriv"), reason="becomes another user"
)
@pytest.mark.parametrize("named", [False, True])
def test_a_directory_in_tmp_must_be_ours_alone(in_tmp: Path, named: bool) -> None:
    """Another user may have made it first. Also if it is named: places.py."""
    fake = FakeDaemon(in_tmp).start()
    try:
        (in_tmp / "user_events_data").chmod(0o777)
        for owner, mode, error in ((USER, 0o700, 0), (USER, 0o705, 107), (0, 0o755, 107)):
            in_tmp.chmod(mode)
            os.chown(in_tmp, owner, owner)
            environment = {"UTRACEFS_DIR": str(in_tmp) if named else "", "XDG_RUNTIME_DIR": ""}
            environment |= {"LD_LIBRARY_PATH": str(in_tmp)}
            words = (f"--reuid={USER}", "--clear-groups", in_tmp / "emitting", "steady")
            with started(Path("/usr/bin/setpriv"), *words, **environment) as program:
                assert emit(program, 0) == (0, 0, error), oct(mode)
        assert len(fake.clients) == 1
    finally:
        fake.stop()
