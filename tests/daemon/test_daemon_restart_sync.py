"""Programs with data rings at a whole daemon, which end while it waits for the rings of the previous one."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import msgpack
import pytest

from tests.daemon.intake.producing import Producer, adopt_new
from tests.daemon.restarting import ROOT, Clock, daemon_in, die, finish, read, register, write
from tests.simulation.rings import DataRing as MadeRing
from utracefs_protocol.connection import encode_request
from utracefs_protocol.events.declaration import REG_PERSIST
from utracefsd.daemon import GATHER_NS, HAND_OVER_NS, Daemon
from utracefsd.intake._index_table import IndexTable
from utracefsd.machine.procfs import read_task


class Program:
    """A program with a data ring that holds a record, at the other end of a connection to the data socket."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        ours, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        assert daemon.data.add(ours) is not None
        self.send("DIAG_IOCSREG", {"name_args": "a u32 n"})
        fds = MadeRing.make(1 << 16)
        socket.send_fds(self.sock, [encode_request(1, "adopt_ring", [{}])], fds)
        for fd in fds:
            os.close(fd)
        assert [error for _, _, error, _ in self.heard()] == [None, None]
        (ring,) = daemon.rings.intake.rings
        self.producer = Producer(ring)
        self.producer.emit(0, struct.pack("<I", 7), 1)

    def send(self, method: str, *params: Any) -> None:
        self.sock.sendall(encode_request(1, method, list(params)))

    def turn(self) -> None:
        while ready := self.daemon.data.ready():
            for accepted in ready:
                self.daemon.data.pump(accepted)
                self.daemon.hand_on()

    def is_idle(self) -> bool:
        return not self.daemon.data.has_more and not select.select([self.daemon.data], [], [], 0)[0]

    def heard(self) -> list[Any]:
        """The bytes received until now; None at the end if that was received, too."""
        self.turn()
        unpacker, data = msgpack.Unpacker(), b"?"
        try:
            while data := self.sock.recv(1 << 16):
                unpacker.feed(data)
        except BlockingIOError:
            pass
        return [*unpacker, *([] if data else [None])]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def program(folder: Path, clock: Clock) -> Iterator[Program]:
    """Connected to a daemon while the ring of another program may still come back."""
    before = daemon_in(folder, clock)
    register(before, b"a u32 n", REG_PERSIST)
    write(before, b"events/user_events/a/enable", b"1")
    task = read_task(os.getppid())
    assert task is not None
    other = attrs.evolve(ROOT, pid=os.getppid(), start_time=task.start_time)
    adopt_new(before.rings, IndexTable(), other, 1 << 16, lambda error: None)
    before.save()
    die(before)
    daemon = daemon_in(folder, clock)
    made = Program(daemon)
    assert daemon.rings.gathering
    yield made
    made.sock.close()
    made.producer.close()
    finish(daemon)


def pass_time(program: Program, clock: Clock) -> None:
    clock.now += GATHER_NS
    program.daemon.on_time(clock.now)
    assert not program.daemon.rings.gathering


def test_a_reconnected_program_has_a_second_to_hand_over_its_ring(folder: Path, clock: Clock) -> None:
    """It may be between its connection and `adopt_ring` just then; but the wait is bounded."""
    before = daemon_in(folder, clock)
    register(before, b"a u32 n", REG_PERSIST)
    task = read_task(os.getpid())
    assert task is not None
    mine = attrs.evolve(ROOT, start_time=task.start_time)
    adopt_new(before.rings, IndexTable(), mine, 1 << 16, lambda error: None)
    before.save()
    die(before)
    daemon = daemon_in(folder, clock)
    clock.now += GATHER_NS
    daemon.listens()  # a slow start takes nothing from the time to come back
    clock.now += GATHER_NS - 1
    daemon.on_time(clock.now)
    assert daemon.rings.gathering
    ours, theirs = socket.socketpair()
    assert daemon.data.add(ours) is not None
    clock.now += HAND_OVER_NS
    daemon.on_time(clock.now)
    assert daemon.rings.gathering
    deadline_ns = daemon.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns <= clock.now + 50_000_000
    clock.now = deadline_ns
    daemon.on_time(clock.now)
    assert not daemon.rings.gathering
    theirs.close()
    finish(daemon)


def test_a_peer_that_stops_sending_and_then_ends(program: Program, clock: Clock) -> None:
    program.send("sync")
    program.sock.shutdown(socket.SHUT_WR)
    program.turn()
    program.sock.close()
    program.turn()
    assert program.is_idle()
    pass_time(program, clock)
    program.turn()
    assert len(program.daemon.data) == 0
    assert b" a: n=0x7" in read(program.daemon, b"trace")


@pytest.mark.parametrize("ends", [False, True])
def test_the_writer_is_known_when_a_record_was_taken_in(folder: Path, ends: bool) -> None:
    """A busy daemon finds the records and the end of their program in one step, and calls it in that, too."""
    daemon = daemon_in(folder)
    daemon.comms.want_tgids(daemon, True)
    program = Program(daemon)
    write(daemon, b"events/enable", b"1")
    program.producer.emit(0, struct.pack("<I", 8), 2, tid=os.getpid())
    if ends:
        program.sock.close()
    daemon.take_in_all()
    assert daemon.comms.saved_tgids_text() == b"%d %d\n" % (os.getpid(), os.getpid())
    program.sock.close()
    program.producer.close()
    finish(daemon)
