"""A FIFO, a ring, their events and the far ends of both: for tests of what runs once per event."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from typing import Any

from utracefs import _event
from utracefs._descriptors import Descriptor
from utracefs._event import Event
from utracefs._outlets import Fifo, RingOutlet
from utracefs._status_map import StatusMap
from utracefs.checking import check_declaration
from utracefs.declaring import make_event
from utracefs_protocol.connection import Connection, EventRecord, Request


class Workbench:
    """A FIFO with the far end of its socket, and events that are on. Nothing is sent unless `send` is
    called."""

    def __init__(self, capacity: int = 1 << 20, status: int = 1) -> None:
        self.fifo = Fifo(capacity)
        self.connect()
        self.fifo.open_bell()
        self.status_fd = os.memfd_create("status")
        os.ftruncate(self.status_fd, 4096)
        self.map = StatusMap(self.status_fd, 4096)
        self.events: list[Event] = []
        self.status = status
        self.messages = Connection(max_object=None, allow_records=True)

    def connect(self) -> None:
        near, self.far = socket.socketpair()
        self.near = Descriptor(near.detach())

    def narrow(self) -> None:
        """Make the socket take little at a time."""
        with socket.socket(fileno=os.dup(self.near.fd)) as near:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)

    def close(self) -> None:
        _event.set_all_off(self.events)
        self.near.close()
        self.far.close()
        self.fifo.close_bell()
        os.close(self.status_fd)

    def event(self, declaration: bytes, write_index: int | None = None) -> Event:
        event = make_event(None, self.fifo, check_declaration(declaration), 0)
        self.events.append(event)
        place = len(self.events)
        os.pwrite(self.status_fd, bytes([self.status]), place)
        _event.follow(self.map, self.fifo, [(event, place, place if write_index is None else write_index)])
        return event

    def pump_once(self) -> int:
        """One turn of the sender: being wanted makes it return."""
        self.fifo.wake()
        return self.fifo.pump(self.near)

    def receive(self) -> list[Any]:
        """What the far end has got: (write_index, payload) of records, method of requests."""
        got: list[Any] = []
        self.far.setblocking(False)
        while True:
            try:
                data = self.far.recv(1 << 20)
            except BlockingIOError:
                return got
            for message in self.messages.receive(data):
                if isinstance(message, EventRecord):
                    got.append((int.from_bytes(message.data[:4], "little"), message.data[4:]))
                else:
                    assert isinstance(message, Request)
                    got.append(message.method)

    def send(self) -> list[Any]:
        """Send all, as the session thread would, and receive it."""
        got = self.receive()
        while self.fifo.pending_bytes or self.fifo.control_pending:
            self.pump_once()
            got += self.receive()
        return got


DATA = 65536
"""Where the data area of a ring begins."""


class FarRing:
    """A data ring as its daemon sees it (docs/protocol.md, section 5)."""

    SIZE = 64 << 10

    def __init__(self) -> None:
        fd = os.memfd_create("ring")
        os.ftruncate(fd, DATA + self.SIZE + 16384)
        self.memory = mmap.mmap(fd, 0)
        self.fd = Descriptor(fd)
        self.doorbell = Descriptor(os.eventfd(0, os.EFD_NONBLOCK), self.fd)

    def close(self) -> None:
        self.memory.close()
        self.doorbell.close()
        self.fd.close()

    def outlet(self, fifo: Fifo) -> RingOutlet:
        return RingOutlet(fifo, self.fd, self.doorbell, self.SIZE)

    def want_wakeup(self) -> None:
        struct.pack_into("<I", self.memory, 256, 1)

    def bells(self) -> int:
        """How often the doorbell was rung since the last call."""
        try:
            return os.eventfd_read(self.doorbell.fd)
        except BlockingIOError:
            return 0

    def records(self) -> list[tuple[int, bytes]]:
        """(write_index, payload) of all that was committed. They stay there."""
        (head,) = struct.unpack_from("<Q", self.memory, 64)
        place, found = DATA, []
        while place < DATA + head:
            word, index = struct.unpack_from("<II", self.memory, place)
            assert word >> 31
            length = word & 0xFFFFFF
            found.append((index, self.memory[place + 24 : place + 24 + length]))
            place += (24 + length + 7) // 8 * 8
        return found
