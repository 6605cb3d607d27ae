"""Which directories a client looks in, and which it does not trust."""

import contextlib
import errno
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs.tree.runtime_dir import candidates, connect
from utracefs_protocol import places


@pytest.mark.parametrize(
    ("directory", "environ", "expected"),
    [
        ("/d", {"UTRACEFS_DIR": "/u", "XDG_RUNTIME_DIR": "/x"}, ["/d"]),
        (None, {"UTRACEFS_DIR": "/u", "XDG_RUNTIME_DIR": "/x"}, ["/u"]),
        (None, {"UTRACEFS_DIR": "", "XDG_RUNTIME_DIR": "/x"}, ["/x/utracefs", "/run/utracefs"]),
        (None, {}, [f"/tmp/utracefs-{os.geteuid()}", "/run/utracefs"]),
        (None, {"XDG_RUNTIME_DIR": "rel"}, [f"/tmp/utracefs-{os.geteuid()}", "/run/utracefs"]),
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
    monkeypatch.setattr(places, "SYSTEM_DIRECTORY", str(place / "system"))
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
    monkeypatch.setattr(places, "SYSTEM_DIRECTORY", str(place / "system"))
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
    monkeypatch.setattr(places, "temporary_directory", lambda uid: str(own))
    with listener(own):
        own.chmod(0o700)
        connect("tracefs", str(own)).close()
        own.chmod(0o750)
        with pytest.raises(PermissionError, match="not a directory of this user") as caught:
            connect("tracefs", str(own))
        assert caught.value.errno == errno.EPERM
        own.chmod(0o700)
        own.rename(place / "elsewhere")
        own.symlink_to("elsewhere")
        with pytest.raises(PermissionError, match="not a directory of this user"):
            connect("tracefs", str(own))


def test_a_listener_without_room_is_waited_for_that_long_only(place: Path) -> None:
    """As one has it whose process is stopped."""
    sock = socket.socket(socket.AF_UNIX)
    (place / "d").mkdir()
    sock.bind(str(place / "d/tracefs"))
    sock.listen(0)
    with sock, connect("tracefs", str(place / "d")):
        for timeout_s in (0.02, 1e-9):
            with pytest.raises(BlockingIOError):
                connect("tracefs", str(place / "d"), timeout_s)


def test_a_waiter_gets_room_in_a_flood(place: Path) -> None:
    """The queue is full nearly all the time: what is taken off it is replaced at once."""
    (place / "d").mkdir()
    path = str(place / "d/tracefs")
    over = threading.Event()

    def press() -> None:
        while not over.is_set():
            with socket.socket(socket.AF_UNIX) as one, contextlib.suppress(OSError):
                one.settimeout(0)
                one.connect(path)

    def take() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                listening.accept()[0].close()

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(0)
        listening.settimeout(0.05)
        threads = [threading.Thread(target=work) for work in (press, press, take)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(20):
                connect("tracefs", str(place / "d"), 30).close()
        finally:
            over.set()
            for thread in threads:
                thread.join()
