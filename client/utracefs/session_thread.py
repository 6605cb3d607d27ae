"""The session thread: one per session and process, the owner of its socket, descriptors and outlets.

It is a thread of the C library's named "utracefs" (`_native`), which the first declared event starts:

         first event          connect failed, or the connection was lost
    NEW ---------------> CONNECTING -------------------------------------> WAITING (50 ms, doubled up to 1 s)
                          |      ^--------------------------------------------'
     all that was declared|
     before is answered   v                          fork: the child's copy of the session
                          UP                  FORKED ----------------------> CONNECTING
    close, from anywhere: CLOSED                     first thing to write or to register

Connected, the thread does what `connection` says: sends its requests, carries out its actions. Then it sleeps
in `Fifo.pump_until`, without the GIL and without timers, until a record or another thread wakes it.

What it does is one generator, `_run`, which yields what to wait for. So what the thread is at does not stand
on its stack: it ends before a fork and another one goes on in the parent after it. Meanwhile records go on
into the data ring or gather in the FIFO.

**What an Event sees.** While CONNECTING a new event is pending: the first look at it (`if event:`, `emit`)
waits for the answer, so that a short script does not lose its first record; all looks of one connection
attempt together wait at most PATIENCE_S for the daemon, or what UTRACEFS_PATIENCE_S says (`utracefs record`
gives its command more); what talks to it is imported first, once per process. After that the event is off
until the answer comes. A signal handler that looks meanwhile does not wait as well: what it emits is held for
the answer. In any other state but UP events are off, which costs nothing to look at.

**Reconnect.** The records that were not sent are held until the events that the old connection knew are
answered on the new one; then, in one step, all events get their new place and the held records their new
index. What belongs to an event that was refused is lost, and counted.

**fork.** The child shares the status map, so its events go on following the daemon without a connection. The
child makes one of its own when it has something to write, declares an event, or has lived for a second (from
then on it must notice by itself when a daemon goes and another comes). Its first `emit` waits for that,
within PATIENCE_S: then the record stands in the child's own ring, whatever becomes of the child the moment
after. It sends nothing that its parent left pending, and writes into no ring of its parent's.

**Descriptors.** The program may have closed them, and have put files of its own under their numbers
(`_descriptors`). Whatever wakes the thread, it first looks whether all are still ours. If not it closes those
that are, forgets the others and connects again.

**Locks.** The application's threads, its signal handlers and fork share this with the session thread, and
none of them waits for a lock that another could hold: state changes in steps that are atomic under the GIL
(append, setdefault, one assignment), and a waiter waits on a lock of its own. A fork waits for the end of a
step, but not for ever.

**Faults.** Whatever fails here costs the connection, and the next attempt is made after the back-off. What
there is to say goes to the program's log if it has one: nothing is imported for it, because a program may
have lost its right to, or its modules (chroot), or somebody else may have put his own there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import time

from utracefs import _event, fork
from utracefs._descriptors import Descriptor, connect_to, receive, send_with
from utracefs._event import Event
from utracefs._native import NativeThread, Waiter, is_waiting, wait_here
from utracefs._outlets import BROKEN, READABLE, Fifo, LostOutlet, RingOutlet, ring_file_bytes
from utracefs._status_map import StatusMap
from utracefs.flushing import Flush
from utracefs.tree.runtime_dir import DATA_SOCKET, candidates, socket_path
from utracefs_protocol.errors import ProtocolError
from utracefs_protocol.limits import DATA_RING_SIZE, MAX_DATA_RING, MIN_DATA_RING

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, Final, TypeAlias

    from utracefs import connection as wire
    from utracefs.first_words import FirstWords

    ToPump: TypeAlias = tuple[Descriptor | None, int]
    """A socket, and how long to wait without one, in ms."""

__all__ = ["LONGEST_PATIENCE_S", "PATIENCE_S", "SessionThread", "wanted_patience_s", "wanted_ring_size"]

NEW: Final = "new"
CONNECTING: Final = "connecting"
UP: Final = "up"
WAITING: Final = "waiting"
FORKED: Final = "forked"
CLOSED: Final = "closed"

FIRST_BACK_OFF_S: Final = 0.05
LAST_BACK_OFF_S: Final = 1.0

PATIENCE_S: Final = 0.25
"""What all looks at pending events may wait together, per connection attempt."""

LONGEST_PATIENCE_S: Final = 60.0
"""The most that UTRACEFS_PATIENCE_S can ask for instead."""

IMPORT_PATIENCE_S: Final = 2.0
"""The same while what talks to the daemon is imported, once per process: some 50 ms on an idle machine."""

FORK_PATIENCE_S: Final = 1.0
"""What a fork waits for a step of the thread. A step takes longer only when a logging handler of the program
does, which may wait for a lock that the forking thread holds."""

DRIVE_S: Final = 0.02
"""How long the first emit of a forked child carries out the thread's steps itself. A daemon that is there
answers in a twentieth of that; who waits longer can as well wait for a thread."""

_BUSY_MS: Final = 5
"""Until the next look at a daemon that has too many programs before its door."""

_NO_BELL_MS: Final = 100
"""Until the next look while there is no descriptor to be woken by."""


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
        self._parents_ring: RingOutlet | None = None
        """In a forked child, until it is connected."""
        self._may_come_back = False
        """The last attempt found a socket at which nobody answers, so this process may connect later."""
        self.state = NEW
        self.declared: list[Event] = []
        """In the order in which they are registered on every connection. Only ever appended to."""
        self.closing = False
        self._is_over = False
        """`close` has been waited for, or given up: the thread is to end."""
        self._full_patience_s = wanted_patience_s()
        self._patience_s = self._full_patience_s
        self._attempt = 0
        """Counts how often the patience began anew."""
        self._waiters: list[Waiter] = []
        self._flushes: list[Flush] = []
        self._flushed_records = 0
        self._native = NativeThread(self.fifo, self._step)
        self._happened = 0
        self._running = self._run()
        self._back_off_s = FIRST_BACK_OFF_S
        self._last_fault = ""
        """Since a daemon last answered: a fault that comes again with each attempt is told once."""
        self._socket: Descriptor | None = None
        self._received: dict[int, Descriptor] = {}
        """Descriptors that came and were not put to use yet, by number."""
        self._ring_fds: list[Descriptor] = []
        """Memory and doorbell of the ring."""
        # Of the connection that there is.
        self._connection: wire.DataConnection | None = None
        self._by_old_index: list[Event | None] = []
        self._status_map: StatusMap | None = None
        self._path = ""
        self._deeds: dict[type[wire.Action], Callable[[Any], None]] = {}
        self._make_first_words: type[FirstWords]
        self._first_words: FirstWords | None = None
        """For a child. Valid as long as all events are what they were."""

    # -- what the application's threads call

    def declare(self, event: Event) -> None:
        """Register the event, here and on all connections to come. There must be no more than one of a
        declaration."""
        if self.state not in (WAITING, CLOSED):
            event._set_pending()  # before the thread can know of it, and answer
        self.declared.append(event)
        self._first_words = None
        self.start()
        self.fifo.wake()

    def await_answer(self, event: Event) -> bool:
        """A pending event is looked at, or one of a forked child is emitted. Waits for the answer, within the
        bounds; then the event is not pending any more, unless the session thread itself looks (a logging
        handler of ours): that cannot wait for itself.

        True: this thread waits already, and a signal handler looks. The event may still be pending then, and
        holds what is emitted until the answer comes."""
        if self._native.is_current:
            return False
        if is_waiting():
            if not self._native.is_wanted:
                self.start()  # it may be another session that is waited for
            return True
        wait_here(lambda: self._wait_for_answer(event))
        return False

    def _wait_for_answer(self, event: Event) -> None:
        if self.state == FORKED and self._first_words is not None and self._may_start():
            self._native.drive(DRIVE_S, lambda: not event._is_unsettled)
        self.start()
        while (
            event._is_unsettled
            and self.state in (NEW, FORKED, CONNECTING, UP)
            and self._native.is_wanted
            and self._patience_s > 0
        ):
            waiter = Waiter()
            self._waiters.append(waiter)
            if not event._is_unsettled:
                return
            begin, attempt = time.monotonic(), self._attempt
            waiter.wait(self._patience_s)
            if attempt == self._attempt:
                self._patience_s -= time.monotonic() - begin
        # Until the answer comes, and all that wait for one with it. (In one step: an answer may come any
        # moment.)
        if event._is_unsettled:
            _event.give_up_waiting([*self.declared, event])

    def flush(self, timeout_s: float) -> bool:
        """Whether all that was emitted before has reached the consumers, within this time. From signal
        handlers, too."""
        if self.fifo.counts.records_in == self._flushed_records:
            return True
        if self.state in (NEW, CLOSED) or self._native.is_current:
            return False
        self._native.end_drive()
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
        deadline = time.monotonic() + fork.CLOSE_S
        if self.state in (UP, CONNECTING):
            self.flush(fork.CLOSE_S)
        self._is_over = True
        # If it does not end, it is in a step, and will find the session closed.
        if self._native.stop(max(deadline - time.monotonic(), 0.1)):
            self._end()

    def start(self) -> None:
        """Make sure that there is a thread, unless the session is closed. Where there can be none, for now or
        at all, events are off."""
        self._native.end_drive()
        if self._may_start() and not self._native.start():
            self._set_off()

    def _may_start(self) -> bool:
        """Whether there is to be a thread and none is; then all is there that it needs."""
        if self.state not in (NEW, FORKED) or self.closing or self._native.is_wanted:
            return False
        # First of all: a fork from here on must find the session.
        if not fork.watch(self):
            self._end()
            return False
        try:
            self.fifo.open_bell()
        except OSError:
            self._set_off()
            return False
        return True

    def _set_off(self) -> None:
        """There is no connection. A child that can have none goes on after its parent's events, and says in
        its parent's ring what is lost."""
        if self._parents_ring is None or self._may_come_back or self.closing:
            _event.set_all_off(self.declared)
        else:
            outlet = LostOutlet(self._parents_ring)
            _event.cut_off(self.declared, outlet, self.fifo, self._events_by_index())

    # -- the thread

    def _step(self, happened: int) -> ToPump | None:
        """From one wait to the next; what to wait for, None at the end of the session."""
        self._happened = happened
        try:
            return next(self._running)
        except StopIteration:
            if self.state == CLOSED:
                return None
        except BaseException as error:  # noqa: BLE001 - in this thread even SystemExit is a fault like others
            self._note_fault(error)
        self._running = self._run(self._next_back_off())
        self._disconnect()
        return None, 0

    def _note_fault(self, error: BaseException) -> None:
        fault = repr(error)
        if fault != self._last_fault and not isinstance(error, MemoryError | OSError):
            self._last_fault = fault
            self._warn("the session begins anew: %s", fault)

    def _next_back_off(self) -> float:
        now_s = self._back_off_s
        self._back_off_s = min(now_s * 2, LAST_BACK_OFF_S)
        return now_s

    def _run(self, pause_s: float = 0) -> Generator[ToPump]:
        """All that the thread does; `_happened` is what the wait before brought. pause_s: to begin with.

        There is no `finally` here: in a forked child it would be carried out when this ends unfinished.
        """
        while not self._is_over:
            if pause_s:
                self.state = WAITING
                self._set_off()
                self._wake_waiters()
                yield from self._wait(pause_s)
                _import_early()
            self.state = CONNECTING
            self._patience_s = self._full_patience_s
            if (yield from self._connect()):
                if (yield from self._talk()):
                    self._back_off_s = FIRST_BACK_OFF_S
                    self._last_fault = ""
                if self.state == UP and not self.closing and not self._are_ours():
                    # The program has closed them. The daemon is there as it was.
                    _event.begin_anew(self.declared)
                    self._disconnect(stay=True)
                    pause_s = 0
                    continue
                self._disconnect()
            pause_s = self._next_back_off()
        self._end()

    def _wait(self, time_s: float) -> Generator[ToPump]:
        """Without a connection, or until the session is over."""
        until = time.monotonic() + time_s
        while not self._is_over and (left_s := until - time.monotonic()) > 0:
            left_ms = int(left_s * 1000) + 1
            yield None, left_ms if self._has_bell() else min(left_ms, _NO_BELL_MS)

    def _has_bell(self) -> bool:
        """Whether the thread can be woken; makes another bell where the program has closed it."""
        try:
            self.fifo.open_bell()
        except OSError:
            return False
        return True

    def _end(self) -> None:
        """After it nothing of the session runs any more. Twice is harmless."""
        self._is_over = True
        self.state = CLOSED
        self._disconnect()
        self._wake_waiters()
        self._fail_flushes()
        self.fifo.close_bell()
        if self._parents_ring is not None:
            outlet = LostOutlet(self._parents_ring)
            _event.give_up_fifo(self.fifo, self._events_by_index(), outlet)
            self._parents_ring = None
        _event.set_all_off(self.declared)
        _event.give_up_fifo(self.fifo, self._events_by_index())
        self.ring = None  # nothing in it is lost: the daemon has it
        self._close_all(self._ring_fds)
        fork.forget(self)

    def _connect(self) -> Generator[ToPump, None, bool]:
        """Connect to the first daemon that there is."""
        until = time.monotonic() + self._full_patience_s
        while not self._is_over and self._has_bell():
            if self._speaks_first():
                return True
            busy = self._may_come_back = False
            for directory in candidates(self._directory):
                try:
                    self._path = socket_path(directory, DATA_SOCKET)
                    self._socket = connect_to(self._path)
                except OSError as error:
                    busy = busy or error.errno == errno.EAGAIN
                    self._may_come_back |= error.errno in (errno.EAGAIN, errno.ECONNREFUSED)
                else:
                    return True
            if not busy or time.monotonic() > until:
                break
            yield from self._wait(_BUSY_MS / 1000)
        return False

    def _close_all(self, descriptors: list[Descriptor]) -> None:
        """Those that are ours; the last first, because one that came behind another is known by that."""
        while descriptors:
            descriptors.pop().close()

    def _disconnect(self, *, stay: bool = False) -> None:
        """Also when there is no connection. Events go off before anything else, unless they `stay`."""
        if self._parents_ring is None and not stay:
            _event.set_all_off(self.declared)
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._close_all([*self._received.values()])
        self._received.clear()
        if self._connection is not None:
            self._fail_flushes()
            self._connection = None
        self._status_map = None
        self._first_words = None
        if not all(fd.is_ours() for fd in self._ring_fds):
            # What is in the ring is the daemon's, which has it mapped; offered to another it can never be.
            self.ring = None
            self._close_all(self._ring_fds)

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
        """To the program's log, else to its standard error, as `logging` does where nothing is set up. What
        is wrong with either costs the message."""
        try:
            logging = sys.modules.get("logging")
            if logging is None:
                _tell(message, *values)
            elif self._native.is_current and not self._native.is_in_driven_step:
                _log_under_our_name(logging, message, *values)
            else:
                logging.getLogger("utracefs").warning(message, *values)
        except BaseException as error:  # noqa: BLE001 - whatever a handler of the program's raises
            _tell(f"{message} (and logging failed: %r)", *values, error)

    # -- one connection

    def _new_connection(self) -> wire.DataConnection:
        # A first event without a daemon does not pay for this import. On a busy machine it takes longer than
        # a daemon may: it is no fault of the daemon's.
        self._patience_s = max(IMPORT_PATIENCE_S, self._full_patience_s)
        from utracefs import connection as wire
        from utracefs.first_words import FirstWords

        self._make_first_words = FirstWords
        self._patience_s = self._full_patience_s
        self._attempt += 1
        self._wake_waiters()
        self._deeds = {
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
        has_ring = self.ring is not None
        return wire.DataConnection(self._by_old_index, ring_size=ring_size, has_ring=has_ring)

    def _talk(self) -> Generator[ToPump, None, bool]:
        """Be a client until the connection ends. Returns whether the daemon ever answered as one."""
        if self._connection is None:
            self._connection = self._new_connection()
        talk, deeds = self._connection, self._deeds
        self.fifo.begin_stream()
        try:
            while not self._is_over and self._are_ours():
                self._ask(talk)
                yield self._socket, -1
                if self._happened & (READABLE | BROKEN):
                    # what cannot be sent to may still have said why
                    goes_on = self._receive(talk, deeds)
                    if not goes_on or self._happened & BROKEN:
                        break
        except ProtocolError as error:
            self._warn("the daemon cannot be understood, disconnected: %s", error)
        return talk.answered

    def _are_ours(self) -> bool:
        """Whether the program has left our descriptors alone."""
        return (
            self.fifo.has_bell
            and self._socket is not None
            and self._socket.is_ours()
            and all(fd.is_ours() for fd in self._ring_fds)
        )

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
        self, talk: wire.DataConnection, deeds: dict[type[wire.Action], Callable[[Any], None]]
    ) -> bool:
        """Read and act on it; False at the end of the connection. ProtocolError: not a daemon of ours."""
        assert self._socket is not None
        came: dict[int, Descriptor] = {}
        data = receive(self._socket, came)
        self._received.update(came)
        if data is None:
            return True
        if not data:
            return False
        for action in talk.receive(data, came):
            deeds[type(action)](action)
        if self.closing:
            _event.set_all_off(self.declared)
        if talk.is_idle(self.declared):
            self._patience_s = self._full_patience_s
        self._wake_waiters()
        return True

    def _map_status(self, action: wire.MapStatus) -> None:
        if os.fstat(action.fd).st_size < action.size:
            raise ProtocolError(errno.EPROTO, f"mmap_status: the file has less than {action.size} bytes")
        try:
            self._status_map = StatusMap(action.fd, action.size)
        except OSError as error:
            raise ProtocolError(error.errno or errno.EPROTO, f"mmap_status: {error.strerror}") from None
        self._received.pop(action.fd).close()
        self.fifo.sign(action.writers)

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
            ring = RingOutlet(
                self.fifo, self._received[action.fd], self._received[action.doorbell], action.size
            )
        except OSError as error:
            self._warn("no data ring: %s", error.strerror)
            return
        self._ring_fds = [self._received.pop(action.fd), self._received.pop(action.doorbell)]
        self.ring = ring

    def _offer_ring(self, action: wire.OfferRing) -> None:
        assert self._socket is not None
        try:
            sent = send_with(self._socket, action.request, self._ring_fds)
        except OSError:
            return  # the end of the connection, which is read next
        if sent != len(action.request):
            raise ProtocolError(errno.EPROTO, "the socket does not take a request")

    def _give_up_ring(self, _: wire.GiveUpRing | None = None) -> None:
        if self.ring is not None:
            _event.give_up_ring(self.ring, self._by_old_index)
        self.ring = None
        self._close_all(self._ring_fds)

    def _move_all(self, action: wire.MoveAll) -> None:
        assert self._status_map is not None
        self._first_words = None
        outlet = self.ring or self.fifo
        try:
            _event.move(self._status_map, outlet, action.places, self.fifo, self._by_old_index)
        except ValueError as error:
            raise ProtocolError(errno.EPROTO, str(error)) from None
        self._parents_ring = None
        if self.state == CONNECTING:
            self.state = UP

    def _follow(self, action: wire.Follow) -> None:
        assert self._status_map is not None
        self._first_words = None
        try:
            _event.follow(self._status_map, self.ring or self.fifo, action.places)
        except ValueError as error:
            raise ProtocolError(errno.EPROTO, str(error)) from None

    def _refuse(self, action: wire.Refuse) -> None:
        self._first_words = None
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

    def pause(self) -> None:
        """Before a fork."""
        self._native.pause(FORK_PATIENCE_S)
        if self.state == UP and self._first_words is None and not self._native.is_current:
            self._first_words = self._make_first_words(
                self._path, self.declared, self._events_by_index(), wanted_ring_size()
            )

    def _speaks_first(self) -> bool:
        """In a forked child: what there is to say was put together before the fork."""
        words, self._first_words = self._first_words, None
        spoken = None if words is None else words.speak()
        if words is None or spoken is None:
            return False
        self._socket, self._connection = spoken
        self._by_old_index = words.by_old_index
        return True

    def resume(self) -> None:
        """After it, in the parent."""
        if self._native.is_wanted and not self._native.start():
            _event.set_all_off(self.declared)

    def start_child(self) -> None:
        """In a forked child: the thread is gone and its descriptors are the parent's."""
        # A step was under way, and may have been half way through an import: that is never finished here. Or
        # the step itself forked, and goes on in both.
        in_a_step = self._native.is_running or self._native.is_in_driven_step
        descriptors = [*self._ring_fds, *self._received.values()]
        if self._socket is not None:
            descriptors.append(self._socket)  # closed, not shut down: the connection is the parent's
        self._native.forget()
        self._socket = None
        self._received = {}
        self._ring_fds = []
        self._connection = None
        self._status_map = None
        self._running = self._run()
        self._waiters = []
        self._flushes = []
        self._flushed_records = 0
        self._patience_s = self._full_patience_s
        self.fifo.start_child()
        if self.state == CLOSED or self.closing or in_a_step:
            self._is_over = True
            self.state = CLOSED
            _event.set_all_off(self.declared)
        else:
            self.state = FORKED
            self._parents_ring = self.ring or self._parents_ring
            _event.start_child(self.declared)
        self.ring = None
        self._close_all(descriptors)


def _import_early() -> None:
    """What talks to a daemon: when one comes, the program may have lost its right to read it (chroot,
    setuid)."""
    try:
        import utracefs.connection
        import utracefs.first_words  # noqa: F401
    except ImportError:
        pass  # too late; it is tried again when a daemon is there


def _log_under_our_name(logging: Any, message: str, *values: object) -> None:
    """From a thread that Python does not know, and so calls Dummy-1."""
    threading = sys.modules["threading"]
    thread = threading.current_thread()
    thread.name = "utracefs"
    try:
        logging.getLogger("utracefs").warning(message, *values)
    finally:
        # Up to Python 3.11 what current_thread() makes for a thread that it does not know stays for ever.
        getattr(threading, "_active", {}).pop(threading.get_ident(), None)


def _tell(message: str, *values: object) -> None:
    """On standard error, if it can be written to."""
    try:
        sys.stderr.write(f"utracefs: {message % values}\n")
    except BaseException:  # noqa: BLE001 - closed, replaced, or none
        return


def wanted_patience_s() -> float:
    """UTRACEFS_PATIENCE_S, in seconds. Nonsense there is not the application's fault: ignored."""
    text = os.environ.get("UTRACEFS_PATIENCE_S", "")
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 10):
        return PATIENCE_S
    return min(float(text), LONGEST_PATIENCE_S)


def wanted_ring_size() -> int | None:
    """Bytes of the data ring to ask for, None without one: UTRACEFS_DATA_RING, and UTRACEFS_RING_KB rounded
    up to what a ring can have. Nonsense there is not the application's fault: ignored."""
    if os.environ.get("UTRACEFS_DATA_RING", "1") == "0":
        return None
    text = os.environ.get("UTRACEFS_RING_KB", "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return DATA_RING_SIZE
    return min(max(1 << (int(text) * 1024 - 1).bit_length(), MIN_DATA_RING), MAX_DATA_RING)
