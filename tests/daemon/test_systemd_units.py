"""The files in systemd/: systemd's own tools accept them, and they agree with the daemon."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.judges import needs
from utracefs_protocol.places import DATA_SOCKET, TRACEFS_SOCKET
from utracefsd.main import main
from utracefsd.server import runtime

FOLDER = Path(__file__).parents[2] / "systemd"
UNITS = [
    "utracefsd.service",
    "utracefsd.socket",
    "utracefsd-tracefs.socket",
    "utracefs-metrics.service",
    "utracefs-forward@.service",
]


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name)
    return parser


@needs("systemd-analyze")
def test_systemd_analyze_verify_is_clean(tmp_path: Path) -> None:
    """With an existing executable in place of the installed one."""
    for name in UNITS:
        text = (FOLDER / name).read_text()
        if name.endswith(".service"):
            text, replaced = re.subn(
                r"(?m)^ExecStart=/usr/bin/(\w+) ", rf"ExecStart={sys.executable} -m \1 ", text
            )
            assert replaced == 1
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs("systemd-analyze")
@pytest.mark.parametrize(
    "name", ["utracefsd.service", "utracefs-metrics.service", "utracefs-forward@.service"]
)
def test_it_is_hardened(name: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(FOLDER / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot look at a file")
    found = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= 2.0


@needs("systemd-sysusers")
def test_sysusers(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    done = subprocess.run(
        ["systemd-sysusers", f"--root={tmp_path}", str(FOLDER / "utracefs.sysusers.conf")],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "Operation not permitted" in done.stderr:
        pytest.skip("systemd-sysusers may not write here")
    assert done.returncode == 0, done.stderr
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^tracing:[^:]*:\d+:utracefs$", groups, re.MULTILINE), groups
    assert re.search(r"^utracefs:", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)


@needs("systemd-tmpfiles")
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user takes root")
def test_tmpfiles(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nutracefs:x:990:991::/:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nutracefs:x:991:\n")
    done = subprocess.run(
        ["systemd-tmpfiles", "--create", f"--root={tmp_path}", str(FOLDER / "utracefs.tmpfiles.conf")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for path, mode in (("run/utracefs", 0o755), ("dev/shm/utracefs", 0o700)):
        found = (tmp_path / path).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (990, 991, mode)


def test_the_command_line_is_understood() -> None:
    _program, *arguments = unit("utracefsd.service")["Service"]["ExecStart"].split()
    assert arguments == ["--dir", str(runtime.SYSTEM_DIRECTORY), "--keep-state"]
    assert CliRunner().invoke(main, [*arguments, "--help"]).exit_code == 0


def test_sockets_are_where_the_daemon_looks_for_them() -> None:
    for name, file, mode, group in (
        ("utracefsd.socket", DATA_SOCKET, "0660", "tracing"),
        ("utracefsd-tracefs.socket", TRACEFS_SOCKET, "0600", "root"),
    ):
        section = unit(name)["Socket"]
        assert section["ListenStream"] == str(runtime.SYSTEM_DIRECTORY / file)
        assert section["FileDescriptorName"] == file
        assert section["SocketMode"] == mode
        assert section["SocketGroup"] == group
        assert section["Service"] == "utracefsd.service"
    # a service with named sockets must take them: its own file wins over the order of their arrival
    assert set(unit("utracefsd.service")["Service"]["Sockets"].split()) == set(UNITS[1:3])


def test_both_sockets_come_and_go_together() -> None:
    assert unit("utracefsd.socket")["Unit"]["Requires"] == "utracefsd-tracefs.socket"
    assert unit("utracefsd.socket")["Install"]["Also"] == "utracefsd-tracefs.socket"
    assert unit("utracefsd-tracefs.socket")["Unit"]["PartOf"] == "utracefsd.socket"


def test_what_the_daemon_needs_is_not_taken_away() -> None:
    service = unit("utracefsd.service")["Service"]
    assert service["Type"] == "notify"
    assert "WatchdogSec" in service
    assert service["RestrictAddressFamilies"] == "AF_UNIX"
    assert service["RuntimeDirectoryPreserve"] == "yes"  # the sockets lie there and are systemd's
    for hidden in ("PrivateDevices", "PrivateUsers", "ProtectProc", "ProcSubset", "PrivateIPC"):
        assert hidden not in service


def test_every_file_is_installed() -> None:
    settings = (FOLDER.parent / "pyproject.toml").read_text()
    for path in FOLDER.iterdir():
        assert f'"systemd/{path.name}"' in settings
