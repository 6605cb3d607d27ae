"""Which process it is, as /proc says it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs.mount.processes.procfs import start_time_of, stat_of

NOBODY = 2**22 - 1


@pytest.fixture
def name() -> Iterator[bytes]:
    """Ours, meanwhile, with what looks like fields."""
    path = Path("/proc/self/comm")
    before = path.read_bytes().removesuffix(b"\n")
    path.write_bytes(b") S 1 (")
    yield b") S 1 ("
    path.write_bytes(before)


def test_ourselves(name: bytes) -> None:
    found = stat_of(os.getpid())
    assert found is not None
    text = Path("/proc/self/stat").read_bytes()
    fields = text.replace(b"(" + name + b")", b"name").split()
    assert fields[0] == str(os.getpid()).encode()
    assert (found.pid, found.ppid) == (os.getpid(), os.getppid())
    assert [found.start_time, found.start_stack] == [int(fields[21]), int(fields[27])]
    assert start_time_of(os.getpid()) == found.start_time


def test_nobody() -> None:
    assert stat_of(NOBODY) is None
    assert start_time_of(NOBODY) is None


def test_one_that_has_ended() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = stat_of(pid)
    assert found is not None and found.start_stack == 0 and found.ppid == os.getpid()
    os.waitpid(pid, 0)
    assert stat_of(pid) is None


@pytest.mark.parametrize("call", ["open", "read"])
def test_a_process_ends_while_it_is_looked_up(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def ended(*_: object) -> bytes:
        raise ProcessLookupError(errno.ESRCH, "No such process")

    assert stat_of(os.getpid()) is not None
    with monkeypatch.context() as patched:
        patched.setattr(os, call, ended)
        assert stat_of(os.getpid()) is None


def test_one_that_we_may_not_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """With /proc mounted with hidepid=1."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert start_time_of(1) is None
        with pytest.raises(PermissionError):
            stat_of(1)


def test_what_is_no_such_file(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "read", lambda *_: b"1 (a) S 2")
        assert stat_of(1) is None
