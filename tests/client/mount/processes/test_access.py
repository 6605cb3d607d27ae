"""Obstacles to reading another process's memory, and their remedies."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from tests.client.mount.kernel.canary import Canary
from utracefs.mount.processes import access
from utracefs.mount.processes.access import status_of, why_not


@pytest.fixture
def yama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not there, as without Yama, until somebody writes to it."""
    path = tmp_path / "ptrace_scope"
    monkeypatch.setattr(access, "YAMA", path)
    return path


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """We, without a capability; and another process, if it is put here."""
    ours = {"Uid": [1000] * 4, "Gid": [1000] * 4, "CapPrm": [0], "CapEff": [0], "Tgid": [1]}
    theirs = {**ours, "Tgid": [2]}
    monkeypatch.setattr(access, "status_of", lambda pid: ours if pid == "self" else theirs)
    return theirs


def refused(monkeypatch: pytest.MonkeyPatch, owner: int = 1000) -> str:
    """The answer for process 2, whose memory may not be opened and whose files in /proc have this owner."""

    def refuse(*_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "stat", lambda _: os.stat_result((0, 0, 0, 0, owner, 0, 0, 0, 0, 0)))
    answer = why_not(2)
    assert answer is not None
    return answer


def test_nothing_does(yama: Path, canary: Canary) -> None:
    assert why_not() is None
    assert why_not(canary.pid) is None


def test_no_number_here() -> None:
    assert "pid namespace" in str(why_not(0))
    assert "there is no process" in str(why_not(2**22 - 1))


@pytest.mark.parametrize(
    ("theirs", "owner", "says"),
    [
        ({"Uid": [5, 5, 5, 5]}, 1000, "process 2 runs as user id 5, we as 1000: run the mount as that user"),
        ({"Uid": [1000, 0, 0, 0]}, 1000, "runs as user id 0"),
        ({"Gid": [1000, 4, 4, 4]}, 1000, "group id 4"),
        ({"CapPrm": [1 << 10]}, 1000, "capabilities"),
        ({}, 0, "PR_SET_DUMPABLE"),
        ({}, 1000, "security module"),
    ],
)
def test_what_does(
    yama: Path,
    ordinary: dict[str, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    theirs: dict[str, list[int]],
    owner: int,
    says: str,
) -> None:
    ordinary.update(theirs)
    assert says in refused(monkeypatch, owner)


@pytest.mark.parametrize(
    "scope, says", [("1", "PR_SET_PTRACER"), ("2", "sysctl kernel.yama"), ("3", "until the next boot")]
)
def test_yama(
    yama: Path, ordinary: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch, scope: str, says: str
) -> None:
    yama.write_text(scope + "\n")
    for answer in (refused(monkeypatch), str(why_not())):
        assert f"ptrace_scope is {scope}" in answer
        assert says in answer
        assert ("PR_SET_PTRACER" in answer) == (scope == "1")
        assert "libutracefs-preload.so" in answer


def test_yama_lets_root(yama: Path, ordinary: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    yama.write_text("2\n")
    able = {**ordinary, "CapEff": [1 << 19]}
    monkeypatch.setattr(access, "status_of", lambda _: able)
    assert why_not() is None
    yama.write_text("3\n")
    assert "3" in str(why_not())
    yama.write_text("?\n")
    assert why_not() is None


def test_status(monkeypatch: pytest.MonkeyPatch) -> None:
    status = status_of("self")
    assert status == status_of(os.getpid())
    assert status["Tgid"] == [os.getpid()]
    assert status["Uid"][:3] == list(os.getresuid())
    assert status["Gid"][:3] == list(os.getresgid())
    with pytest.raises(OSError) as caught:
        status_of(2**22 - 1)
    assert caught.value.errno == errno.ESRCH
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"Tgid:\t1\n")
    with pytest.raises(OSError) as caught:
        status_of(1)
    assert caught.value.errno == errno.ESRCH


ASK = """
import ctypes, os, signal, sys
sys.path.insert(0, sys.argv[1])
from access import why_not
print(why_not(1))
pid = os.fork()
if pid == 0:
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
os.waitpid(pid, os.WUNTRACED)
print(why_not(pid))
os.kill(pid, signal.SIGKILL)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_what_the_kernel_refuses() -> None:
    """As an ordinary user: init, and a process of our own that may not be dumped."""
    folder = os.fspath(Path(access.__file__).parent)
    done = subprocess.run(
        ["/usr/bin/env", "python3", "-c", ASK, folder],
        capture_output=True,
        check=False,
        text=True,
        user=65534,
        group=65534,
        extra_groups=[],
        env={"PATH": "/usr/bin:/bin"},
    )
    if done.returncode == 127:
        pytest.skip("no Python that everybody may run")
    init, own = done.stdout.splitlines()
    assert init.startswith("process 1 runs as user id 0, we as 65534")
    assert "is not dumpable" in own
