"""Where a daemon lives: the table of docs/protocol.md section 1, and the folders that are refused."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.server import runtime
from utracefsd.server.runtime import Kind, Runtime, locate


@pytest.mark.parametrize(
    ("directory", "environ", "uid", "sockets", "status", "kind"),
    [
        (None, {}, 0, "/run/utracefs", "utracefs", Kind.SYSTEM),
        (None, {"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/utracefs", "utracefs", Kind.SYSTEM),
        (None, {"XDG_RUNTIME_DIR": "/run/user/7"}, 7, "/run/user/7/utracefs", "utracefs-7", Kind.USER),
        (None, {}, 7, "/tmp/utracefs-7", "utracefs-7", Kind.TEMPORARY),
        (None, {"XDG_RUNTIME_DIR": ""}, 7, "/tmp/utracefs-7", "utracefs-7", Kind.TEMPORARY),
        (None, {"XDG_RUNTIME_DIR": "run/user/7"}, 7, "/tmp/utracefs-7", "utracefs-7", Kind.TEMPORARY),
        (None, {"UTRACEFS_DIR": "/a/b"}, 7, "/a/b", "utracefs-HASH", Kind.CHOSEN),
        ("/c", {"UTRACEFS_DIR": "/a/b"}, 7, "/c", "utracefs-HASH", Kind.CHOSEN),
        ("/a/./x/../b/", {}, 0, "/a/b", "utracefs-HASH", Kind.CHOSEN),
        # the standard directories, named: nothing is replaced
        ("/tmp/utracefs-7", {}, 7, "/tmp/utracefs-7", "utracefs-7", Kind.TEMPORARY),
        ("/run/utracefs", {}, 0, "/run/utracefs", "utracefs", Kind.SYSTEM),
        ("/run/utracefs/", {}, 7, "/run/utracefs", "utracefs", Kind.SYSTEM),
    ],
)
def test_where(
    directory: str | None, environ: dict[str, str], uid: int, sockets: str, status: str, kind: Kind
) -> None:
    found = locate(directory, environ=environ, uid=uid)
    assert str(found.directory) == sockets
    assert str(found.status_folder) == "/dev/shm/" + status.replace(
        "HASH", runtime.directory_hash(found.directory)
    )
    assert found.kind is kind
    assert found.data_socket == found.directory / "user_events_data"
    assert found.tracefs_socket == found.directory / "tracefs"
    assert found.status_file == found.status_folder / "user_events_status"


def test_two_directories_have_two_status_folders() -> None:
    assert locate("/a").status_folder != locate("/b").status_folder


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Runtime]:
    """A chosen directory that does not exist yet."""
    found = locate(tmp_path / "d", environ={})
    yield found
    found.remove_status_folder()


def mode(path: Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_folders_are_made_private(here: Runtime) -> None:
    here.prepare()
    assert mode(here.directory) == 0o700
    assert mode(here.status_folder) == 0o700
    here.prepare()  # and found again
    here.remove_status_folder()
    assert not here.status_folder.exists()


def test_a_strict_umask_does_not_lock_the_group_out(here: Runtime) -> None:
    before = os.umask(0o077)
    try:
        here.prepare(reachable=True)
    finally:
        os.umask(before)
    assert mode(here.directory) == 0o755
    assert mode(here.status_folder) == 0o700


def refused(here: Runtime) -> TraceError:
    with pytest.raises(TraceError) as caught:
        here.prepare()
    return caught.value


@pytest.fixture
def temporary(tmp_path: Path) -> Runtime:
    """As /tmp/utracefs-UID, elsewhere."""
    folders = Runtime(tmp_path / "sockets", tmp_path / "status", Kind.TEMPORARY, os.geteuid())
    folders.prepare()
    return folders


@pytest.mark.parametrize("which", ["directory", "status_folder"])
class TestAFolderInEverybodysDirectory:
    def test_with_another_mode(self, temporary: Runtime, which: str) -> None:
        folder: Path = getattr(temporary, which)
        folder.chmod(0o750)
        error = refused(temporary)
        assert error.errno == errno.EPERM
        assert str(folder) in error.text
        assert "0700" in error.text

    def test_that_is_a_symbolic_link(self, temporary: Runtime, which: str) -> None:
        folder: Path = getattr(temporary, which)
        folder.rename(folder.with_name("elsewhere"))
        folder.symlink_to("elsewhere")
        error = refused(temporary)
        assert error.errno == errno.EPERM
        assert "symbolic link" in error.text

    def test_that_is_a_file(self, temporary: Runtime, which: str) -> None:
        folder: Path = getattr(temporary, which)
        folder.rmdir()
        folder.write_bytes(b"")
        assert refused(temporary).errno == errno.ENOTDIR

    def test_of_somebody_else(self, temporary: Runtime, which: str) -> None:
        folder: Path = getattr(temporary, which)
        if os.geteuid() == 0:
            os.chown(folder, 12345, -1)
            asking = temporary
        else:
            asking = Runtime(
                temporary.directory, temporary.status_folder, Kind.TEMPORARY, uid=os.geteuid() + 1
            )
        error = refused(asking)
        assert error.errno == errno.EPERM
        assert "belongs to uid" in error.text


def test_a_directory_that_everybody_writes_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    error = refused(Runtime(tmp_path, tmp_path / "s", Kind.CHOSEN, os.geteuid()))
    assert error.errno == errno.EPERM
    assert str(tmp_path) in error.text


def test_a_file_instead_of_a_directory(here: Runtime) -> None:
    here.directory.write_bytes(b"")
    assert refused(here).errno == errno.ENOTDIR


def test_a_path_too_long_for_a_socket(tmp_path: Path) -> None:
    error = refused(locate(tmp_path / ("x" * 100), environ={}))
    assert error.errno == errno.ENAMETOOLONG
    assert "107" in error.text


def test_the_longest_path_fits(tmp_path: Path) -> None:
    free = runtime.MAX_SOCKET_PATH - len(os.fsencode(tmp_path / "user_events_data")) - 1
    here = locate(tmp_path / ("x" * free), environ={})
    assert len(os.fsencode(here.data_socket)) == runtime.MAX_SOCKET_PATH
    here.prepare()
    here.remove_status_folder()


def test_the_systems_status_folder_stays() -> None:
    place = Runtime(Path("/run/utracefs"), Path("/dev/shm/utracefs"), Kind.SYSTEM, 0)
    existed = place.status_folder.exists()
    if not existed:
        place.status_folder.mkdir(0o700)
    try:
        place.remove_status_folder()
        assert place.status_folder.exists()
    finally:
        if not existed:
            place.status_folder.rmdir()


class TestLock:
    def test_a_second_daemon_is_told_the_first(self, here: Runtime) -> None:
        here.prepare()
        with here.locked():
            with pytest.raises(TraceError) as caught, here.locked():
                pass
            assert caught.value.errno == errno.EBUSY
            assert str(here.directory) in caught.value.text
            assert f"pid {os.getpid()}" in caught.value.text
        assert list(here.directory.iterdir()) == []
        with here.locked():
            pass

    def test_the_status_folder_counts_too(self, here: Runtime, tmp_path: Path) -> None:
        other = Runtime(tmp_path / "other", here.status_folder, Kind.CHOSEN, os.geteuid())
        here.prepare()
        other.prepare()
        with here.locked(), pytest.raises(TraceError) as caught, other.locked():
            pass
        assert caught.value.errno == errno.EBUSY
        assert list(other.directory.iterdir()) == []

    def test_what_a_killed_daemon_left_does_not_count(self, here: Runtime) -> None:
        here.prepare()
        program = (
            "import os,sys; from pathlib import Path; from utracefsd.server.runtime import *;"
            f"r=Runtime(Path({str(here.directory)!r}),Path({str(here.status_folder)!r}),"
            "Kind.CHOSEN,os.geteuid());\n"
            "with r.locked(): os.kill(os.getpid(), 9)"
        )
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
        assert (here.directory / runtime.LOCK_FILE).exists()
        with here.locked():
            assert (here.directory / runtime.LOCK_FILE).read_text() == f"{os.getpid()}\n"
