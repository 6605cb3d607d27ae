"""Where a program in C finds its daemon, and one that comes late. Their ends: tests/simulation/clients.py."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.c.programs import Program, started
from tests.client.c.test_emit import lines
from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.integration.conftest import DaemonProcess, running


def emit(program: Program, number: int) -> tuple[int, int, int]:
    """(lost, enabled, error): of which the emit itself comes between enabled and lost."""
    lost, enabled, error = map(int, re.findall(r"\d+", program.ask(number)))
    return lost, enabled, error


def values(daemon: DaemonProcess) -> list[int]:
    return [int(n) for line in lines(daemon, "c_count") for n in re.findall(r" i=0x\w+ \((\d+)\)", line)]


def test_the_daemon_comes_late(directory: Path, built: Path) -> None:
    with started(built / "tests" / "emitting", "steady") as program:
        assert emit(program, 0) == (0, 0, 107)
        with running(directory) as daemon, daemon.tree() as tree:
            wait_for(lambda: emit(program, 1)[2] == 0)
            tree.write_file("events/user_events/c_count/enable", b"1")
            assert emit(program, 5) == (0, 1, 0)
            tree.write_file("events/user_events/c_count/enable", b"0")
            assert emit(program, 6) == (0, 0, 0)
            assert values(daemon) == [5]


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
