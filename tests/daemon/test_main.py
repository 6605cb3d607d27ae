"""The daemon as a process: its command line, signals, the parent, systemd's sockets and its watchdog."""

import contextlib
import grp
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio

from tests.forked import Popen
from tests.judges import needs
from utracefs_protocol.connection import encode_request
from utracefsd.main import run_process
from utracefsd.server.runtime import locate
from utracefsd.server.sd_notify import Notifier

COMMAND = [sys.executable, "-m", "utracefsd"]
DEADLINE_S = 60


class Process:
    """A daemon that has written READY."""

    def __init__(self, directory: Path, *options: str, environ: dict[str, str] | None = None) -> None:
        self.place = locate(directory, environ={})
        read_end, write_end = os.pipe()
        self.popen = Popen(
            [*COMMAND, "--dir", os.fspath(directory), "--ready-fd", str(write_end), *options],
            pass_fds=[write_end],
            stderr=subprocess.PIPE,
            env={**os.environ, **(environ or {})},
        )
        os.close(write_end)
        with open(read_end, "rb") as ready:
            self.ready = ready.read()

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit status, and its stderr."""
        self.popen.send_signal(number)
        _, err = self.popen.communicate(timeout=DEADLINE_S)
        return self.popen.returncode, err.decode()


def ran(*words: str, **options: Any) -> tuple[int, str]:
    """Exit status and stderr of a daemon that ends by itself."""
    popen = Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, **options)
    _, err = popen.communicate(timeout=DEADLINE_S)
    return popen.returncode, err


def call(path: Path, method: str, *params: Any) -> Any:
    """One request on a new connection."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(DEADLINE_S)
        sock.connect(os.fspath(path))
        sock.sendall(encode_request(1, method, list(params)))
        unpacker = msgpack.Unpacker()
        while True:
            for _kind, _msgid, error, result in unpacker:
                assert error is None, error
                return result
            data = sock.recv(1 << 16)
            assert data, "the daemon hung up"
            unpacker.feed(data)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    processes: list[Process] = []

    def make(
        *options: str, directory: Path = tmp_path / "d", environ: dict[str, str] | None = None
    ) -> Process:
        processes.append(Process(directory, *options, environ=environ))
        return processes[-1]

    yield make
    for process in processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait()
        assert process.popen.stderr is not None
        process.popen.stderr.close()
        shutil.rmtree(process.place.status_folder, ignore_errors=True)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(start: Callable[..., Process], number: int) -> None:
    process = start()
    assert process.ready == b"READY\n"
    assert call(process.place.tracefs_socket, "read_file", "tracing_on") == b"1\n"
    while process.popen.poll() is None:  # also if it comes again
        process.popen.send_signal(number)
        time.sleep(0.001)
    status, err = process.end(number)
    assert status == 0
    assert err.splitlines() == [
        f"utracefsd: sockets in {process.place.directory}, status file {process.place.status_file}",
        f"utracefsd: ending: {signal.Signals(number).name}",
    ]
    assert list(process.place.directory.iterdir()) == []
    assert not process.place.status_folder.exists()


@pytest.mark.parametrize("_", range(10))  # trio starts tasks in random order
async def test_signals_are_expected_before_the_sockets_are_there(_: int) -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def start(task_status: object) -> None:
        assert signal.getsignal(signal.SIGTERM) is not before
        os.kill(os.getpid(), signal.SIGTERM)
        await trio.sleep_forever()

    await run_process(
        start,
        ready_fd=None,
        background=False,
        exit_with_parent=False,
        keep_state=False,
        notifier=Notifier(None, None),
    )
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_log_can_be_silent(start: Callable[..., Process]) -> None:
    assert start("--log-level", "warning").end() == (0, "")


def test_lines_for_the_journal(start: Callable[..., Process]) -> None:
    _, err = start(environ={"JOURNAL_STREAM": "8:1"}).end()
    assert all(line.startswith("<6>") for line in err.splitlines())


def test_the_log_as_json(start: Callable[..., Process]) -> None:
    """Also for a journal; every line, and the error that ends a daemon."""
    process = start("--log-format", "json", environ={"JOURNAL_STREAM": "8:1"})
    status, err = ran("--dir", os.fspath(process.place.directory), "--log-format", "json")
    assert status == 1
    (failed,) = map(json.loads, err.splitlines())
    assert (failed["id"], failed["level"], failed["reason"]) == ("failed", "error", failed["message"])
    first, last = map(json.loads, process.end()[1].splitlines())
    assert first["id"] == "listening"
    assert first["directory"] == os.fspath(process.place.directory)
    assert (last["id"], last["message"], last["signal"]) == ("ending", "ending: SIGTERM", "SIGTERM")


def test_utracefs_dir_is_the_directory(tmp_path: Path) -> None:
    environ = {**os.environ, "UTRACEFS_DIR": str(tmp_path / "e")}
    with Popen(COMMAND, env=environ, stderr=subprocess.PIPE) as popen:
        assert popen.stderr is not None
        try:
            assert f"sockets in {tmp_path}/e," in popen.stderr.readline().decode()
            assert call(tmp_path / "e" / "tracefs", "read_file", "tracing_on") == b"1\n"
        finally:
            popen.terminate()
            popen.communicate()  # the pipe stays open until the daemon has written its last line
    assert popen.returncode == 0


def test_a_second_daemon_fails_with_one_line(start: Callable[..., Process]) -> None:
    first = start()
    second = start()
    assert second.ready == b""
    status, err = second.end()
    assert status == 1
    assert re.fullmatch(r"utracefsd: .*: a daemon is already running there \(pid \d+\)\n", err)
    assert f"pid {first.popen.pid}" in err
    assert call(first.place.tracefs_socket, "read_file", "tracing_on") == b"1\n"


def test_one_line_for_a_directory_that_cannot_be(start: Callable[..., Process], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    status, err = start(directory=tmp_path).end()
    assert status == 1
    assert err == f"utracefsd: {tmp_path}: everybody may write there; name a directory inside it\n"


def test_one_line_for_a_group_that_is_not_there(start: Callable[..., Process]) -> None:
    assert start("--tracefs-group", "no-such-group").end() == (
        1,
        "utracefsd: there is no group 'no-such-group'\n",
    )


def test_usage(tmp_path: Path) -> None:
    assert ran("--status-pages", "0")[0] == 2
    shown = subprocess.run([*COMMAND, "--version"], capture_output=True, check=True)
    assert shown.stdout.startswith(b"utracefsd, version ")


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    place = locate(tmp_path / "d", environ={})
    parent = (
        "import subprocess, sys, os\n"
        "r, w = os.pipe()\n"
        f"p = subprocess.Popen([*{COMMAND!r}, '--dir', {str(place.directory)!r}, '--exit-with-parent',"
        " '--ready-fd', str(w)], pass_fds=[w])\n"
        "os.close(w); assert os.read(r, 10) == b'READY\\n'\n"
        "print(p.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", parent], stdout=subprocess.PIPE, check=False)
    pid = int(ended.stdout)
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            assert select.select([pidfd], [], [], DEADLINE_S)[0]
        finally:
            os.close(pidfd)
    until(lambda: not place.status_folder.exists() and not place.directory.exists())


def test_it_ends_without_a_reader_of_ready(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    words = ["--dir", os.fspath(tmp_path / "d"), "--exit-with-parent", "--ready-fd", str(write_end)]
    assert ran(*words, pass_fds=[write_end])[0] == 0
    os.close(write_end)
    assert not (tmp_path / "d").exists()


STRANGER = """
import errno, msgpack, os, socket, sys
directory = sys.argv[1]
# only now: the interpreter may lie where a stranger cannot read
os.setgroups([])
os.setgid(65534)
os.setuid(12345)
with socket.socket(socket.AF_UNIX) as tree:
    print(errno.errorcode[tree.connect_ex(directory + "/tracefs")])
data = socket.socket(socket.AF_UNIX)
data.connect(directory + "/user_events_data")
for method, params in (
    ("DIAG_IOCSREG", [{"name_args": "mine u32 n"}]),
    ("DIAG_IOCSREG", [{"name_args": "kept u32 n", "flags": 1}]),
    ("DIAG_IOCSDEL", ["admins"]),
):
    data.sendall(msgpack.packb([0, 1, method, params]))
    error = msgpack.unpackb(data.recv(4096))[2]
    print(errno.errorcode[error[0]] if error else "ok")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user takes root")
def test_a_member_of_the_group_is_a_plain_producer(start: Callable[..., Process]) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # tmp_path is closed to other users
        os.chmod(folder, 0o755)
        group = grp.getgrgid(65534).gr_name
        process = start("--group", group, directory=Path(folder) / "d")
        assert process.ready == b"READY\n"
        call(process.place.tracefs_socket, "write_file", "dynamic_events", b"u:admins u32 n\n", False)
        told = subprocess.run(
            [sys.executable, "-c", STRANGER, os.fspath(process.place.directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert told.stdout.split() == ["EACCES", "ok", "EPERM", "EPERM"], told.stderr
        assert process.end()[0] == 0


class Manager:
    """The service manager's end of sd_notify."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.settimeout(DEADLINE_S)
        self.sock.bind(os.fspath(path))

    def heard(self) -> list[str]:
        return self.sock.recv(4096).decode().split("\n")


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.sock.close()


def test_the_service_manager_is_notified(start: Callable[..., Process], manager: Manager) -> None:
    process = start(environ={"NOTIFY_SOCKET": str(manager.path)})
    assert manager.heard() == [
        "READY=1",
        f"STATUS=sockets in {process.place.directory}",
        f"MAINPID={process.popen.pid}",
    ]
    assert process.end()[0] == 0
    assert manager.heard()[0] == "STOPPING=1"


def test_the_watchdog_gets_its_signs_of_life(start: Callable[..., Process], manager: Manager) -> None:
    process = start(environ={"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "200000"})
    assert manager.heard()[0] == "READY=1"
    times = []
    for _ in range(4):
        assert manager.heard() == ["WATCHDOG=1"]
        times.append(time.monotonic())
    assert times[3] - times[0] > 0.2  # every 100 ms, not a flood
    assert process.end()[0] == 0


@needs("systemd-socket-activate")
@pytest.mark.parametrize("named", [True, False])
def test_socket_activation(tmp_path: Path, manager: Manager, named: bool) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    place = locate(directory, environ={})
    options = ["--fdname=user_events_data:tracefs"] if named else []
    activate = subprocess.Popen(
        [
            "systemd-socket-activate",
            f"--listen={place.data_socket}",
            f"--listen={place.tracefs_socket}",
            *options,
            f"--setenv=NOTIFY_SOCKET={manager.path}",
            f"--setenv=PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
            *COMMAND,
            "--dir",
            os.fspath(directory),
        ],
        stderr=subprocess.PIPE,
    )
    try:
        until(place.tracefs_socket.exists)
        place.data_socket.chmod(0o640)
        # the first connection starts it, and is answered
        assert call(place.data_socket, "DIAG_IOCQLOCOFFSET") == 8
        assert call(place.tracefs_socket, "read_file", "tracing_on") == b"1\n"
        assert manager.heard()[0] == "READY=1"
        assert stat.S_IMODE(place.data_socket.stat().st_mode) == 0o640  # systemd's business
        activate.terminate()
        _, err = activate.communicate(timeout=DEADLINE_S)
        assert activate.returncode == 0, err
        assert manager.heard()[0] == "STOPPING=1"
        # the sockets stay systemd's, the rest is gone
        assert sorted(path.name for path in directory.iterdir()) == ["tracefs", "user_events_data"]
        assert not place.status_folder.exists()
    finally:
        activate.kill()
        activate.communicate()
        shutil.rmtree(place.status_folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--plugin", "nosuch"], "--plugin nosuch: no consumer of that name is installed"),
        (["--plugin-option", "nosuch"], "--plugin-option nosuch: write NAME.KEY=VALUE"),
        (["--plugin-option", ".a=b"], "--plugin-option .a=b: write NAME.KEY=VALUE"),
        (["--plugin-option", "no.a=b"], "--plugin-option no.a=b: no consumer no is installed and wanted"),
        (["--ready-fd", "99"], "--ready-fd 99: Bad file descriptor"),
        (["--background", "--exit-with-parent"], "--background goes with neither"),
        (["--background", "--ready-fd", "1"], "--background goes with neither"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, words: list[str], says: str) -> None:
    status, err = ran("--dir", os.fspath(tmp_path / "d"), *words)
    assert status == 2
    assert says in err
    assert not (tmp_path / "d").exists()
