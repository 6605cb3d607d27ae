"""The directory of the sockets, for each user."""

from pathlib import Path

import pytest

from utracefs_protocol.places import (
    SYSTEM_DIRECTORY,
    candidates,
    chosen_directory,
    daemon_directory,
    temporary_directory,
    user_directory,
    xdg_runtime_dir,
)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_RUNTIME_DIR": "/run/user/1000"}, "/run/user/1000/utracefs"),
        ({"XDG_RUNTIME_DIR": "/run/user/1000/"}, "/run/user/1000/utracefs"),
        ({"XDG_RUNTIME_DIR": "/"}, "/utracefs"),
        ({}, "/tmp/utracefs-1000"),
        ({"XDG_RUNTIME_DIR": ""}, "/tmp/utracefs-1000"),
        ({"XDG_RUNTIME_DIR": "run"}, "/tmp/utracefs-1000"),
        ({"XDG_RUNTIME_DIR": "./run"}, "/tmp/utracefs-1000"),
    ],
)
def test_a_users_directory(environ: dict[str, str], expected: str) -> None:
    assert user_directory(environ, 1000) == expected
    assert daemon_directory(environ, 1000) == expected
    assert candidates(None, environ, 1000) == [expected, SYSTEM_DIRECTORY]


def test_roots_daemon_serves_the_system() -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/0"}
    assert daemon_directory(environ, 0) == "/run/utracefs"
    assert candidates(None, environ, 0) == ["/run/user/0/utracefs", "/run/utracefs"]


def test_a_named_directory_is_the_only_one() -> None:
    environ = {"UTRACEFS_DIR": "/u", "XDG_RUNTIME_DIR": "/x"}
    assert chosen_directory("/d", environ) == "/d"
    assert chosen_directory("", environ) == "/u"
    assert chosen_directory(None, {"UTRACEFS_DIR": ""}) is None
    assert candidates("d", environ, 5) == [f"{Path.cwd()}/d"]
    assert candidates(None, environ, 5) == ["/u"]


def test_a_deleted_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(OSError, match=r"current directory has been deleted.*'d'"):
        chosen_directory("d", {})
    assert chosen_directory("/d", {}) == "/d"


def test_parts() -> None:
    assert temporary_directory(7) == "/tmp/utracefs-7"
    assert xdg_runtime_dir({"XDG_RUNTIME_DIR": "relative"}) is None
    assert xdg_runtime_dir({"XDG_RUNTIME_DIR": "/x"}) == "/x"
