"""The begin and end of a mount: with the daemon, by signals, by umount, by a kill; for which users; several
at once."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import (
    CLI,
    MountProcess,
    mounted,
    run,
    wait_for,
)
from tests.judges import judge
from utracefs.mount.attaching import detach, is_attached
from utracefsd.server.runtime import locate


def listing(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        return [errno.errorcode[error.errno or 0]]


def test_a_second_mount_on_top_is_refused(daemon: DaemonProcess, place: Path) -> None:
    with mounted(daemon.directory, place):
        again = run([*CLI, "--dir", daemon.directory, "mount", str(place)], place.parent)
        assert again.returncode == 1
        assert again.stderr == (
            f"utracefs: {place}: the tree is mounted here already; `umount {place}` first\n"
        )
        assert run(["umount", str(place)], Path("/")).returncode == 0
        assert listing(place) == []


class TestEnds:
    def test_with_the_daemon(self, daemon: DaemonProcess, place: Path) -> None:
        with mounted(daemon.directory, place) as mount:
            reader = subprocess.Popen(["cat", str(place / "trace_pipe")], stderr=subprocess.DEVNULL)
            held = os.open(place / "tracing_on", os.O_RDONLY)
            wait_for(lambda: _is_reading(reader.pid), "the reader waits")
            daemon.stop(kill=True)
            assert mount.ended() == 0
            assert reader.wait(60) == 1
            with pytest.raises(OSError):
                os.read(held, 10)
            with contextlib.suppress(OSError):
                os.close(held)
            assert listing(place) == []
            assert "the daemon is gone" in mount.log

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_by_a_signal_though_files_are_open(
        self, daemon: DaemonProcess, place: Path, number: signal.Signals
    ) -> None:
        with mounted(daemon.directory, place) as mount:
            held = os.open(place / "tracing_on", os.O_RDONLY)
            mount.process.send_signal(number)
            assert mount.ended() == 0
            with contextlib.suppress(OSError):  # close(2) reports that the daemon has gone
                os.close(held)
            assert listing(place) == []

    def test_by_umount(self, daemon: DaemonProcess, place: Path) -> None:
        with mounted(daemon.directory, place, "--wait") as mount:
            assert run(["umount", str(place)], Path("/")).returncode == 0
            assert mount.ended() == 0
            assert "it was unmounted" in mount.log
            assert listing(place) == []

    def test_killed_it_leaves_a_directory_that_the_next_mount_takes(
        self, daemon: DaemonProcess, place: Path
    ) -> None:
        with mounted(daemon.directory, place) as first:
            first.process.kill()
            first.process.wait()
            assert listing(place) == ["ENOTCONN"]
            with mounted(daemon.directory, place):
                wait_for(lambda: "trace" in listing(place), "the next one is there")
            assert listing(place) == []

    def test_a_stopped_daemon_is_waited_for(self, daemon: DaemonProcess, place: Path) -> None:
        with mounted(daemon.directory, place):
            with daemon.paused():
                reader = subprocess.Popen(["cat", str(place / "tracing_on")], stdout=subprocess.PIPE)
                wait_for(lambda: _is_reading(reader.pid), "the reader waits")
            assert reader.communicate(timeout=60)[0] == b"1\n"


def _is_reading(pid: int) -> bool:
    """Whether it sleeps in a system call on files of the mount."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        return state in "SD" and Path(f"/proc/{pid}/wchan").read_text() != "0"
    except FileNotFoundError:
        return False


class TestWait:
    def test_for_the_first_daemon_and_for_the_next(self, directory: str, place: Path) -> None:
        mount = MountProcess(directory, place, "--wait")
        daemon = DaemonProcess(directory)
        try:
            assert mount.process.poll() is None
            for _ in range(2):
                daemon.start()
                wait_for(lambda: "trace" in listing(place), "mounted")
                held = os.open(place / "tracing_on", os.O_RDONLY)
                daemon.stop()
                wait_for(lambda: listing(place) == ["ENOTCONN"], "it waits")
                with pytest.raises(OSError):
                    os.read(held, 10)
                os.close(held)
                for name in ("trace_pipe", "tracing_on"):
                    with pytest.raises(OSError) as failed:
                        os.open(place / name, os.O_RDONLY)
                    assert failed.value.errno == errno.ENOTCONN
            assert is_attached(str(place)) and mount.process.poll() is None
            mount.process.terminate()
            assert mount.ended() == 0
            assert listing(place) == []
            assert mount.log.count("waiting for the next one") == 2
        finally:
            daemon.stop()
            mount.close()


class TestBackground:
    def test_it_returns_when_the_mount_is_there(self, daemon: DaemonProcess, place: Path) -> None:
        done = run([*CLI, "--dir", daemon.directory, "mount", "tree"], place.parent)
        try:
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
            assert "trace" in listing(place)
            with open(place / "trace_marker", "w") as file:
                file.write("hello")
        finally:
            detach(str(place))
        assert listing(place) == []

    def test_it_returns_when_it_waits(self, directory: str, place: Path) -> None:
        done = run([*CLI, "--dir", directory, "mount", "--wait", str(place)], Path("/"))
        daemon = DaemonProcess(directory)
        try:
            assert (done.returncode, done.stderr) == (0, "")
            daemon.start()
            wait_for(lambda: "trace" in listing(place), "mounted")
            assert run(["umount", str(place)], Path("/")).returncode == 0
        finally:
            daemon.stop()
            detach(str(place))

    @pytest.mark.parametrize("options", [[], ["--foreground"]])
    def test_it_says_what_is_wrong(self, daemon: DaemonProcess, place: Path, options: list[str]) -> None:
        (place.parent / "file").write_text("")
        for name, reason in (("none", "No such file or directory"), ("file", "Not a directory")):
            path = place.parent / name
            done = run([*CLI, "--dir", daemon.directory, "mount", *options, str(path)], Path("/"))
            assert done.returncode == 1
            assert done.stderr == f"utracefs: {path}: {reason}\n"
        command = [*CLI, "--dir", daemon.directory, "mount", *options, "--group", "no-such-group", str(place)]
        assert run(command, Path("/")).stderr == "utracefs: no-such-group: no such group\n"


def test_two_at_once(daemon: DaemonProcess, place: Path) -> None:
    other = place.parent / "other"
    with mounted(daemon.directory, place), mounted(daemon.directory, other):
        held = os.open(place / "trace_pipe", os.O_RDONLY)
        with pytest.raises(OSError, match="busy"):
            os.open(other / "trace_pipe", os.O_RDONLY)
        os.mkdir(other / "instances/one")
        assert listing(place / "instances") == ["one"]
        with open(other / "trace_marker", "w") as file:
            file.write("from the other one\n")
        assert b"from the other one" in os.read(held, 4096)
        os.close(held)


NOBODY = [
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    # only to run a Python below /root
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes others")
class TestForWhom:
    @pytest.fixture
    def theirs(self) -> Iterator[str]:
        """A directory of the user `nobody`."""
        with tempfile.TemporaryDirectory(prefix="utracefs-test-") as path:
            os.chmod(path, 0o755)
            for name in ("d", "tree"):
                os.mkdir(f"{path}/{name}")
                os.chown(f"{path}/{name}", 65534, 65534)
            yield path
            detach(f"{path}/tree")
            shutil.rmtree(locate(f"{path}/d").status_folder, ignore_errors=True)

    SESSION = """
set -e
ready() { for i in $(seq 400); do test -S "$1/d/tracefs" && return; sleep 0.05; done; exit 9; }
"$PYTHON" -m utracefsd --dir "$1/d" --group "$(id -gn)" & daemon=$!
trap 'kill $daemon; wait $daemon' EXIT
ready "$1"
"$PYTHON" -m utracefs.cli --dir "$1/d" mount "$1/tree"
cd "$1/tree"
stat -c %u:%g:%a trace
echo hello > trace_marker
tail -n 1 trace | sed 's/.*: //'
mkdir instances/mine && echo 0 > instances/mine/tracing_on && cat instances/mine/tracing_on
cd /
"""

    OPEN_DEVICE = """
set -e
mknod "$1/fuse" c 10 229 && chmod 666 "$1/fuse" && mount --bind "$1/fuse" /dev/fuse && shift
exec "$@"
"""
    """Mode 666 is what udev gives /dev/fuse; not every container has udev."""

    def test_an_ordinary_user(self, theirs: str) -> None:
        judge("fusermount3")
        device = ["unshare", "-m", "bash", "-c", self.OPEN_DEVICE, "bash", theirs]
        session = [*NOBODY, "bash", "-c", self.SESSION + 'fusermount3 -u "$1/tree"', "bash", theirs]
        done = run([*device, *session], Path("/"), PYTHON=sys.executable, HOME="/")
        assert done.stdout == "65534:65534:640\nhello\n0\n", done.stderr
        assert done.returncode == 0, done.stderr

    def test_root_of_a_user_namespace(self, theirs: str) -> None:
        if run(["unshare", "-Urm", "true"], Path("/")).returncode:
            pytest.skip("user namespaces are not allowed here")
        for name in ("d", "tree"):
            os.chown(f"{theirs}/{name}", 0, 0)
        session = ["unshare", "-Urm", "bash", "-c", self.SESSION + 'umount "$1/tree"', "bash", theirs]
        done = run(session, Path("/"), PYTHON=sys.executable)
        assert done.stdout == "0:0:640\nhello\n0\n", done.stderr
        assert done.returncode == 0, done.stderr

    def test_others_see_it_when_they_are_let(self, daemon: DaemonProcess, theirs: str) -> None:
        look = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat"]
        path = Path(theirs) / "tree"
        with mounted(daemon.directory, path):
            assert run([*look, f"{path}/tracing_on"], Path("/")).stderr.endswith("Permission denied\n")
        with mounted(daemon.directory, path, "--allow-other", "--group", "65534"):
            assert run([*look, f"{path}/tracing_on"], Path("/")).stderr.endswith("Permission denied\n")
            os.chmod(path, 0o750)
            assert run([*look, f"{path}/tracing_on"], Path("/")).stdout == "1\n"
            os.chmod(path / "tracing_on", 0o600)
            assert run([*look, f"{path}/tracing_on"], Path("/")).stderr.endswith("Permission denied\n")

    def test_only_the_daemons_user_and_root_speak_for_others(self, directory: str) -> None:
        """A member of --tracefs-group may write markers, and they have his thread id."""
        daemon = DaemonProcess(directory, "--tracefs-group", "nogroup")
        daemon.start()
        program = f"""
import errno, os
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.messages.tracefs import Write, Writer
with Tracefs({directory!r}) as tree:
    handle = tree.open("trace_marker", os.O_WRONLY)
    start_time = int(open("/proc/1/stat").read().rpartition(") ")[2].split()[19])
    try:
        tree._rpc.call(Write(handle, b"as init", Writer(1, start_time)), "")
    except PermissionError as error:
        assert error.errno == errno.EPERM
        tree.write(handle, b"as myself")
        print("refused", os.getpid())
"""
        try:
            if run(["getent", "group", "nogroup"], Path("/")).returncode:
                pytest.skip("there is no group nogroup")
            os.chmod(directory, 0o755)
            done = run([*NOBODY, sys.executable, "-c", program], Path("/"))
            words = done.stdout.split()
            assert words and words[0] == "refused", done.stderr
            with daemon.tree() as tree:
                [line] = [one for one in tree.read_file("trace").decode().splitlines() if "as " in one]
            assert f"-{words[1]} " in line and line.endswith("as myself")
        finally:
            daemon.stop()
