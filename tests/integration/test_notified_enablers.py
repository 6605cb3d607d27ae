"""Programs that are notified of their enablers, at a real daemon."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time

import msgpack

from tests.integration.conftest import DaemonProcess
from tests.soak.plain import PlainConnection
from utracefs.tree.tracefs import Tracefs
from utracefsd.events.notifier import ACKNOWLEDGE_NS

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
