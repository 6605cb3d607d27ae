"""A socket between a program and the daemon, which passes on the program's bytes piece by piece."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Proxy:
    """The data socket in `directory`; the daemon's is in `behind`. Bytes of the daemon are passed on at once,
    with their descriptors."""

    def __init__(self, directory: Path, behind: Path) -> None:
        self.behind = behind / "user_events_data"
        self.permits: int | None = None
        """Pieces of a program, as one recv(2) returns them, that are passed on before it waits; None: all."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / "user_events_data"))
        self._listener.listen(64)
        self._bell, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._other: dict[socket.socket, socket.socket] = {}
        self._programs: set[socket.socket] = set()
        self._waiting: set[socket.socket] = set()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="proxy")

    def permit(self, pieces: int | None) -> None:
        """From now on."""
        self.permits = pieces
        self._wake.send(b"x")

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._bell:
                    self._bell.recv(4096)
                    for program in self._waiting:
                        self._selector.register(program, selectors.EVENT_READ)
                    self._waiting.clear()
                elif sock is self._listener:
                    self._accept()
                elif sock in self._programs and self.permits == 0:
                    self._selector.unregister(sock)
                    self._waiting.add(sock)
                elif sock in self._other:
                    self._pass_on(sock)

    def _accept(self) -> None:
        program, _ = self._listener.accept()
        daemon = socket.socket(socket.AF_UNIX)
        daemon.connect(str(self.behind))
        self._programs.add(program)
        for one, other in ((program, daemon), (daemon, program)):
            self._other[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(sock, 1 << 20, 16)
            if data:
                socket.send_fds(self._other[sock], [data], fds)
            for fd in fds:
                os.close(fd)
        except ConnectionError:
            data = b""
        if data and sock in self._programs and self.permits:
            self.permits -= 1
        if not data:
            self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        for one in (sock, self._other[sock]):
            self._waiting.discard(one)
            if one in self._selector.get_map():
                self._selector.unregister(one)
            del self._other[one]
            one.close()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over = True
        self._wake.send(b"x")
        self._thread.join()
        for sock in [*self._other, self._listener, self._bell, self._wake]:
            sock.close()
        self._selector.close()


@contextmanager
def between(directory: Path, behind: Path) -> Iterator[Proxy]:
    proxy = Proxy(directory, behind)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
