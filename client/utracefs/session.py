"""A session: one connection to the daemon, the events declared on it, and the thread that looks after both.

Applications call `event`, `flush`, `close`, `stats`; what they may call millions of times is in `_producer`. All talking
is done by one daemon thread, named "utracefs", which the first `event()` starts:

         first event()              connect failed, or the connection was lost
    NEW ---------------> CONNECTING ------------------------------------------> WAITING (50 ms, doubled up to 2 s)
                          |      ^-------------------------------------------------'
     all that was declared|
     before is answered   v                          fork: the child's copy of the session
                          UP                  FORKED ----------------------> CONNECTING
    close(), from anywhere: CLOSED                    first thing to write or to register

Connected, the thread sends the declarations (at most MAX_UNANSWERED at a time) and maps the status file; then it sleeps
in `SocketSink.pump`, without the GIL and without timers, until a record or a wish wakes it.

**What an Event sees.** While CONNECTING a new event is pending: the first look at it (`if event:`, `emit`) waits for the
answer, so that a short script does not lose its first record; all looks of one connection attempt together wait at most
a quarter of a second. In any other state but UP events are off, which costs nothing to look at.

**Reconnect.** A write_index means nothing on another connection. So the records that were not sent are held until the
events that the old connection knew are answered on the new one; then, in one step, all events get their new place and the
held records their new index. What belongs to an event that was refused is lost, and counted.

**fork.** The child shares the status map, so its events go on following the daemon without a connection. The child makes
one of its own when it has something to write, declares an event, or has lived for a second (from then on it must notice by
itself when a daemon goes and another comes). It sends nothing that its parent left pending.

**Locks.** The application's threads, its signal handlers and fork share this with the session thread, and none of them
waits for a lock that another could hold: state changes in steps that are atomic under the GIL (append, setdefault, one
assignment), and a waiter waits on a lock of its own. The one shared lock, `no_fork`, is taken by fork, and held by the
session thread for short times that a child must not be born in: while a descriptor was made and is not noted yet (the
child could not close it), and while a module is being imported (the child would wait for its lock for ever).
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from utracefs import _producer
from utracefs._producer import Event, SocketSink
from utracefs.declaring import MULTI_FORMAT, PERSIST, check_declaration, make_event
from utracefs.runtime_dir import DATA_SOCKET, candidates, connect_one
from utracefs_protocol.errors import ProtocolError, TraceError

if TYPE_CHECKING:
    from utracefs.data_connection import DataConnection

__all__ = ["EventStats", "Session", "Stats"]

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

CLOSE_S: Final = 0.5
"""What `close` may take to send what is pending."""

DEFAULT_BUFFER_KB: Final = 1024
MAX_BUFFER_KB: Final = 1 << 20

_SOCKET_BUFFER: Final = 1 << 20


@attrs.frozen
class EventStats:
    """What became of one event's records, in this process."""

    emitted: int
    """Written while the event was on; the lost ones are among them."""
    lost: int
    """No room, or no daemon to send them to any more."""
    refused: dict[str, int]
    """Sent, but not taken by the daemon: errno name to count. EBADF: the event was disabled meanwhile."""
    error: TraceError | None
    """Why the daemon refused the registration."""


@attrs.frozen
class Stats:
    """What this process emitted, and what became of it."""

    connected: bool
    emitted: int
    """sent + pending + lost."""
    sent: int
    """Handed to the socket; the refused ones are among them."""
    pending: int
    """Waiting to be sent."""
    lost: int
    refused: int
    events: dict[str, EventStats]
    """By declaration."""


class Session:
    """One connection's worth of events. `utracefs.event` and its neighbours use one of these per process.

    directory: of the daemon's sockets; None looks where `runtime_dir` says.
    buffer_kb: room for records not yet sent, rounded up to a power of two; None asks UTRACEFS_BUFFER_KB, else 1 MiB.

    Making one starts nothing; the first `event` does. Owns its thread, socket and descriptors until `close`.
    ValueError: a directory or a size that cannot be.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, buffer_kb: int | None = None
    ) -> None:
        self._directory = None if directory is None else os.fsdecode(directory)
        if self._directory is not None and (not self._directory or "\0" in self._directory):
            raise ValueError(f"{self._directory!r} cannot be a directory")
        self.sink = SocketSink(_capacity(buffer_kb))
        self.state = NEW
        self._by_text: dict[tuple[bytes, int], Event] = {}
        self._by_declaration: dict[tuple[str, int], Event] = {}
        # In the order in which they are registered on every connection. Only ever appended to.
        self.declared: list[Event] = []
        self._starting = _thread.allocate_lock()
        self._waiters: list[_thread.LockType] = []
        self.flushes: list[Flush] = []
        self.flushed_records = 0
        self.patience_s = PATIENCE_S
        self.closing = False
        self._ended: _thread.LockType | None = None
        self._thread_id: int | None = None
        # Descriptors, for the forked child to close: kept here from the moment they exist.
        self._socket: socket.socket | None = None
        self._wake_fd = -1
        self.received_fds: list[int] = []
        # The data ring's memfd and doorbell; they outlive a connection, to be offered on the next one.
        self.ring_fds: list[int] = []
        self._connection: DataConnection | None = None

    # -- what applications call

    def event(self, declaration: str | bytes, *, persist: bool = False, multi_format: bool = False) -> Event:
        """As `utracefs.event`. ValueError: the declaration is wrong."""
        flags = PERSIST * bool(persist) | MULTI_FORMAT * bool(multi_format)
        text = _command_bytes(declaration)
        if (found := self._by_text.get((text, flags))) is not None:
            return found
        return self._declare(text, make_event(self, self.sink, check_declaration(text), flags))

    def events(
        self, declarations: Iterable[str | bytes], *, persist: bool = False, multi_format: bool = False
    ) -> list[Event]:
        """As `utracefs.events`. ValueError: a declaration is wrong; then none is made."""
        flags = PERSIST * bool(persist) | MULTI_FORMAT * bool(multi_format)
        texts = [_command_bytes(declaration) for declaration in declarations]
        new = {
            text: make_event(self, self.sink, check_declaration(text), flags)
            for text in texts
            if (text, flags) not in self._by_text
        }
        # (An Event is false while nobody listens: no `or` here.)
        return [
            self._declare(text, new[text]) if text in new else self._by_text[text, flags] for text in texts
        ]

    def flush(self, timeout_s: float = 1.0) -> bool:
        """As `utracefs.flush`. Waits with the GIL released; may be called from signal handlers."""
        if self.sink.records_in == self.flushed_records:
            return True
        if self.state in (NEW, CLOSED) or _thread.get_ident() == self._thread_id:
            return False
        flush = Flush(self.sink.records_in)
        self.flushes.append(flush)
        self.sink.wake()
        flush.wait(timeout_s)
        return flush.done

    def close(self) -> None:
        """As `utracefs.close`. May be called more than once."""
        if self.state == CLOSED or self.closing:
            return
        self.closing = True
        _producer.set_all_off(self.declared)
        _live.pop(id(self), None)
        if (ended := self._ended) is None:
            self.state = CLOSED
            return
        deadline = time.monotonic() + CLOSE_S
        if self.state in (UP, CONNECTING):
            self.flush(CLOSE_S)
        self.state = CLOSED
        self.sink.wake()
        if ended.acquire(timeout=max(deadline - time.monotonic(), 0.1)):
            ended.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def stats(self) -> Stats:
        """As `utracefs.stats`."""
        events = list(self.declared)
        emitted, sent, pending, lost = self.sink.counts()
        return Stats(
            connected=self.state == UP,
            emitted=emitted,
            sent=sent,
            pending=pending,
            lost=lost,
            refused=sum(sum(event.refused.values()) for event in events),
            events={
                event.declaration: EventStats(event.emitted, event.lost, dict(event.refused), event.error)
                for event in events
            },
        )

    # -- between the application and the thread

    def _declare(self, text: bytes, new: Event) -> Event:
        """The one Event of this declaration; registers it if that is `new`."""
        event = self._by_declaration.setdefault((new.declaration, new.flags), new)
        if event is new and not self.closing:
            if self.state not in (WAITING, CLOSED):
                event._set_pending()  # before the thread can know of it, and answer
            self.declared.append(event)
            self._start()
            if self.state in (CONNECTING, UP):
                self.sink.wake()
        self._by_text[text, event.flags] = event
        return event

    def _start(self) -> None:
        """Make sure that there is a thread, unless the session is closed."""
        if self.state not in (NEW, FORKED) or self.closing:
            return
        # First of all: a fork from here on must find the session.
        _live[id(self)] = self
        _install_hooks()
        if not self._starting.acquire(blocking=False):
            return
        with no_fork:
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self.patience_s = PATIENCE_S
        self.state = CONNECTING
        _producer.use_inherited(self.declared)
        self.sink.set_wake_fd(self._wake_fd)
        try:
            # Thread.start() takes a lock of the threading module, and a signal handler may have come between: so a bare
            # thread calls it, and nobody waits for that.
            _thread.start_new_thread(self._start_thread, ())
        except RuntimeError:
            self._cannot_start()

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="utracefs", daemon=True).start()
        except RuntimeError:
            self._cannot_start()

    def _cannot_start(self) -> None:
        """No more threads, in most cases because the interpreter is about to exit: there will be no tracing."""
        self._end()

    def _start_in_child(self) -> None:
        """For Event: a forked child has something to write, or has lived for a while."""
        self._start()

    def _settle(self, event: Event) -> None:
        """For Event: somebody looks at a pending event. Waits for the answer, within the bounds; then it is not pending
        any more, unless the session thread itself looks (a logging handler of ours): that cannot wait for itself."""
        if _thread.get_ident() == self._thread_id:
            return
        self._start()
        while event._is_pending and self.state in (NEW, CONNECTING, UP) and self.patience_s > 0:
            waiter = _thread.allocate_lock()
            waiter.acquire()
            self._waiters.append(waiter)
            if not event._is_pending:
                return
            begin = time.monotonic()
            waiter.acquire(timeout=self.patience_s)
            self.patience_s -= time.monotonic() - begin
        # Off until the answer comes, and all that wait for one with it. (In one step: an answer may come any moment.)
        if event._is_pending:
            _producer.set_pending_off([*self.declared, event])

    def wake_waiters(self) -> None:
        while self._waiters:
            self._waiters.pop().release()

    def events_by_index(self) -> list[Event | None]:
        """write_index on the last connection that was up, to Event."""
        known = [event for event in self.declared if event.index >= 0]
        by_index: list[Event | None] = [None] * (max((event.index for event in known), default=-1) + 1)
        for event in known:
            by_index[event.index] = event
        return by_index

    # -- the session thread

    def _run(self) -> None:
        self._thread_id = _thread.get_ident()
        back_off_s = FIRST_BACK_OFF_S
        places = candidates(self._directory)
        try:
            while not self._is_over():
                self.patience_s = PATIENCE_S
                if self._connect(places):
                    if self._talk():
                        back_off_s = FIRST_BACK_OFF_S
                    self._disconnect()
                if self._is_over():
                    break
                self._nobody_there()
                until = time.monotonic() + back_off_s
                while not self._is_over() and (left_s := until - time.monotonic()) > 0:
                    self.sink.wait(int(left_s * 1000) + 1)
                back_off_s = min(back_off_s * 2, LAST_BACK_OFF_S)
                if not self._is_over():
                    self.state = CONNECTING
        finally:
            self._end()

    def _is_over(self) -> bool:
        return self.state == CLOSED

    def _nobody_there(self) -> None:
        if not self._is_over():
            self.state = WAITING
        _producer.set_pending_off(self.declared)
        self.wake_waiters()

    def _end(self) -> None:
        """The thread's last deed; after it nothing of the session runs any more."""
        self.state = CLOSED
        self._disconnect()
        self.wake_waiters()
        self._fail_flushes()
        self.sink.set_wake_fd(-1)
        with no_fork:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
            self._wake_fd = -1
        self._thread_id = None
        self.sink.give_up(self.events_by_index())
        self.sink.forget_ring()
        self.close_ring_fds()
        _live.pop(id(self), None)
        if self._ended is not None:
            self._ended.release()

    def _connect(self, places: list[str]) -> bool:
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
                return True
        return False

    def _close_socket(self) -> None:
        with no_fork:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            while self.received_fds:
                os.close(self.received_fds.pop())

    def close_ring_fds(self) -> None:
        with no_fork:
            while self.ring_fds:
                os.close(self.ring_fds.pop())

    def _disconnect(self) -> None:
        """Also when there is no connection. Events go off before anything else."""
        _producer.set_all_off(self.declared)
        self._close_socket()
        if self._connection is not None:
            self._fail_flushes()
            self._connection = None

    def _fail_flushes(self) -> None:
        while self.flushes:
            self.flushes.pop().release()
        if self._connection is not None:
            for flush in self._connection.flushes_under_way():
                flush.release()

    def _talk(self) -> bool:
        """Be a client until the connection ends. Returns whether the daemon ever answered as one."""
        assert self._socket is not None
        with no_fork:
            # Only a process that finds a daemon pays for this import.
            from utracefs.data_connection import DataConnection

        talk = self._connection = DataConnection(self, no_fork)
        fd = self._socket.fileno()
        try:
            while not self._is_over():
                talk.ask()
                happened = self.sink.pump(fd)
                if happened & (_producer.READABLE | _producer.BROKEN):
                    # what cannot be sent to may still have said why
                    goes_on = talk.receive(self._socket)
                    if not goes_on or happened & _producer.BROKEN:
                        break
        except ProtocolError as error:
            self.warn("the daemon cannot be understood, disconnected: %s", error)
        return talk.answered

    def warn(self, message: str, *values: object) -> None:
        with no_fork:
            import logging

        logging.getLogger("utracefs").warning(message, *values)

    # -- fork

    def _after_fork_in_child(self) -> None:
        """The thread is gone, its descriptors are the parent's, and nothing of this may have been half done: every
        attribute is either made anew here or was changed in one step."""
        if self._socket is not None:
            self._socket.close()  # not shutdown(): the connection is the parent's
        for fd in (*self.received_fds, *self.ring_fds, self._wake_fd):
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._socket = None
        self.received_fds = []
        self.ring_fds = []
        self._wake_fd = -1
        self._connection = None
        self._starting = _thread.allocate_lock()
        self._ended = None
        self._thread_id = None
        self._waiters = []
        self.flushes = []
        self.flushed_records = 0
        self.patience_s = PATIENCE_S
        self.sink.start_child()
        if self.state != CLOSED and not self.closing:
            self.state = FORKED
            _producer.start_child(self.declared)
        else:
            self.state = CLOSED


class Flush:
    """One call of `flush` that waits: on a lock that nobody else waits on."""

    def __init__(self, records: int) -> None:
        self.records = records
        self.done = False
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def wait(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=max(timeout_s, 0))

    def release(self) -> None:
        self._lock.release()


def _command_bytes(declaration: str | bytes) -> bytes:
    """TypeError for anything else; ValueError where a str is no UTF-8 (surrogate escapes stand for bytes)."""
    if isinstance(declaration, bytes):
        return declaration
    if isinstance(declaration, str):
        return declaration.encode("utf-8", "surrogateescape")
    raise TypeError(f"a declaration is str or bytes, not {type(declaration).__name__}")


def _capacity(buffer_kb: int | None) -> int:
    """Bytes of the FIFO. A number in the environment that makes no sense is not the application's fault: ignored."""
    if buffer_kb is None:
        text = os.environ.get("UTRACEFS_BUFFER_KB", "")
        buffer_kb = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else DEFAULT_BUFFER_KB
        buffer_kb = min(max(buffer_kb, 4), MAX_BUFFER_KB)
    elif not 4 <= buffer_kb <= MAX_BUFFER_KB:
        raise ValueError(f"buffer_kb is from 4 to {MAX_BUFFER_KB}")
    return 1 << (buffer_kb * 1024 - 1).bit_length()


# ---- what is global: nothing before the first event of the first session

_live: dict[int, Session] = {}
"""Sessions with something to close, by id(). Strong: a session lives until it is closed or the process ends."""

no_fork = threading.RLock()
"""See "Locks" at the head of the file. Reentrant, since a signal handler may fork while its thread is about to."""

_hooks: list[str] = []
_for_multiprocessing: list[object] = []


class _Anchor:
    """multiprocessing keeps its after-fork functions by a weak reference to an object: this one."""


def _install_hooks() -> None:
    _hook_multiprocessing()
    if not _hooks:
        _hooks.append("installed")
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
        )
        atexit.register(_close_all)


def _before_fork() -> None:
    _hook_multiprocessing()
    no_fork.acquire()


def _after_fork_in_parent() -> None:
    no_fork.release()


def _after_fork_in_child() -> None:
    global no_fork
    no_fork = threading.RLock()
    _producer.forget_thread_id()
    for session in list(_live.values()):
        session._after_fork_in_child()


def _close_all() -> None:
    for session in list(_live.values()):
        session.close()


def _hook_multiprocessing() -> None:
    """Processes of multiprocessing end with os._exit(), without atexit, but run the finalizers of multiprocessing.util;
    which every such process first forgets, and then calls the after-fork functions. If it was never imported, this
    process has no such children and is none."""
    util: Any = sys.modules.get("multiprocessing.util")
    if util is None or _for_multiprocessing:
        return
    anchor = _Anchor()
    _for_multiprocessing.append(anchor)
    util.register_after_fork(anchor, _flush_at_end_of_child)
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        _flush_at_end_of_child(anchor)


def _flush_at_end_of_child(_anchor: object) -> None:
    util: Any = sys.modules["multiprocessing.util"]
    # Priority: the last of those that run at all. No obj: lives until it is run.
    util.Finalize(None, _flush_all, exitpriority=-1000)


def _flush_all() -> None:
    for session in list(_live.values()):
        session.flush(CLOSE_S)
