"""`doctor` about the ways for programs that use the kernel's user_events."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs.cli import c_client
from utracefs.cli.common import Finding
from utracefs.cli.look import kernel_abi
from utracefs.cli.look.kernel_abi import examine_kernel_abi
from utracefs.mount.own_namespace import MOUNTPOINT


def found(what: str, data_socket: str | None = None) -> Finding:
    (one,) = (finding for finding in examine_kernel_abi(data_socket) if finding.what == what)
    return one


def test_every_way_has_an_answer() -> None:
    findings = list(examine_kernel_abi(None))
    assert [one.what for one in findings] == [
        "preload library",
        "FUSE",
        MOUNTPOINT,
        "namespaces",
        "ptrace_scope",
        "kernel",
    ]
    assert {one.level for one in findings} <= {"ok", "note"}


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: not path.startswith("/proc/"))
    assert [one.what for one in examine_kernel_abi("/no/socket")] == ["preload library", "/proc"]


def test_a_preload_library_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_client, "preload_library", lambda: None)
    assert found("preload library").level == "note"


def test_a_preload_library_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "library.so"
    broken.write_text("no library")
    monkeypatch.setattr(c_client, "preload_library", lambda: str(broken))
    finding = found("preload library")
    assert finding.level == "FAIL" and f"{broken} does not load: " in finding.text


@pytest.mark.skipif(c_client.preload_library() is None, reason="the preload library was not built")
def test_a_preload_library_that_loads() -> None:
    assert found("preload library").level == "ok"


@pytest.mark.parametrize(
    ("number", "says"),
    [(errno.EACCES, "chmod 666"), (errno.ENOENT, "modprobe fuse"), (errno.EPERM, "--device")],
)
def test_no_fuse(number: int, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_device(path: str, flags: int) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(os, "open", no_device)
    finding = found("FUSE")
    assert finding.level == "note" and says in finding.text


def test_fuse_for_others_than_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_abi, "_FUSE", os.devnull)
    monkeypatch.setattr(kernel_abi, "has_cap_sys_admin", lambda: False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install fuse3" in found("FUSE").text


def test_no_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_abi, "has_cap_sys_admin", lambda: False)
    monkeypatch.setattr(kernel_abi, "try_user_namespace", lambda: errno.ENOSPC)
    finding = found("namespaces")
    assert finding.level == "note" and "user.max_user_namespaces" in finding.text
    monkeypatch.setattr(kernel_abi, "try_user_namespace", lambda: 0)
    assert found("namespaces").level == "ok"


def test_user_namespaces_are_tried_in_a_child() -> None:
    before = os.readlink("/proc/self/ns/user")
    assert kernel_abi.try_user_namespace() in (0, errno.EPERM, errno.ENOSPC, errno.EUSERS, errno.EINVAL)
    assert os.readlink("/proc/self/ns/user") == before


def test_no_mount_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mountpoint = str(tmp_path / "tracing")
    monkeypatch.setattr(kernel_abi, "MOUNTPOINT", mountpoint)
    assert found(mountpoint).level == "note"
    assert found("kernel").level == "ok"
    (tmp_path / "tracing").mkdir()
    (tmp_path / "tracing" / "user_events_data").touch()
    assert found(mountpoint).level == "ok"
    assert "use the kernel's" in found("kernel").text


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        yield str(tmp_path / "s")


def test_a_daemon_in_our_pid_namespace(listening: str) -> None:
    assert found("pid namespace", listening).level == "ok"


def test_a_daemon_in_another_pid_namespace(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(struct, "unpack", lambda *_: (0, 0, 0))
    assert found("pid namespace", listening).level == "note"


def test_a_daemon_in_a_pid_namespace_below_ours(listening: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_abi, "pid_namespaces", lambda _pid: 2)
    finding = found("pid namespace", listening)
    assert finding.level == "note" and "--pid=host" in finding.text


def test_a_daemon_that_is_gone(tmp_path: Path) -> None:
    whats = [finding.what for finding in examine_kernel_abi(str(tmp_path / "none"))]
    assert "kernel" in whats and "pid namespace" not in whats


def test_yama(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_abi, "why_not", lambda: "ptrace_scope is 3")
    assert found("ptrace_scope") == Finding("note", "ptrace_scope", "ptrace_scope is 3")
