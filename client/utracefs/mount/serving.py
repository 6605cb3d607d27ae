"""The process of a mount: one thread, one epoll, from the kernel's first request to the last.

    /dev/fuse ──requests──▶ FileSystem ──▶ Channels ──▶ the daemon's tracefs socket, and its data socket
              ◀──replies──      │      ◀──          ◀──
                                └─ user_events_data ──▶ MemoryThread ──▶ other processes' memory

**One thread is enough** for all but memory (see memory_thread), because no call waits: a read of an empty
trace_pipe is a request that the daemon has not answered yet, and an entry in a table here. (libfuse uses a
thread for each such read, ten by default, and an interrupt is then a signal to that thread. It also cannot
report from Python that a poll is ready. So this module uses /dev/fuse directly and needs no library.)

It ends, and unmounts, when the daemon ends, when it is unmounted, and on SIGTERM, SIGINT and SIGHUP. With
`reconnects` it stays when the daemon ends, and connects to the next: meanwhile calls are ENOTCONN, open files
keep failing, and those of user_events_data continue with the next. Calls in progress fail with ENOTCONN or
ECONNABORTED; open files stay open and every later call fails. After kill -9 the directory answers ENOTCONN,
until `umount DIR`, `fusermount3 -u -z DIR`, or the next mount there.
"""

import contextlib
import enum
import errno
import logging
import os
import sched
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from utracefs.mount import attaching
from utracefs.mount.abi import Header
from utracefs.mount.channel import Channel
from utracefs.mount.data_connections import DataConnections
from utracefs.mount.enablers import Enablers
from utracefs.mount.file_system import REQUEST_BYTES, FileSystem
from utracefs.mount.nodes import Nodes
from utracefs.mount.processes.access import status_of
from utracefs.mount.processes.address_space import AddressSpaces
from utracefs.mount.processes.memory_thread import MemoryThread
from utracefs.mount.processes.procfs import start_time_of
from utracefs.mount.user_events_data import UserEventsData
from utracefs.tree import runtime_dir
from utracefs.tree.closing import Closing
from utracefs_protocol.connection import Notification
from utracefs_protocol.messages.data import OpenFor
from utracefs_protocol.places import DATA_SOCKET, TRACEFS_SOCKET

logger = logging.getLogger("utracefs.mount")

CONNECT_S: Final = 2.0
"""Timeout for a place in the queue of a daemon that does not accept."""

RECONNECT_S: Final = 0.25
"""Interval of looking for the next daemon; a failed connect(2) costs some microseconds."""

_TURN: Final = 64
"""Maximum of kernel requests started before the daemon's answers are read."""


class End(enum.Enum):
    DAEMON_GONE = "the daemon is gone"
    UNMOUNTED = "it was unmounted"
    SIGNAL = "a signal"


class Signals:
    """`fd` becomes readable when one of them arrived."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.came = False

    def handler(self, _number: int, _frame: FrameType | None) -> None:
        self.came = True

    def wait(self, seconds: float) -> bool:
        """Whether one arrived within that time."""
        if not self.came:
            select.select([self.fd], [], [], seconds)
        return self.came

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.write_fd)


@contextlib.contextmanager
def signals() -> Iterator[Signals]:
    """SIGTERM, SIGINT and SIGHUP end the block in order."""
    with contextlib.ExitStack() as stack:
        caught = Signals()
        stack.callback(caught.close)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(caught.write_fd))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                stack.callback(signal.signal, number, signal.signal(number, caught.handler))
        yield caught


def connect(directory: str | None = None) -> socket.socket:
    """Connect to the daemon of that directory, None as for Tracefs, with the same errors."""
    return runtime_dir.connect(TRACEFS_SOCKET, directory, CONNECT_S)


class Mount(Closing):
    """The tree of the daemon of `sock`, mounted on `mountpoint` until `close`; a context manager. Owns
    `sock`.

    mountpoint: absolute. allow_other: allow other users, by modes and owners. gid: group of the files.
    reconnects: when the daemon ends, wait for the next.

    OSError: as `attaching.attach`.
    """

    def __init__(
        self,
        mountpoint: str,
        sock: socket.socket,
        *,
        allow_other: bool = False,
        gid: int | None = None,
        reconnects: bool = False,
    ) -> None:
        self.mountpoint = mountpoint
        self._epoll = select.epoll()
        self._channels: dict[int, Channel] = {}
        self._silent: set[Channel] = set()
        """Connections to the data socket with an overdue answer."""
        self._processes: dict[int, Callable[[], None]] = {}
        """By pidfd: function to call when it ends."""
        self._end: End | None = None
        self._buffer = bytearray(REQUEST_BYTES)
        self._device = -1
        self._reconnects = reconnects
        self._timers = sched.scheduler(time.monotonic)
        self._memory = MemoryThread()
        self._epoll.register(self._memory.fileno(), select.EPOLLIN)
        self.address = os.fsdecode(sock.getpeername())
        """Address of the daemon's socket."""
        try:
            self._main = self._watched(sock)
            self._device = attaching.attach(mountpoint, allow_other=allow_other)
            self._epoll.register(self._device, select.EPOLLIN)
        except BaseException:
            self.close()
            raise
        connections = DataConnections(
            self._connect_data,
            process_of=_process_of,
            timers=self._timers,
            silent=self._silent,
            reconnects=reconnects,
        )
        self._data = UserEventsData(
            Enablers(connections, self._memory, AddressSpaces(), watch_process=self._watch_process)
        )
        self._files = FileSystem(
            self._main,
            nodes=Nodes(uid=os.geteuid(), gid=os.getegid() if gid is None else gid, time_s=int(time.time())),
            connect=self.connect,
            reply=self._reply,
            start_time_of=start_time_of,
            is_killed=_is_killed,
            data=self._data,
        )

    def serve(self, stop: Signals) -> End:
        """Serve until the end; then `close`."""
        self._epoll.register(stop.fd, select.EPOLLIN)
        while self._end is None:
            if stop.came:
                self._end = End.SIGNAL
                break
            for fd, events in self._epoll.poll(self._timers.run(blocking=False)):
                if fd == self._device:
                    if events & select.EPOLLERR:
                        self._end = self._end or End.UNMOUNTED
                    else:
                        self._answer_some()
                elif fd in self._channels:
                    self._channels[fd].on_ready()
                elif fd in self._processes:
                    on_end = self._processes[fd]
                    self._forget_process(fd)
                    on_end()
                elif fd == self._memory.fileno():
                    self._memory.on_ready()
        return self._end

    def close(self) -> None:
        """Unmount, and end every connection. May be called twice."""
        if self._device >= 0:
            # Unmount the directory first, so that no new calls arrive; closing the device ends those in
            # progress.
            if self._end is not End.UNMOUNTED:
                attaching.detach(self.mountpoint)
            os.close(self._device)
            self._device = -1
            self._data.close()
        self._memory.close()
        for channel in list(self._channels.values()):
            channel.close()
        self._channels.clear()
        for fd in list(self._processes):
            self._forget_process(fd)
        self._epoll.close()

    def _answer_some(self) -> None:
        for _ in range(_TURN):
            try:
                size = os.readv(self._device, [self._buffer])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno == errno.ENOENT:  # the request was aborted meanwhile
                    continue
                self._end = self._end or End.UNMOUNTED  # ENODEV
                return
            self._files.handle(bytes(memoryview(self._buffer)[:size]))

    def _reply(self, message: bytes) -> bool:
        if self._device < 0:
            return False
        try:
            os.write(self._device, message)
        except OSError:  # ENOENT: its caller no longer waits
            return False
        return True

    def connect(self) -> Channel:
        return self._connect_to(self.address)

    def _connect_data(
        self, on_notification: Callable[[Notification], None], on_end: Callable[[Channel], None]
    ) -> Channel:
        address = os.path.join(os.path.dirname(self.address), DATA_SOCKET)
        return self._connect_to(address, on_notification=on_notification, on_end=on_end, silent=self._silent)

    def _connect_to(self, address: str, **options: Any) -> Channel:
        """ENOTCONN: no daemon."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.connect(address)
            return self._watched(sock, **options)
        except OSError as failure:
            sock.close()
            if failure.errno in (errno.ECONNREFUSED, errno.ENOENT):
                raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN)) from None
            raise

    def _watched(
        self,
        sock: socket.socket,
        *,
        on_end: Callable[[Channel], None] | None = None,
        on_notification: Callable[[Notification], None] | None = None,
        silent: set[Channel] | None = None,
    ) -> Channel:
        channel = Channel(
            sock,
            on_writing=self._watch_room,
            on_end=on_end or self._channel_ended,
            on_close=self._unwatch,
            on_notification=on_notification,
            later=lambda seconds, call: self._timers.enter(seconds, 0, call),
            silent=silent,
        )
        self._channels[channel.fileno()] = channel
        self._epoll.register(channel.fileno(), select.EPOLLIN)
        return channel

    def _watch_process(self, pid: int, on_end: Callable[[], None]) -> Callable[[], object]:
        """See WatchProcess in enablers."""
        fd = os.pidfd_open(pid)
        self._processes[fd] = on_end
        self._epoll.register(fd, select.EPOLLIN)

        def call_off() -> None:
            # The number may have been reused.
            if self._processes.get(fd) is on_end:
                self._forget_process(fd)

        return call_off

    def _forget_process(self, fd: int) -> None:
        del self._processes[fd]
        self._epoll.unregister(fd)
        os.close(fd)

    def _watch_room(self, channel: Channel, wanted: bool) -> None:
        self._epoll.modify(channel.fileno(), select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def _unwatch(self, channel: Channel) -> None:
        """Called before it is closed and its number may be reused."""
        del self._channels[channel.fileno()]

    def _channel_ended(self, channel: Channel) -> None:
        if channel is not self._main:
            return
        if not self._reconnects:
            self._end = self._end or End.DAEMON_GONE
            return
        logger.info("%s: waiting for the next one", End.DAEMON_GONE.value)
        self._data.daemon_went()
        self._look_for_daemon()

    def _look_for_daemon(self) -> None:
        try:
            self._main = self.connect()
        except OSError:
            self._timers.enter(RECONNECT_S, 0, self._look_for_daemon)
            return
        logger.info("%s is back", self.address)
        self._files.daemon_came(self._main)
        self._data.daemon_came()


def _process_of(header: Header) -> OpenFor:
    """Process of the calling thread, which waits. OSError(ESRCH): /proc does not show it."""
    start_time = None
    with contextlib.suppress(OSError):
        pid = status_of(header.pid)["Tgid"][0]
        start_time = start_time_of(pid)
    if start_time is None:
        raise OSError(errno.ESRCH, f"/proc does not show process {header.pid}")
    return OpenFor(pid, start_time, header.uid, header.gid)


def _is_killed(tid: int) -> bool:
    """Whether SIGKILL is pending for that thread; killing one kills all of a process."""
    try:
        return bool(status_of(tid)["SigPnd"][0] & 1 << signal.SIGKILL - 1)
    except OSError:
        return False
