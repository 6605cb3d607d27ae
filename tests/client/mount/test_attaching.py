"""Mounting by ourselves and by fusermount3, and what is said where that cannot be."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.mount.mounting import must_mount
from utracefs.mount import attaching
from utracefs.mount.attaching import attach, detach, is_attached

HELPER = """#!{python}
import array, os, socket, sys
open({log!r}, "w").write(repr(sys.argv[1:]))
if {status}:
    sys.exit("fusermount3: " + {reason!r})
with socket.socket(fileno=int(os.environ["_FUSE_COMMFD"])) as sock:
    fds = array.array("i", [os.open("/dev/null", os.O_RDWR)])
    sock.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)] if {sends} else [])
"""


class Helper:
    """A fusermount3 that only notes how it was called."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"

    def make(self, *, status: int = 0, reason: str = "", sends: bool = True) -> None:
        text = HELPER.format(
            python=sys.executable, log=str(self._log), status=status, reason=reason, sends=sends
        )
        path = self._folder / "fusermount3"
        path.write_text(text)
        path.chmod(0o755)

    @property
    def called(self) -> str:
        return self._log.read_text()


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Helper:
    """Not root, with a helper and a device."""
    monkeypatch.setattr(attaching, "_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(attaching, "has_cap_sys_admin", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return Helper(tmp_path)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[str]:
    must_mount(tmp_path / "tree")
    yield str(tmp_path / "tree")
    detach(str(tmp_path / "tree"))


class TestByOurselves:
    def test_there_and_gone(self, directory: str) -> None:
        assert not is_attached(directory)
        device = attach(directory)
        assert is_attached(directory)
        assert not os.get_blocking(device) and not os.get_inheritable(device)
        detach(directory)
        assert not is_attached(directory)
        detach(directory)
        os.close(device)

    def test_the_rest_of_a_killed_mount_is_removed(self, directory: str) -> None:
        os.close(attach(directory))
        with pytest.raises(OSError) as caught:
            os.listdir(directory)
        assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        device = attach(directory)
        detach(directory)
        assert not is_attached(directory)
        os.close(device)

    def test_names_with_blanks(self, directory: str) -> None:
        odd = os.path.join(directory, "a b\tc\\d")
        os.mkdir(odd)
        device = attach(odd)
        assert is_attached(odd)
        detach(odd)
        os.close(device)
        os.rmdir(odd)

    def test_what_is_no_directory(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        for name, number in (("file", errno.ENOTDIR), ("none", errno.ENOENT)):
            with pytest.raises(OSError) as caught:
                attach(str(tmp_path / name))
            assert (caught.value.errno, caught.value.filename) == (number, str(tmp_path / name))


class TestByTheHelper:
    def test_it_gives_the_descriptor(self, helper: Helper, tmp_path: Path) -> None:
        helper.make()
        device = attach(str(tmp_path), allow_other=True)
        assert os.readlink(f"/proc/self/fd/{device}") == "/dev/null"
        assert not os.get_inheritable(device)
        os.close(device)
        options = "fsname=utracefs,subtype=utracefs,nosuid,nodev,noexec,default_permissions,allow_other"
        assert helper.called == repr(["-o", options, "--", str(tmp_path)])

    def test_it_unmounts(self, helper: Helper, tmp_path: Path) -> None:
        detach(str(tmp_path))  # without one there is nothing that could have mounted
        helper.make()
        detach(str(tmp_path))
        assert helper.called == repr(["-u", "-q", "-z", "--", str(tmp_path)])

    def test_what_it_refuses(self, helper: Helper, tmp_path: Path) -> None:
        helper.make(status=1, reason="option allow_other only allowed if 'user_allow_other' is set")
        with pytest.raises(PermissionError) as caught:
            attach(str(tmp_path))
        assert caught.value.strerror == (
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set"
        )

    def test_without_a_descriptor(self, helper: Helper, tmp_path: Path) -> None:
        helper.make(sends=False)
        with pytest.raises(OSError) as caught:
            attach(str(tmp_path))
        assert caught.value.errno == errno.EPROTO

    def test_none_is_installed(self, helper: Helper, tmp_path: Path) -> None:
        with pytest.raises(PermissionError, match="apt install fuse3"):
            attach(str(tmp_path))


@pytest.mark.parametrize(("mask", "has"), [(0xA80425FB, False), (0x1FFFFFFFFFF, True)])
def test_the_capability_to_mount(mask: int, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attaching, "status_of", lambda _: {"CapEff": [mask]})
    assert attaching.has_cap_sys_admin() is has


class TestWithoutFuse:
    @pytest.mark.parametrize("user", [0, 1000])
    def test_no_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int) -> None:
        monkeypatch.setattr(attaching, "_DEVICE", str(tmp_path / "fuse"))
        monkeypatch.setattr(os, "geteuid", lambda: user)
        monkeypatch.setattr(attaching, "has_cap_sys_admin", lambda: user == 0)
        with pytest.raises(FileNotFoundError, match="this machine has no FUSE") as caught:
            attach(str(tmp_path))
        assert caught.value.filename == str(tmp_path / "fuse")

    @pytest.mark.parametrize(
        ("number", "says"),
        [(errno.ENODEV, "the kernel has no FUSE"), (errno.EACCES, "chmod 666 /dev/fuse")],
    )
    def test_a_device_that_cannot_be_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str
    ) -> None:
        """EACCES is not what a container lacks: /dev/fuse is there."""

        def refuse(path: str, _flags: int) -> int:
            raise OSError(number, os.strerror(number), path)

        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(os, "open", refuse)
        with pytest.raises(OSError, match=says) as caught:
            attach(str(tmp_path))
        assert (caught.value.errno, caught.value.filename) == (number, "/dev/fuse")

    def test_not_allowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """mount(2) with what is no FUSE device, or without the right."""
        monkeypatch.setattr(attaching, "_DEVICE", "/dev/null")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError) as caught:
            attach(str(tmp_path))
        assert caught.value.filename == str(tmp_path)
        assert caught.value.errno in (errno.EINVAL, errno.EPERM)
        assert len(os.listdir("/proc/self/fd")) == before
