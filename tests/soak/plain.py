"""A connection to the data socket for this suite's programs that need more control than the client library
gives: written from docs/protocol.md."""

from __future__ import annotations

import os
import socket
from typing import Any

import msgpack

from tests.simulation.rings import DataRing

HEAD, TAIL, LOST, NEED_WAKEUP = 64, 128, 192, 256
HEADER_BYTES = 65536
LOST_BYTES = 16384
COMMITTED = 1 << 31


class PlainConnection:
    """`call` waits for its response. OSError with the daemon's errno; ConnectionResetError: the daemon closed
    it."""

    def __init__(self, directory: str, timeout_s: float = 30.0) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self._unpacker = msgpack.Unpacker()
        self._fds: list[int] = []
        try:
            self.sock.settimeout(timeout_s)
            self.sock.connect(os.path.join(directory, "user_events_data"))
        except OSError:
            self.sock.close()
            raise

    def call(self, method: str, *params: Any, fds: tuple[int, ...] = ()) -> Any:
        socket.send_fds(self.sock, [msgpack.packb([0, 1, method, list(params)])], fds)
        while True:
            for message in self._unpacker:
                if message[0] == 1:
                    if message[2] is not None:
                        raise OSError(*message[2])
                    return message[3]
            data, came, _, _ = socket.recv_fds(self.sock, 65536, 8)
            if not data:
                raise ConnectionResetError("the daemon hung up")
            self._fds += came
            self._unpacker.feed(data)

    def take_fds(self) -> list[int]:
        """The descriptors that came with responses so far; the caller closes them."""
        fds, self._fds = self._fds, []
        return fds

    def register(self, name_args: str) -> tuple[int, int]:
        """(write_index, status_index)."""
        reg = self.call("DIAG_IOCSREG", {"name_args": name_args})
        return reg["write_index"], reg["status_index"]

    def make_ring(self, size: int) -> tuple[int, int]:
        """Descriptors of the memory and of the doorbell."""
        fd, doorbell = DataRing.make(size)
        self.call("adopt_ring", {}, fds=(fd, doorbell))
        return fd, doorbell

    def close(self) -> None:
        for fd in self.take_fds():
            os.close(fd)
        self.sock.close()
