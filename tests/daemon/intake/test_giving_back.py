"""The thread that gives a flood's memory back: its program can hold the lock of the file, and nothing can
kill the thread then."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading

from tests.daemon.intake.producing import DATA
from utracefsd.intake._data_ring import DataRing
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._writers import AllWriters

MIB = 1 << 20


def test_it_keeps_no_descriptor_but_the_ring_of_its_own() -> None:
    """The process's stay; a thread that is killed would otherwise keep the daemon's sockets and lock."""
    ring = DataRing.create(IndexTable(), os.getpid(), 4 * MIB)
    with mmap.mmap(ring.fd, os.fstat(ring.fd).st_size) as memory:
        memory[DATA : DATA + 4 * MIB] = b"x" * (4 * MIB)
    before = os.fstat(ring.fd).st_blocks
    ours, theirs = socket.socketpair()
    left: list[str] = []

    def run() -> None:
        ring.give_back(2 * MIB, 3 * MIB, AllWriters().of(os.getpid()).lookups)
        for fd in (ours.fileno(), theirs.fileno(), ring.fd):
            try:
                fcntl.fcntl(fd, fcntl.F_GETFD)
                left.append("ring" if fd == ring.fd else "another")
            except OSError:
                pass

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert left == ["ring"]
    assert os.fstat(ring.fd).st_blocks <= before - 3 * MIB // 512
    ours.sendall(b"stays")
    assert theirs.recv(9) == b"stays"
    ours.close()
    theirs.close()
