"""Programs that are notified of their enablers, and connections on behalf of others: a real daemon, real
processes."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import msgpack
import pytest

from tests.integration.conftest import DaemonProcess
from tests.soak.plain import PlainConnection
from utracefs.tree.tracefs import Tracefs
from utracefsd.events.notifier import ACKNOWLEDGE_NS
from utracefsd.machine.procfs import read_task

ENABLE = "events/user_events/told/enable"
LONGEST_S = ACKNOWLEDGE_NS / 1e9


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


def told(directory: str) -> PlainConnection:
    connection = PlainConnection(directory)
    connection.call("notify_enablers", {})
    connection.call("DIAG_IOCSREG", {"name_args": "told u32 a", "enable_token": 0})
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


def test_a_process_that_is_gone(daemon: DaemonProcess, sleeper: subprocess.Popen[bytes]) -> None:
    process = process_of(sleeper.pid)
    with contextlib.closing(PlainConnection(daemon.directory)) as mount:
        with pytest.raises(ProcessLookupError, match="that began then"):
            mount.call("open_for", {**process, "start_time": process["start_time"] + 1})
        sleeper.kill()
        sleeper.wait()
        with pytest.raises(ProcessLookupError):
            mount.call("open_for", process)


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
