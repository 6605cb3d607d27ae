"""Which directories a client looks in, and which it does not trust."""

import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs import runtime_dir
from utracefs.runtime_dir import candidates, connect, temporary_directory


@pytest.mark.parametrize(
    ("directory", "environ", "expected"),
    [
        ("/d", {"UTRACEFS_DIR": "/u", "XDG_RUNTIME_DIR": "/x"}, ["/d"]),
        (None, {"UTRACEFS_DIR": "/u", "XDG_RUNTIME_DIR": "/x"}, ["/u"]),
        (None, {"UTRACEFS_DIR": "", "XDG_RUNTIME_DIR": "/x"}, ["/x/utracefs", "/run/utracefs"]),
        (None, {}, [f"/tmp/utracefs-{os.geteuid()}", "/run/utracefs"]),
    ],
)
def test_candidates(directory: str | None, environ: dict[str, str], expected: list[str]) -> None:
    assert candidates(directory, environ) == expected


@pytest.fixture
def place() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="utracefs-test-"))
    yield path
    shutil.rmtree(path)


def listener(directory: Path) -> socket.socket:
    directory.mkdir(exist_ok=True)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(directory / "tracefs"))
    sock.listen()
    return sock


def test_the_first_that_answers(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UTRACEFS_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.setattr(runtime_dir, "SYSTEM_DIRECTORY", str(place / "system"))
    with listener(place / "system"):
        with connect("tracefs") as sock:
            assert sock.getpeername() == str(place / "system/tracefs")
        with listener(place / "utracefs"), connect("tracefs") as sock:
            assert sock.getpeername() == str(place / "utracefs/tracefs")
        # what is left of the user's daemon does not hide the system's
        with connect("tracefs") as sock:
            assert sock.getpeername() == str(place / "system/tracefs")
        with pytest.raises(ConnectionRefusedError):
            connect("tracefs", str(place / "utracefs"))


def test_the_error_that_says_most(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UTRACEFS_DIR", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    monkeypatch.setattr(runtime_dir, "SYSTEM_DIRECTORY", str(place / "system"))
    with pytest.raises(FileNotFoundError) as caught:
        connect("tracefs")
    assert caught.value.filename == str(place / "utracefs/tracefs")
    listener(place / "system").close()
    with pytest.raises(ConnectionRefusedError) as refused:
        connect("tracefs")
    assert refused.value.filename == str(place / "system/tracefs")
    with pytest.raises(OSError, match="too long"):
        connect("tracefs", "/" + "x" * 120)


def test_a_directory_in_tmp_must_be_ours_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = place / "tmp"
    monkeypatch.setattr(runtime_dir, "temporary_directory", lambda: str(own))
    with listener(own):
        own.chmod(0o700)
        connect("tracefs", str(own)).close()
        own.chmod(0o750)
        with pytest.raises(PermissionError, match="ours") as caught:
            connect("tracefs", str(own))
        assert caught.value.errno == errno.EPERM
        own.chmod(0o700)
        own.rename(place / "elsewhere")
        own.symlink_to("elsewhere")
        with pytest.raises(PermissionError, match="ours"):
            connect("tracefs", str(own))
    assert temporary_directory().startswith("/tmp/")
