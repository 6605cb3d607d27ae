"""The session thread: one per session and process, the owner of its socket, descriptors and outlets.

It is a daemon thread named "utracefs", which the first declared event starts:

         first event          connect failed, or the connection was lost
    NEW ---------------> CONNECTING -------------------------------------> WAITING (50 ms, doubled up to 2 s)
                          |      ^--------------------------------------------'
     all that was declared|
     before is answered   v                          fork: the child's copy of the session
                          UP                  FORKED ----------------------> CONNECTING
    close, from anywhere: CLOSED                     first thing to write or to register

Connected, the thread does what `connection` says: sends its requests, carries out its actions. Then it sleeps
in `Fifo.pump`, without the GIL and without timers, until a record or another thread wakes it.

**What an Event sees.** While CONNECTING a new event is pending: the first look at it (`if event:`, `emit`)
waits for the answer, so that a short script does not lose its first record; all looks of one connection
attempt together wait at most PATIENCE_S. In any other state but UP events are off, which costs nothing to
look at.

**Reconnect.** The records that were not sent are held until the events that the old connection knew are
answered on the new one; then, in one step, all events get their new place and the held records their new
index. What belongs to an event that was refused is lost, and counted.

**fork.** The child shares the status map, so its events go on following the daemon without a connection. The
child makes one of its own when it has something to write, declares an event, or has lived for a second (from
then on it must notice by itself when a daemon goes and another comes). It sends nothing that its parent left
pending, and writes into no ring of its parent's.

**Locks.** The application's threads, its signal handlers and fork share this with the session thread, and
none of them waits for a lock that another could hold: state changes in steps that are atomic under the GIL
(append, setdefault, one assignment), and a waiter waits on a lock of its own. The one exception is
`fork.no_fork`.
"""

from __future__ import annotations

import _thread
import array
import contextlib
import errno
import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from utracefs import _event, fork
from utracefs._event import Event
from utracefs._outlets import BROKEN, READABLE, Fifo, RingOutlet, ring_file_bytes
from utracefs._status_map import StatusMap
from utracefs.flushing import Flush
from utracefs.fork import no_fork
from utracefs.runtime_dir import DATA_SOCKET, candidates, connect_one
from utracefs_protocol.errors import ProtocolError
from utracefs_protocol.limits import DATA_RING_SIZE, MAX_DATA_RING, MIN_DATA_RING

if TYPE_CHECKING:
    from utracefs import connection as wire

__all__ = ["PATIENCE_S", "SessionThread"]

NEW: Final = "new"
CONNECTING: Final = "connecting"
UP: Final = "up"
WAITING: Final = "waiting"
FORKED: Final = "forked"
CLOSED: Final = "closed"

FIRST_BACK_OFF_S: Final = 0.05
LAST_BACK_OFF_S: Final = 2.0

PATIENCE_S: Final = 0.25
"""What all looks at pending events may wait together, per connection attempt."""

_SOCKET_BUFFER: Final = 1 << 20
_RECEIVE_BYTES: Final = 64 << 10
_MAX_DESCRIPTORS: Final = 4


def _signals_to_block() -> set[signal.Signals | int]:
    """All but those that a fault of the thread itself raises."""
    faults = {signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
    return {number for number in signal.valid_signals() if number not in faults}


class SessionThread:
    """directory: of the daemon's sockets; None looks where `runtime_dir` says. capacity: bytes of the FIFO.

    Making one starts nothing; the first `declare` does. Owns its thread, socket and descriptors until
    `close`.
    """

    def __init__(self, directory: str | None, capacity: int) -> None:
        self._directory = directory
        self.fifo = Fifo(capacity)
        self.ring: RingOutlet | None = None
        """The data ring that is mapped. It outlives a connection, to be offered on the next one."""
        self.state = NEW
        self.declared: list[Event] = []
        """In the order in which they are registered on every connection. Only ever appended to."""
        self.closing = False
        self._patience_s = PATIENCE_S
        self._waiters: list[_thread.LockType] = []
        self._flushes: list[Flush] = []
        self._flushed_records = 0
        self._starting = _thread.allocate_lock()
        self._ended: _thread.LockType | None = None
        self._ident: int | None = None
        # Descriptors, for the forked child to close: kept here from the moment they exist.
        self._socket: socket.socket | None = None
        self._wake_fd = -1
        self._received_fds: list[int] = []
        self._ring_fds: list[int] = []
        # Of the connection that there is.
        self._connection: wire.DataConnection | None = None
        self._by_old_index: list[Event | None] = []
        self._status_map: StatusMap | None = None

    # -- what the application's threads call

    def declare(self, event: Event) -> None:
        """Register the event, here and on all connections to come. There must be no more than one of a
        declaration."""
        if self.state not in (WAITING, CLOSED):
            event._set_pending()  # before the thread can know of it, and answer
        self.declared.append(event)
        self.start()
        if self.state in (CONNECTING, UP):
            self.fifo.wake()

    def await_answer(self, event: Event) -> None:
        """A pending event is looked at. Waits for the answer, within the bounds; then the event is not
        pending any more, unless the session thread itself looks (a logging handler of ours): that cannot wait
        for itself."""
        if _thread.get_ident() == self._ident:
            return
        self.start()
        while event._is_pending and self.state in (NEW, CONNECTING, UP) and self._patience_s > 0:
            waiter = _thread.allocate_lock()
            waiter.acquire()
            self._waiters.append(waiter)
            if not event._is_pending:
                return
            begin = time.monotonic()
            waiter.acquire(timeout=self._patience_s)
            self._patience_s -= time.monotonic() - begin
        # Off until the answer comes, and all that wait for one with it. (In one step: an answer may come any
        # moment.)
        if event._is_pending:
            _event.set_pending_off([*self.declared, event])

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was emitted before has reached the consumers, within this time. From signal
        handlers, too."""
        if self.fifo.counts.records_in == self._flushed_records:
            return True
        if self.state in (NEW, CLOSED) or _thread.get_ident() == self._ident:
            return False
        flush = Flush(self.fifo.counts.records_in)
        self._flushes.append(flush)
        self.fifo.wake()
        flush.wait(timeout_s)
        return flush.done

    def close(self) -> None:
        """Send what is pending, within fork.CLOSE_S, and end; may be called more than once."""
        if self.state == CLOSED or self.closing:
            return
        self.closing = True
        _event.set_all_off(self.declared)
        fork.forget(self)
        if (ended := self._ended) is None:
            self.state = CLOSED
            return
        deadline = time.monotonic() + fork.CLOSE_S
        if self.state in (UP, CONNECTING):
            self.flush(fork.CLOSE_S)
        self.state = CLOSED
        self.fifo.wake()
        if ended.acquire(timeout=max(deadline - time.monotonic(), 0.1)):
            ended.release()

    def start(self) -> None:
        """Make sure that there is a thread, unless the session is closed."""
        if self.state not in (NEW, FORKED) or self.closing:
            return
        # First of all: a fork from here on must find the session.
        fork.watch(self)
        if not self._starting.acquire(blocking=False):
            return
        with no_fork:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._patience_s = PATIENCE_S
        self.state = CONNECTING
        _event.use_inherited(self.declared)
        self.fifo.set_wake_fd(self._wake_fd)
        try:
            # Thread.start() takes a lock of the threading module, and a signal handler may have come between:
            # so a bare thread calls it, and no other thread waits for that. Signals are the program's: one
            # that it has blocked everywhere, to wait for it, must not find a thread that has not.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _signals_to_block())
            try:
                _thread.start_new_thread(self._start_thread, ())
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except RuntimeError:
            self._end()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="utracefs", daemon=True).start()
        except RuntimeError:
            # No more threads, in most cases because the interpreter is about to exit: there will be no
            # tracing.
            self._end()

    # -- the thread

    def _run(self) -> None:
        self._ident = _thread.get_ident()
        back_off_s = FIRST_BACK_OFF_S
        places = candidates(self._directory)
        try:
            while not self._is_over():
                self._patience_s = PATIENCE_S
                if (sock := self._connect(places)) is not None:
                    if self._talk(sock):
                        back_off_s = FIRST_BACK_OFF_S
                    self._disconnect()
                if self._is_over():
                    break
                self.state = WAITING
                _event.set_pending_off(self.declared)
                self._wake_waiters()
                until = time.monotonic() + back_off_s
                while not self._is_over() and (left_s := until - time.monotonic()) > 0:
                    self.fifo.wait(int(left_s * 1000) + 1)
                back_off_s = min(back_off_s * 2, LAST_BACK_OFF_S)
                if not self._is_over():
                    self.state = CONNECTING
        finally:
            self._end()

    def _is_over(self) -> bool:
        return self.state == CLOSED

    def _end(self) -> None:
        """The thread's last deed; after it nothing of the session runs any more."""
        self.state = CLOSED
        self._disconnect()
        self._wake_waiters()
        self._fail_flushes()
        self.fifo.set_wake_fd(-1)
        with no_fork:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
            self._wake_fd = -1
        self._ident = None
        _event.give_up_fifo(self.fifo, self._events_by_index())
        self.ring = None  # nothing in it is lost: the daemon has it
        self._close_fds(self._ring_fds)
        fork.forget(self)
        if self._ended is not None:
            self._ended.release()

    def _connect(self, places: list[str]) -> socket.socket | None:
        for directory in places:
            with no_fork:
                sock = self._socket = socket.socket(
                    socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
                )
            try:
                # A Unix socket connects at once or not at all: EAGAIN is a full backlog.
                connect_one(sock, directory, DATA_SOCKET)
            except OSError:
                self._close_socket()
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
                return sock
        return None

    def _close_socket(self) -> None:
        with no_fork:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            self._close_fds(self._received_fds)

    def _close_fds(self, fds: list[int]) -> None:
        with no_fork:
            while fds:
                os.close(fds.pop())

    def _disconnect(self) -> None:
        """Also when there is no connection. Events go off before anything else."""
        _event.set_all_off(self.declared)
        self._close_socket()
        if self._connection is not None:
            self._fail_flushes()
            self._connection = None
        self._status_map = None

    def _fail_flushes(self) -> None:
        while self._flushes:
            self._flushes.pop().end(False)
        if self._connection is not None:
            for flush in self._connection.unanswered_flushes:
                flush.end(False)

    def _wake_waiters(self) -> None:
        while self._waiters:
            self._waiters.pop().release()

    def _events_by_index(self) -> list[Event | None]:
        """write_index on the last connection that was up, to Event."""
        known = [event for event in self.declared if event.index >= 0]
        by_index: list[Event | None] = [None] * (max((event.index for event in known), default=-1) + 1)
        for event in known:
            by_index[event.index] = event
        return by_index

    def _warn(self, message: str, *values: object) -> None:
        with no_fork:
            import logging

        logging.getLogger("utracefs").warning(message, *values)

    # -- one connection

    def _talk(self, sock: socket.socket) -> bool:
        """Be a client until the connection ends. Returns whether the daemon ever answered as one."""
        with no_fork:
            # Only a process that finds a daemon pays for this import.
            from utracefs import connection as wire

        deeds: dict[type[wire.Action], Callable[[Any], None]] = {
            wire.MapStatus: self._map_status,
            wire.MapRing: self._map_ring,
            wire.OfferRing: self._offer_ring,
            wire.GiveUpRing: self._give_up_ring,
            wire.MoveAll: self._move_all,
            wire.Follow: self._follow,
            wire.Refuse: self._refuse,
            wire.CountRefused: self._count_refused,
            wire.EndFlushes: self._end_flushes,
            wire.Warn: lambda action: self._warn(action.message, action.value),
        }
        self._by_old_index = self._events_by_index()
        ring_size = wanted_ring_size()
        if ring_size is None:
            self._give_up_ring()
        talk = self._connection = wire.DataConnection(
            self._by_old_index, ring_size=ring_size, has_ring=self.ring is not None
        )
        self.fifo.begin_stream()
        try:
            while not self._is_over():
                self._ask(talk)
                happened = self.fifo.pump(sock.fileno())
                if happened & (READABLE | BROKEN):
                    # what cannot be sent to may still have said why
                    goes_on = self._receive(talk, sock, deeds)
                    if not goes_on or happened & BROKEN:
                        break
        except ProtocolError as error:
            self._warn("the daemon cannot be understood, disconnected: %s", error)
        return talk.answered

    def _ask(self, talk: wire.DataConnection) -> None:
        """Hand the FIFO what there is to ask, if it has sent the last batch."""
        if self.fifo.control_pending:
            return
        flushes: list[Flush] = []
        while self._flushes and talk.can_sync:
            flushes.append(self._flushes.pop())
        # All that the flushes speak of stands before the place where the next record will.
        after = self.fifo.position if flushes else 0
        if requests := talk.requests(self.declared, flushes):
            self.fifo.set_control(requests, after)

    def _receive(
        self,
        talk: wire.DataConnection,
        sock: socket.socket,
        deeds: dict[type[wire.Action], Callable[[Any], None]],
    ) -> bool:
        """Read and act on it; False at the end of the connection. ProtocolError: not a daemon of ours."""
        with no_fork:
            try:
                data, fds, _, _ = socket.recv_fds(
                    sock, _RECEIVE_BYTES, _MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
                )
            except BlockingIOError:
                return True
            except OSError:
                return False
            self._received_fds += fds
        if not data:
            return False
        for action in talk.receive(data, fds):
            deeds[type(action)](action)
        if self.closing:
            _event.set_all_off(self.declared)
        if talk.is_idle(self.declared):
            self._patience_s = PATIENCE_S
        self._wake_waiters()
        return True

    def _map_status(self, action: wire.MapStatus) -> None:
        if os.fstat(action.fd).st_size < action.size:
            raise ProtocolError(errno.EPROTO, f"mmap_status: the file has less than {action.size} bytes")
        try:
            self._status_map = StatusMap(action.fd, action.size)
        except OSError as error:
            raise ProtocolError(error.errno or errno.EPROTO, f"mmap_status: {error.strerror}") from None
        with no_fork:
            self._received_fds.remove(action.fd)
            os.close(action.fd)

    def _map_ring(self, action: wire.MapRing) -> None:
        try:
            seals = fcntl.fcntl(action.fd, fcntl.F_GET_SEALS)
        except OSError:
            seals = 0
        # All of it is accessed: header, data and counters. What can shrink later would be SIGBUS in the
        # program.
        if not seals & fcntl.F_SEAL_SHRINK or os.fstat(action.fd).st_size < ring_file_bytes(action.size):
            raise ProtocolError(
                errno.EPROTO, f"mmap_ring: not sealed memory of a ring of {action.size} bytes"
            )
        try:
            ring = RingOutlet(self.fifo.counts, action.fd, action.doorbell, action.size)
        except OSError as error:
            self._warn("no data ring: %s", error.strerror)
            return
        with no_fork:
            for fd in (action.fd, action.doorbell):
                self._received_fds.remove(fd)
                self._ring_fds.append(fd)
        self.ring = ring

    def _offer_ring(self, action: wire.OfferRing) -> None:
        assert self._socket is not None
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", self._ring_fds))]
        try:
            # MSG_NOSIGNAL: the daemon may be gone by now, and SIGPIPE may be what ends the program.
            sent = self._socket.sendmsg([action.request], rights, socket.MSG_NOSIGNAL)
        except OSError:
            return  # the end of the connection, which is read next
        if sent != len(action.request):
            raise ProtocolError(errno.EPROTO, "the socket does not take a request")

    def _give_up_ring(self, _: wire.GiveUpRing | None = None) -> None:
        if self.ring is not None:
            _event.give_up_ring(self.ring, self._by_old_index)
        self.ring = None
        self._close_fds(self._ring_fds)

    def _move_all(self, action: wire.MoveAll) -> None:
        assert self._status_map is not None
        outlet = self.ring or self.fifo
        try:
            _event.move(self._status_map, outlet, action.places, self.fifo, self._by_old_index)
        except ValueError as error:
            raise ProtocolError(errno.EPROTO, str(error)) from None
        if self.state == CONNECTING:
            self.state = UP

    def _follow(self, action: wire.Follow) -> None:
        assert self._status_map is not None
        try:
            _event.follow(self._status_map, self.ring or self.fifo, action.places)
        except ValueError as error:
            raise ProtocolError(errno.EPROTO, str(error)) from None

    def _refuse(self, action: wire.Refuse) -> None:
        event, error = action.event, action.error
        seen = event.error is not None and event.error.errno == error.errno
        event.error = error
        event._set_off()
        if not seen:
            self._warn("event %s is off: %s (%s)", event.name, error.text, error.errno_name)

    def _count_refused(self, action: wire.CountRefused) -> None:
        for event in self.declared:
            if event.index == action.write_index:
                event.refused[action.errno_name] = event.refused.get(action.errno_name, 0) + action.count
                return

    def _end_flushes(self, action: wire.EndFlushes) -> None:
        for flush in action.flushes:
            if action.done:
                self._flushed_records = max(self._flushed_records, flush.records)
            flush.end(action.done)

    # -- fork

    def start_child(self) -> None:
        """In a forked child: the thread is gone, its descriptors are the parent's, and nothing of this may
        have been half done: every attribute is either made anew here or was changed in one step."""
        sock, fds = self._socket, [*self._received_fds, *self._ring_fds, self._wake_fd]
        self._socket = None
        self._received_fds = []
        self._ring_fds = []
        self._wake_fd = -1
        self._connection = None
        self._status_map = None
        self._starting = _thread.allocate_lock()
        self._ended = None
        self._ident = None
        self._waiters = []
        self._flushes = []
        self._flushed_records = 0
        self._patience_s = PATIENCE_S
        self.fifo.start_child()
        if self.state == CLOSED or self.closing:
            self.state = CLOSED
        else:
            self.state = FORKED
            _event.start_child(self.declared)
        self.ring = None
        # Last: until a moment ago a signal handler's record would have rung the parent's doorbell.
        if sock is not None:
            sock.close()  # not shutdown(): the connection is the parent's
        for fd in fds:
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)


def wanted_ring_size() -> int | None:
    """Bytes of the data ring to ask for, None without one: UTRACEFS_DATA_RING, and UTRACEFS_RING_KB rounded
    up to what a ring can have. Nonsense there is not the application's fault: ignored."""
    if os.environ.get("UTRACEFS_DATA_RING", "1") == "0":
        return None
    text = os.environ.get("UTRACEFS_RING_KB", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return DATA_RING_SIZE
    return min(max(1 << (int(text) * 1024 - 1).bit_length(), MIN_DATA_RING), MAX_DATA_RING)
