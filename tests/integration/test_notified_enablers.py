"""Programs that are notified of their enablers, and connections on behalf of others: a real daemon, real
processes, real signals."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import pytest

from tests.integration.conftest import DaemonProcess
from tests.soak.plain import PlainConnection
from utracefs.tree.tracefs import Tracefs
from utracefsd.events.notifier import ACKNOWLEDGE_NS
from utracefsd.machine.procfs import read_task

ENABLE = "events/user_events/told/enable"
LONGEST_S = ACKNOWLEDGE_NS / 1e9

PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[2])
import msgpack
from tests.soak.plain import PlainConnection
connection = PlainConnection(sys.argv[1])
connection.sock.settimeout(None)
connection.call("notify_enablers", {})
connection.call("DIAG_IOCSREG", {"name_args": "told u32 a", "enable_token": 1})
print("ready", flush=True)
unpacker = msgpack.Unpacker()
while data := connection.sock.recv(65536):
    unpacker.feed(data)
    for _, method, (seq, changes) in unpacker:
        print(*changes, flush=True)
        connection.sock.sendall(msgpack.packb([2, "enablers_written", [seq]]))
"""


@pytest.fixture
def program(daemon: DaemonProcess) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a program that prints its notifications."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, daemon.directory, os.getcwd()],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def took_s(tree: Tracefs, on: bool) -> float:
    began = time.monotonic()
    tree.write_file(ENABLE, b"1" if on else b"0")
    return time.monotonic() - began


class Loop:
    """Acknowledges the notifications of many connections, on a thread."""

    def __init__(self, connections: list[PlainConnection]) -> None:
        self.state: dict[tuple[int, int], int] = {}
        self.epoll = select.epoll()
        self.connections = {one.sock.fileno(): (one.sock, msgpack.Unpacker()) for one in connections}
        for fd in self.connections:
            self.epoll.register(fd, select.EPOLLIN)
        self.over, self.end = os.pipe()
        self.epoll.register(self.over, select.EPOLLIN)
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while True:
            for fd, _ in self.epoll.poll():
                if fd == self.over:
                    return
                sock, unpacker = self.connections[fd]
                data = sock.recv(1 << 16)
                if not data:
                    self.epoll.unregister(fd)
                    continue
                unpacker.feed(data)
                for _, _, (seq, changes) in unpacker:
                    for token, state in changes:
                        self.state[fd, token] = state
                    sock.sendall(msgpack.packb([2, "enablers_written", [seq]]))

    def close(self) -> None:
        os.close(self.end)
        self.thread.join()
        os.close(self.over)
        self.epoll.close()


def told(directory: str, tokens: int = 1) -> PlainConnection:
    connection = PlainConnection(directory)
    connection.call("notify_enablers", {})
    for token in range(tokens):
        connection.call("DIAG_IOCSREG", {"name_args": "told u32 a", "enable_token": token})
    return connection


def test_enable_returns_after_a_hundred_have_written(daemon: DaemonProcess) -> None:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(told(daemon.directory))) for _ in range(100)]
        loop = stack.enter_context(contextlib.closing(Loop(connections)))
        tree = stack.enter_context(daemon.tree())
        times = []
        for number in range(10):
            on = number % 2 == 0
            times.append(took_s(tree, on))
            if times[-1] < LONGEST_S:
                assert list(loop.state.values()) == [int(on)] * 100
        print(f"enable told 100 connections in {min(times) * 1e3:.1f} to {max(times) * 1e3:.1f} ms")
        assert min(times) < LONGEST_S


def test_a_stopped_program(
    daemon: DaemonProcess,
    program: Callable[[], subprocess.Popen[str]],
    eventually: Callable[[Callable[[], object], str], None],
) -> None:
    runs, stopped = program(), program()
    with daemon.tree() as tree:
        took_s(tree, True)
        assert (line(runs), line(stopped)) == ("[1, 1]", "[1, 1]")
        os.kill(stopped.pid, signal.SIGSTOP)
        eventually(lambda: state_of(stopped.pid) == "T", "it is stopped")
        assert took_s(tree, False) >= LONGEST_S
        assert line(runs) == "[1, 0]"
        times = [took_s(tree, True), took_s(tree, False)]
        assert min(times) < LONGEST_S, "it is not waited for again"
        os.kill(stopped.pid, signal.SIGCONT)
        assert line(stopped) == "[1, 0]", "its first notification"
        assert line(stopped) == "[1, 0]", "and the latest of what came after"
        log = daemon.stop()
        assert log.count(b"not acknowledged within 1000 ms") >= 1
        assert b"by pid %d:" % stopped.pid in log


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(") ")[2][0]


def test_a_program_that_is_killed_delays_no_other(
    daemon: DaemonProcess, program: Callable[[], subprocess.Popen[str]]
) -> None:
    process = program()
    os.kill(process.pid, signal.SIGSTOP)
    with daemon.tree() as tree:
        killer = threading.Timer(0.02, process.kill)
        killer.start()
        took_s(tree, True)
        killer.join()
        process.wait()
        assert took_s(tree, False) < LONGEST_S


def test_a_program_comes_again_to_a_daemon_that_was_killed(daemon: DaemonProcess) -> None:
    with contextlib.closing(told(daemon.directory)):
        with daemon.tree() as tree:
            tree.write_file("set_event", b"user_events:told")
        daemon.stop(kill=True)
    daemon.start()
    with contextlib.closing(PlainConnection(daemon.directory)) as again:
        again.call("notify_enablers", {})
        registered = again.call("DIAG_IOCSREG", {"name_args": "told u32 a", "enable_token": 1})
        assert registered["enabled"] == 1


# On behalf


def process_of(pid: int, uid: int = 12345) -> dict[str, int]:
    task = read_task(pid)
    assert task is not None
    return {"pid": pid, "start_time": task.start_time, "uid": uid, "gid": uid}


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as process:
        yield process
        process.kill()


def test_records_of_another_process(daemon: DaemonProcess, sleeper: subprocess.Popen[bytes]) -> None:
    with contextlib.closing(PlainConnection(daemon.directory)) as mount, daemon.tree() as tree:
        mount.call("open_for", process_of(sleeper.pid))
        index, _ = mount.register("told u32 a")
        tree.write_file(ENABLE, b"1")
        assert mount.call("write", index.to_bytes(4, "little") + bytes(4), sleeper.pid) == 8
        mount.sock.sendall(msgpack.packb(index.to_bytes(4, "little") + bytes(4)))
        mount.call("sync")
        lines = [one for one in tree.read_file("trace").decode().splitlines() if "told: " in one]
        assert [one.split()[0] for one in lines] == [f"sleep-{sleeper.pid}"] * 2
        stats = tree.read_file("daemon_stats").decode()
        assert "user 12345: 1 of" in stats


def test_a_process_that_is_gone(daemon: DaemonProcess, sleeper: subprocess.Popen[bytes]) -> None:
    process = process_of(sleeper.pid)
    with contextlib.closing(PlainConnection(daemon.directory)) as mount:
        with pytest.raises(ProcessLookupError, match="that began then"):
            mount.call("open_for", {**process, "start_time": process["start_time"] + 1})
        sleeper.kill()
        sleeper.wait()
        with pytest.raises(ProcessLookupError):
            mount.call("open_for", process)


def test_a_user_through_a_mount_has_no_more_than_his_own(
    daemon: DaemonProcess, sleeper: subprocess.Popen[bytes]
) -> None:
    """A thousand connections, for any processes; and the mount works for other users."""
    with contextlib.ExitStack() as stack:
        made = 0
        with pytest.raises(OSError, match="has 1024 connections already"):
            for made in range(1100):  # noqa: B007
                mount = stack.enter_context(contextlib.closing(PlainConnection(daemon.directory)))
                mount.call("open_for", process_of(sleeper.pid))
        assert made == 1024
        mount.call("open_for", process_of(sleeper.pid, 12346))
        mount.call("DIAG_IOCSREG", {"name_args": "told u32 a"})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_others_may_not(daemon: DaemonProcess, sleeper: subprocess.Popen[bytes]) -> None:
    """Neither for root nor for himself; nor does a represented process get more rights."""
    os.chmod(daemon.directory, 0o755)
    os.chmod(os.path.join(daemon.directory, "user_events_data"), 0o666)
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[2])\n"
        "from tests.soak.plain import PlainConnection\n"
        "os.setresuid(12345, 12345, 12345)\n"
        "connection = PlainConnection(sys.argv[1])\n"
        "for pid, start_time, uid in eval(sys.argv[3]):\n"
        "    try:\n"
        "        connection.call('open_for', dict(pid=pid, start_time=start_time, uid=uid, gid=0))\n"
        "        print('opened')\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
        "sys.stdout.flush(); os._exit(0)  # nothing at exit, such as a report of coverage, is this user's\n"
    )
    process = process_of(sleeper.pid)
    asked = [(process["pid"], process["start_time"], uid) for uid in (0, 12345, 1)]
    done = subprocess.run(
        [sys.executable, "-c", program, daemon.directory, os.getcwd(), repr(asked)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["1"] * 3
    with contextlib.closing(PlainConnection(daemon.directory)) as mount:
        mount.call("open_for", process)
        with pytest.raises(OSError, match="already"):
            mount.call("open_for", {**process, "uid": 0})
        with pytest.raises(PermissionError, match="only an administrator"):
            mount.call("DIAG_IOCSREG", {"name_args": "kept u32 a", "flags": 1})


@pytest.mark.parametrize("seq", [0, 7, 1 << 63])
def test_nonsense_costs_only_its_sender(daemon: DaemonProcess, seq: Any) -> None:
    with (
        contextlib.closing(told(daemon.directory)) as other,
        daemon.tree() as tree,
        contextlib.closing(PlainConnection(daemon.directory, timeout_s=10)) as bad,
    ):
        bad.sock.sendall(msgpack.packb([0, 1, "notify_enablers", [{}]]))
        bad.sock.sendall(msgpack.packb([2, "enablers_written", [seq]]))
        data = b"".join(iter(lambda: bad.sock.recv(4096), b""))
        unpacker = msgpack.Unpacker()
        unpacker.feed(data)
        answer, last = unpacker
        assert answer == [1, 1, None, None]
        assert last[1] == "error"
        assert "no enablers_changed is unanswered" in last[2][1]
        with contextlib.closing(Loop([other])) as loop:
            took_s(tree, True)
            assert list(loop.state.values()) == [1]
