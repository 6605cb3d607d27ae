"""The part of a service manager that a daemon uses: NOTIFY_SOCKET with a descriptor store, LISTEN_FDS at each
start (sd_notify(3), sd_listen_fds(3))."""

from __future__ import annotations

import array
import os
import socket
import subprocess
import sys
import tempfile
import threading

from tests.forked import Popen
from tests.integration.conftest import DaemonProcess

START = """
import os, runpy, sys
names, ready_fd, *args = sys.argv[1:]
fds = [int(fd) for fd in os.environ.pop("STORED").split()]
# Out of the way first, so that none is overwritten before it has moved.
moved = [os.dup2(fd, 100 + n) for n, fd in enumerate(fds)]
ready = os.dup2(int(ready_fd), 99, inheritable=True)
for n, fd in enumerate(moved):
    os.dup2(fd, 3 + n, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
sys.argv = ["utracefsd", "--ready-fd", "99", *args]
runpy.run_module("utracefsd", run_name="__main__")
"""


class ServiceManager(DaemonProcess):
    """Starts one daemon in `directory`, again and again, and keeps its stored descriptors."""

    def __init__(self, directory: str, *options: str, limit: int = 1024) -> None:
        super().__init__(directory, *options)
        self.limit = limit
        self.store: dict[str, list[int]] = {}
        self.said: list[str] = []
        self.changed = threading.Condition()
        self.folder = tempfile.TemporaryDirectory(prefix="utracefs-test-")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.folder.name + "/notify")
        self.listening = True
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        while True:
            data, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(64 * 4))
            if data == b"end":
                return
            fds = array.array("i")
            for _, _, rights in ancillary:
                fds.frombytes(rights)
            lines = data.decode().split("\n")
            name = next((line[7:] for line in lines if line.startswith("FDNAME=")), "stored")
            with self.changed:
                self.said.append(lines[0])
                if "FDSTORE=1" in lines:
                    assert "FDPOLL=0" in lines
                    if len(self.store) < self.limit:
                        self.store.setdefault(name, []).extend(fds)
                elif "FDSTOREREMOVE=1" in lines:
                    for fd in self.store.pop(name, []):
                        os.close(fd)
                self.changed.notify_all()

    def _begin(self, ready_w: int) -> subprocess.Popen[bytes]:
        stored = [(name, fd) for name, fds in self.store.items() for fd in fds]
        return Popen(
            [
                *(sys.executable, "-c", START, ":".join(name for name, _ in stored), str(ready_w)),
                *("--dir", self.directory, "--keep-state", *self.options),
            ],
            env={
                **os.environ,
                "STORED": " ".join(str(fd) for _, fd in stored),
                "NOTIFY_SOCKET": self.folder.name + "/notify",
                "FDSTORE": str(self.limit),
            },
            pass_fds=[ready_w, *(fd for _, fd in stored)],
            stderr=subprocess.PIPE,
        )

    def wait_until_stored(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.store) == count, 15), self.store

    def close(self) -> None:
        self.stop(kill=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.connect(self.folder.name + "/notify")
            last.send(b"end")
        self.thread.join()
        self.socket.close()
        for fds in self.store.values():
            for fd in fds:
                os.close(fd)
        self.folder.cleanup()
