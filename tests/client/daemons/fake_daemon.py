"""A daemon for the client's tests: one thread, one Unix socket, the data socket's protocol, no consumers.

It has the parts of a daemon that a client sees: registrations and their results, the status file, records of
the socket, `sync`, errors. The test decides which events are enabled, refused, or never answered.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from utracefs_protocol.connection import (
    Connection,
    Request,
    encode_error,
    encode_notification,
    encode_response,
)
from utracefs_protocol.limits import MAX_DATA_OBJECT
from utracefs_protocol.text import bytes_of

REFUSED = 0x4000_0000
"""In a write_index: DR_REFUSED of data_ring.h."""

LOST = 0x2000_0000
"""The same: BIN_LOST of bin.h."""

SIGNED = b"\xff" * 4
"""A record that begins so names its writer: thread, cpu, and flags. Its name follows the payload if NAMED."""

NAMED = 2

STATUS_SIZE = 8192


def wait_for(
    condition: Callable[[], Any], timeout_s: float = 60.0, *, what: Callable[[], object] = lambda: "it"
) -> Any:
    """The result of `condition` as soon as it is true; fails after the deadline, naming `what`."""
    deadline = time.monotonic() + timeout_s
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what()} did not happen in time"
        time.sleep(0.002)
    return result


class Client:
    """The daemon's side of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.protocol = Connection(max_object=MAX_DATA_OBJECT, take_records=self._take_records)
        self.names: list[bytes] = []
        """Command string of each write_index."""
        self.records: list[tuple[bytes, bytes]] = []
        """(command string, payload), in order of arrival."""
        self.refusals: list[tuple[bytes, bytes]] = []
        """(command string, reason)."""
        self.requests: list[Request] = []
        self.open = True
        self.most_at_once = 0

    def payloads(self, command: bytes) -> list[bytes]:
        return [payload for name, payload in list(self.records) if name == command]

    def _take_records(self, buffer: bytes | bytearray | memoryview, offset: int) -> int:
        unpacker = msgpack.Unpacker()
        unpacker.feed(bytes(buffer[offset:]))
        for data in unpacker:
            if data.startswith(SIGNED):
                _, flags = struct.unpack_from("<IxxH", data, 4)
                data = data[12 : -16 if flags & NAMED else None]
            index = int.from_bytes(data[:4], "little")
            came = self.refusals if index & REFUSED else self.records
            if not index & LOST:
                came.append((self.names[index & ~REFUSED], data[4:]))
        return len(buffer)


class FakeDaemon:
    """Serves until `stop`; may be started again in the same directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.protocol = 2
        self.clients: list[Client] = []
        """All that ever connected, in order."""
        self.refuse: dict[bytes, tuple[int, str]] = {}
        """Command string to error, for registrations."""
        self.enabled_from_start: set[bytes] = set()
        self.answering = threading.Event()
        """Cleared: requests are read and not answered."""
        self.answered_at_once: set[str] = set()
        """Methods that are answered all the same."""
        self.reading = threading.Event()
        """Cleared: nothing is read."""
        self.answering.set()
        self.reading.set()
        self._indexes: dict[bytes, int] = {}
        self._unanswered: list[tuple[Client, Request]] = []
        self._thread: threading.Thread | None = None

    def start(self) -> FakeDaemon:
        self._indexes.clear()
        self._status_fd = os.memfd_create("status")
        os.ftruncate(self._status_fd, STATUS_SIZE)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.directory / "user_events_data"))
        self._listener.listen(64)
        self._bell, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="fake daemon")
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread is None:
            return
        self._stopping = True
        self.reading.set()
        self.kick()
        self._thread.join()
        self._thread = None
        (self.directory / "user_events_data").unlink()
        for sock in (self._listener, self._bell, self._wake):
            sock.close()
        os.close(self._status_fd)

    def kick(self) -> None:
        """Make the thread look at `answering`, `reading` and `stop`."""
        self._wake.send(b"x")

    def set_status(self, command: bytes, byte: int) -> None:
        os.pwrite(self._status_fd, bytes([byte]), self._indexes[command])

    def enable(self, command: bytes, byte: int = 1) -> None:
        wait_for(lambda: command in self._indexes)
        self.set_status(command, byte)

    @property
    def last(self) -> Client:
        wait_for(lambda: self.clients)
        return self.clients[-1]

    def drop(self, client: Client) -> None:
        """End one connection from this side."""
        client.sock.shutdown(socket.SHUT_RDWR)

    # -- the thread

    def _run(self) -> None:
        selector = self._selector
        while not self._stopping:
            for key, _ in selector.select():
                if key.fileobj is self._bell:
                    self._bell.recv(4096)
                    if self.answering.is_set():
                        for client, request in self._unanswered:
                            self._answer(client, request)
                        self._unanswered.clear()
                elif key.fileobj is self._listener:
                    sock, _ = self._listener.accept()
                    self.clients.append(Client(sock))
                    selector.register(sock, selectors.EVENT_READ, self.clients[-1])
                else:
                    self.reading.wait()
                    self._read(key.data, selector)
        for client in self.clients:
            self._end(client, selector)
        selector.close()

    def _end(self, client: Client, selector: selectors.BaseSelector) -> None:
        if client.open:
            client.open = False
            selector.unregister(client.sock)
            client.sock.close()

    def _read(self, client: Client, selector: selectors.BaseSelector) -> None:
        try:
            data = client.sock.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._end(client, selector)
            return
        for message in client.protocol.receive(data):
            match message:
                case Request():
                    client.requests.append(message)
                    if self.answering.is_set() or message.method in self.answered_at_once:
                        self._answer(client, message)
                    else:
                        self._unanswered.append((client, message))
                        client.most_at_once = max(client.most_at_once, len(self._unanswered))
                        assert len(self._unanswered) <= 2048
                case other:
                    raise AssertionError(f"a client sent {other!r}")

    def _answer(self, client: Client, request: Request) -> None:
        fds: list[int] = []
        match request.method:
            case "DIAG_IOCSREG":
                answer = self._register(client, request)
            case "mmap_status":
                answer = encode_response(request.msgid, {"size": STATUS_SIZE, "protocol": self.protocol})
                fds = [self._status_fd]
            case "sync":
                answer = encode_response(request.msgid, None)
            case _:
                answer = encode_error(request.msgid, errno.ENOSYS, "unknown method")
        try:
            if fds:
                socket.send_fds(client.sock, [answer], fds)
            else:
                client.sock.sendall(answer)
        except OSError:
            pass  # it has gone; the next read says so

    def _register(self, client: Client, request: Request) -> bytes:
        name = request.params[0]["name_args"]
        command = bytes_of(name) if isinstance(name, str) else name
        if command in self.refuse:
            return encode_error(request.msgid, *self.refuse[command])
        index = self._indexes.setdefault(command, len(self._indexes) + 1)
        if command in self.enabled_from_start:
            self.set_status(command, 1)
        names, wanted = client.names, len(client.names)
        if self.protocol > 1 and "write_index" in request.params[0]:
            wanted = request.params[0]["write_index"]
        elif command in names:
            wanted = names.index(command)
        names += [b""] * (wanted - len(names)) + [command] * (wanted >= len(names))
        result = {"status_index": index, "write_index": wanted, "id": 20 + index}
        return encode_response(request.msgid, result)

    def notify(self, client: Client, method: str, params: list[Any]) -> None:
        client.sock.sendall(encode_notification(method, params))


def running(directory: Path) -> Iterator[FakeDaemon]:
    """For fixtures: started, and stopped whatever happens."""
    daemon = FakeDaemon(directory).start()
    try:
        yield daemon
    finally:
        daemon.stop()
