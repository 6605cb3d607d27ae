"""A mount namespace for one command, without the command line (that: cli/run/test_traced_command.py)."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import running
from tests.integration.mount.mounting import must_mount
from utracefs.mount import own_namespace
from utracefs.mount.attaching import is_attached
from utracefs.mount.own_namespace import MOUNTPOINT, OwnNamespace


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    """Directory of a daemon, where mounts can be made."""
    must_mount(tmp_path / "probe")
    if not os.path.isdir(MOUNTPOINT):
        pytest.skip(f"no {MOUNTPOINT}")
    with tempfile.TemporaryDirectory(prefix="ut-", dir="/tmp") as folder, running(f"{folder}/d") as daemon:
        yield daemon.directory


@pytest.fixture
def namespace(directory: str) -> Iterator[OwnNamespace]:
    with OwnNamespace(directory) as entered:
        yield entered


def in_there(namespace: OwnNamespace, script: str, cwd: Path) -> str:
    return subprocess.run(
        ["sh", "-c", script],
        preexec_fn=namespace.enter,
        cwd=cwd,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def test_only_the_entering_process_sees_it(namespace: OwnNamespace, tmp_path: Path) -> None:
    before = open_descriptors()
    script = f"cat {MOUNTPOINT}/current_tracer; pwd -P; ls -d /proc/self/fd/* | wc -l"
    tracer, cwd, fds = in_there(namespace, script, tmp_path).splitlines()
    assert tracer == "nop"
    assert cwd == os.path.realpath(os.getcwd()), "as it was when the namespace was made"
    assert int(fds) <= 4, "not our own"
    assert not is_attached(MOUNTPOINT)
    assert open_descriptors() == before


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_nothing_is_left(directory: str) -> None:
    before = open_descriptors()
    for _ in range(2):
        with OwnNamespace(directory) as namespace:
            child = subprocess.Popen(["true"], preexec_fn=namespace.enter)  # noqa: PLW1509
            namespace.started(child.pid)
            child.wait()
        assert namespace.server.returncode == 0
    assert open_descriptors() == before


def test_the_recorder_is_killed_at_once(namespace: OwnNamespace) -> None:
    words = ["sh", "-c", f"read x; cat {MOUNTPOINT}/current_tracer"]
    with subprocess.Popen(
        words,
        preexec_fn=namespace.enter,  # noqa: PLW1509
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        namespace.sock.close()
        with pytest.raises(subprocess.TimeoutExpired):
            namespace.server.wait(1)
        assert child.communicate(b"\n")[0] == b"nop\n"


def test_a_mount_that_cannot_be_says_why(tmp_path: Path) -> None:
    before = open_descriptors()
    with pytest.raises(OSError) as caught:
        OwnNamespace(str(tmp_path / "nowhere"))
    assert caught.value.filename in (f"{tmp_path}/nowhere/tracefs", MOUNTPOINT, "--kernel-abi", "/dev/fuse")
    assert open_descriptors() == before


def test_a_mount_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over at once."""
    monkeypatch.setattr(own_namespace, "START_S", 1e-6)
    monkeypatch.setattr(own_namespace, "END_S", 1e-6)
    with pytest.raises(TimeoutError, match="is not mounted after"):
        OwnNamespace(str(tmp_path))


def test_no_such_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(own_namespace, "MOUNTPOINT", str(tmp_path / "tracing"))
    with pytest.raises(FileNotFoundError, match="without --kernel-abi the command gets the preload library"):
        own_namespace.unshare(own_namespace.MOUNTPOINT)


CHROOT = """
import ctypes, os, sys
from utracefs.mount import own_namespace
top = sys.argv[1]
def mount(source, target, kind=b"tmpfs", flags=0):
    assert not ctypes.CDLL(None).mount(source, target.encode(), kind, ctypes.c_ulong(flags), None)
own_namespace.has_cap_sys_admin = lambda: True
own_namespace.unshare(top)
mount(top.encode(), top, flags=0x1000)
mount(b"none", top, flags=1 << 20)  # shared
if not os.fork():
    os.chroot(top + "/root")
    os.chdir("/work")
    own_namespace.unshare("/place")
    assert os.getcwd() == "/work" and sorted(os.listdir("/")) == ["place", "work"]
    mount(b"none", "/place")
    os._exit(0)
print(os.wait()[1], top + "/root/place" in open("/proc/self/mounts").read())
"""


def test_in_a_chroot_that_is_no_mount(tmp_path: Path) -> None:
    """A mount there is nowhere else."""
    must_mount(tmp_path / "probe")
    for name in ("place", "work"):
        (tmp_path / "root" / name).mkdir(parents=True)
    assert subprocess.check_output([sys.executable, "-c", CHROOT, tmp_path], text=True) == "0 False\n"
