"""The folders of a daemon: the table of docs/protocol.md section 1, and refused folders."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
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


def test_a_sockets_directory_of_another_user(temporary: Runtime) -> None:
    error = refused(of_somebody_else(temporary, temporary.directory))
    assert error.errno == errno.EPERM
    assert "belongs to uid" in error.text
    assert "--dir" in error.text, "and the way out"


def of_somebody_else(temporary: Runtime, folder: Path) -> Runtime:
    if os.geteuid() == 0:
        os.chown(folder, 12345, -1)
        return temporary
    return attrs.evolve(temporary, uid=os.geteuid() + 1)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to others")
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_status_folder_whose_name_is_taken_is_elsewhere(temporary: Runtime, kind: str) -> None:
    """Programs do not look for it by its name, but the next daemon has to find it."""
    taken = temporary.status_folder
    if kind != "folder":
        taken.rmdir()
        taken.write_bytes(b"") if kind == "file" else taken.symlink_to("/etc")
    os.chown(taken, 12345, -1, follow_symlinks=False)
    squatted = taken.with_name("status.0000000000000000")
    squatted.mkdir()
    os.chown(squatted, 12345, -1)
    first, second = temporary.prepare(), temporary.prepare()
    assert first == second
    assert first.status_folder.parent == taken.parent
    assert first.status_folder not in (taken, squatted)
    assert mode(first.status_folder) == 0o700
    first.remove_status_folder()
    assert not first.status_folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives folders to others")
@pytest.mark.parametrize("below", ["", "sub"])
def test_a_chosen_directory_that_somebody_else_made_first(tmp_path: Path, below: str) -> None:
    everybodys = tmp_path / "tmp"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    traces = everybodys / "traces"
    traces.mkdir()
    chosen = Runtime(traces / below, tmp_path / "status", Kind.CHOSEN, 0)
    chosen.prepare()
    os.chown(traces, 12345, -1)
    error = refused(chosen)
    assert error.errno == errno.EPERM
    assert str(traces) in error.text
    everybodys.chmod(0o755)
    chosen.prepare()  # then an administrator gives it away


def test_what_replaces_a_new_directory_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another user's parent a link may appear between mkdir(2) and chmod(2)."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o711)
    made = os.mkdir

    def mkdir(path: Path, mode: int) -> None:
        made(path, mode)
        os.rmdir(path)
        os.symlink(victim, path)

    monkeypatch.setattr(os, "mkdir", mkdir)
    refused(Runtime(tmp_path / "new", tmp_path / "status", Kind.CHOSEN, os.geteuid()))
    assert mode(victim) == 0o711


def test_a_directory_that_everybody_writes_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    error = refused(Runtime(tmp_path, tmp_path / "s", Kind.CHOSEN, os.geteuid()))
    assert error.errno == errno.EPERM
    assert str(tmp_path) in error.text


def test_a_way_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    error = refused(locate(tmp_path / "x" / "y" / "z", environ={}))
    assert error.errno == errno.ENOENT
    assert f"there is no directory {tmp_path / 'x' / 'y'}" in error.text
    assert not (tmp_path / "x").exists()


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
    def test_a_second_daemon_names_the_first(self, here: Runtime) -> None:
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


class TestLeftOver:
    """Leftovers of a killed daemon that ended with its parent."""

    @pytest.fixture
    def memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        memory = tmp_path / "shm"
        memory.mkdir()
        monkeypatch.setattr(runtime, "SHARED_MEMORY", memory)
        return memory

    def killed(self, directory: Path, *, ends_with_parent: bool = True) -> Runtime:
        place = locate(directory, environ={}).prepare()
        with place.locked():
            place.mark(ends_with_parent=ends_with_parent)
            for path in (place.data_socket, place.tracefs_socket, place.status_folder / "state"):
                path.write_bytes(b"")
            buffer = place.status_folder / "buffer.0.1"
            buffer.mkdir(exist_ok=True)
            (buffer / "cpu0").write_bytes(b"records")
        (directory / "utracefsd.lock").write_bytes(b"1\n")
        return place

    def test_is_removed_with_its_directory(self, memory: Path, tmp_path: Path) -> None:
        place = self.killed(tmp_path / "d")
        runtime.remove_left_over(place.uid)
        assert list(memory.iterdir()) == []
        assert not place.directory.exists()

    def test_also_when_its_directory_is_gone(self, memory: Path, tmp_path: Path) -> None:
        place = self.killed(tmp_path / "d")
        shutil.rmtree(place.directory)
        runtime.remove_left_over(place.uid)
        assert list(memory.iterdir()) == []

    def test_what_else_is_in_its_directory_stays(self, memory: Path, tmp_path: Path) -> None:
        place = self.killed(tmp_path / "d")
        (place.directory / "mine").write_bytes(b"")
        runtime.remove_left_over(place.uid)
        assert [path.name for path in place.directory.iterdir()] == ["mine"]
        assert list(memory.iterdir()) == []

    @pytest.mark.parametrize(
        "keeps", ["no mark", "locked", "directory locked", "another user", "another name"]
    )
    def test_what_may_be_somebodys_stays(self, memory: Path, tmp_path: Path, keeps: str) -> None:
        place = self.killed(tmp_path / "d", ends_with_parent=keeps != "no mark")
        before = sorted(memory.rglob("*"))
        with contextlib.ExitStack() as stack:
            if keeps == "locked":
                fd = os.open(place.status_folder, os.O_RDONLY)
                stack.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX)
            elif keeps == "directory locked":
                lock = stack.enter_context(open(place.directory / "utracefsd.lock", "rb"))
                fcntl.flock(lock, fcntl.LOCK_EX)
            elif keeps == "another name":
                (place.status_folder / "ends-with-parent").write_bytes(os.fsencode(tmp_path / "other"))
            runtime.remove_left_over(place.uid + (keeps == "another user"))
        assert sorted(memory.rglob("*")) == before
        assert place.data_socket.exists()

    def test_a_folder_that_held_something_is_not_marked(self, memory: Path, tmp_path: Path) -> None:
        self.killed(tmp_path / "d", ends_with_parent=False)
        place = self.killed(tmp_path / "d")
        runtime.remove_left_over(place.uid)
        assert (place.status_folder / "state").exists()

    def test_a_marked_one_stays_marked_until_it_is_another_daemons(
        self, memory: Path, tmp_path: Path
    ) -> None:
        self.killed(tmp_path / "d")
        place = self.killed(tmp_path / "d")
        mark = place.status_folder / "ends-with-parent"
        assert mark.exists()
        self.killed(tmp_path / "d", ends_with_parent=False)
        assert not mark.exists()

    @pytest.mark.parametrize("what", ["link", "pipe", "folder"])
    def test_a_mark_that_is_no_file(self, memory: Path, tmp_path: Path, what: str) -> None:
        place = self.killed(tmp_path / "d")
        mark = place.status_folder / "ends-with-parent"
        mark.unlink()
        if what == "link":
            mark.symlink_to("state")
        elif what == "pipe":
            os.mkfifo(mark)
        else:
            mark.mkdir()
        runtime.remove_left_over(place.uid)
        assert (place.status_folder / "state").exists()
