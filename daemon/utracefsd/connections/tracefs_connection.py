"""One connection to the tracefs socket: requests in, responses out, and requests that wait for data.

    request ──> take in what producers sent before ──> the tree ──> reply
                     read: EAGAIN on a blocking file, or poll: not filled far enough ──> waits
                                                            │ speak: data, end of file, error ──> reply
                                                            │ cancel: EINTR ──> reply
                                                            └ close of the handle: EBADF ──> reply
                     enablers elsewhere have changed ──> delayed until they are acknowledged, or overdue

No socket, no clock, no waiting here: the port passes bytes, sends the output, and calls `speak` whenever
there may be something new to read. Other requests are answered meanwhile; the msgid relates a response to its
request.

An operation that changes enablers of notified connections (events/notifier.py) is carried out at once like
any other. Only its response is delayed, in order with other delayed ones of this connection, at most for
ACKNOWLEDGE_NS; so the number of delayed responses is limited by the requests carried out in that time.

All who can connect may use the tree (the socket's mode and group decide), so only one permission is checked
here: root and the daemon's own user may write on another thread's behalf (a mount does). Wrong params: EINVAL
with the expected shape in the text. Unknown method: ENOSYS. Handle not open: EBADF. Handles are numbers that
no two connections share, since they also name consumers (`perf:5`).
"""

from __future__ import annotations

import errno
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from utracefs_protocol.connection import (
    Connection,
    Request,
    encode_bin_response,
    encode_error,
    encode_notification,
    encode_response,
)
from utracefs_protocol.errors import TOO_OLD, ProtocolError, TraceError
from utracefs_protocol.limits import MAX_TRACEFS_OBJECT, MAX_UNANSWERED
from utracefs_protocol.messages import tracefs as messages
from utracefs_protocol.messages.rows import Params
from utracefsd.consumers.perf.events import PerfEvent, PerfEvents
from utracefsd.consumers.stream.streams import OpenStream, Streams
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event_table import EventTable
from utracefsd.events.notifier import Change
from utracefsd.machine.closing import close_foreign
from utracefsd.machine.comms import CommTable
from utracefsd.machine.faults import Faults
from utracefsd.machine.peer import Peer
from utracefsd.tree.nodes import OpenFile
from utracefsd.tree.tree import Tree

# Limit of one `read`; a larger request is a short read, as for the kernel's files.
MAX_READ = 1 << 20

# Open files of one connection; as many as a shell's `ulimit -n`.
MAX_HANDLES = 1024

# Perf events of one connection: `perf record` opens one for each event, however many a user has declared.
# They take no descriptor, and memory only with the first sample.
MAX_PERF_HANDLES = 1 << 16

# Streams of one connection: a quarter of the limit for all.
MAX_STREAMS = 16

# An unexpected exception ends one request; the log has its traceback.
_INTERNAL = "internal error; see the daemon's log"


class Reply(NamedTuple):
    data: bytes
    """One encoded message, or a part of a large one."""
    fds: tuple[int, ...] = ()
    """Descriptors sent with its first byte; the port closes them after that."""


@attrs.define(eq=False)
class _Waiting:
    """The result of a read of a blocking file that found nothing, or of a poll: it has to wait."""

    handle: int
    """The file's handle; looked up again at each retry."""
    size: int | None
    """Maximum of bytes to read; None: a poll."""
    msgid: int = 0
    """msgid of the request."""


class Services(Protocol):
    """The daemon, as a tracefs connection uses it."""

    now_ns: Callable[[], int]
    table: EventTable
    tree: Tree
    perf: PerfEvents
    streams: Streams
    comms: CommTable
    """Processes and cpus of threads."""
    faults: Faults
    """Counts and logs unexpected exceptions."""

    def take_in_all(self) -> None:
        """Take in everything that producers sent before."""

    def new_handle(self) -> int:
        """A number that no other handle of the daemon has."""

    def take_in_acknowledgements(self) -> None:
        """Called before a change is given up: an acknowledgement may have arrived unread."""


class TracefsConnection:
    """`close` closes every handle. After `closing` is set, received input is ignored."""

    def __init__(self, services: Services, peer: Peer) -> None:
        """peer: of the socket. Its mode and group let only administrators connect."""
        self._services = services
        self._enablers = services.table.enablers
        self._files = services.tree
        self._opened_by = peer
        self._peer = attrs.evolve(peer, privileged=True)
        self._closed = False
        self.stream = Connection(max_object=MAX_TRACEFS_OBJECT)
        self._handles: dict[int, OpenFile | PerfEvent | OpenStream] = {}
        self._numbers: Counter[type] = Counter()
        """How many of them, by the classes of _MOST."""
        self._took_in = False
        """All that was sent before the present requests is taken in, as they had arrived by then. Beside a
        program that fills a ring of 32 MiB it takes 25 ms, so requests sent together do it once."""
        self._waiting: list[_Waiting] = []
        self._dropped: list[Reply] = []
        self._delayed: deque[tuple[Change, list[Reply]]] = deque()
        self.closing = False
        # It shows that its process lives, like a data connection.
        self._enablers.hold(peer)

    @property
    def is_blocked(self) -> bool:
        return False

    @property
    def nr_descriptors(self) -> int:
        return 0

    @property
    def waiting(self) -> bool:
        """Whether a request waits, so that `speak` may have a response."""
        return bool(self._waiting) or (bool(self._delayed) and self._delayed[0][0].done)

    def receive(self, data: bytes, fds: Sequence[int], now_ns: int) -> Iterator[Reply | None]:
        """Carry out the requests that are complete with `data`; yields None between two of them, and within
        one where others may be served.

        No request takes descriptors: received ones are closed.

        Raises nothing: an error in the framing or beyond a limit is a last message, `["error", [errno,
        text]]`, and `closing`.
        """
        close_foreign(fds, self._peer.share)
        self._took_in = False
        try:
            first = True
            for message in self.stream.receive_in_turns(data):
                if message is None:
                    if not first:
                        yield None
                    first = False
                elif isinstance(message, Request):
                    yield from self._answer(message)
                # Responses and notifications: nothing was requested and none is known. Ignored, for future
                # versions.
        except ProtocolError as error:
            self.closing = True
            yield from self.last_answers()
            yield Reply(encode_notification("error", [error.errno, error.text]))

    def last_answers(self) -> Iterator[Reply]:
        """Delayed responses, sent early: the peer may not be there when they are due."""
        while self._delayed:
            change, replies = self._delayed.popleft()
            change.forget()
            yield from replies

    def next_timer_ns(self) -> int | None:
        """When the first delayed response must be sent in any case."""
        return self._delayed[0][0].deadline_ns if self._delayed else None

    def speak(self, now_ns: int) -> Iterator[Reply]:
        """Responses to requests that need not wait any longer. Of one handle's reads the first is answered
        first; a poll is answered before a read that would consume its data."""
        while self._delayed:
            change, replies = self._delayed[0]
            if not change.done:
                if change.deadline_ns > now_ns:
                    break
                self._services.take_in_acknowledgements()
                change.give_up(now_ns)
            while replies:
                yield replies.pop(0)
            self._delayed.popleft()
        still_empty: set[int] = set()
        for waiting in sorted(self._waiting, key=lambda one: one.size is not None):
            if waiting not in self._waiting:
                continue
            result = None
            try:
                if waiting.size is None:
                    if not self._handles[waiting.handle].ready():
                        continue
                elif waiting.handle in still_empty:
                    continue
                else:
                    result = self._file(waiting.handle).read(waiting.size)
                reply = Reply(encode_response(waiting.msgid, result))
            except TraceError as error:
                if error.errno == errno.EAGAIN and self._file(waiting.handle).blocking:
                    still_empty.add(waiting.handle)
                    continue
                reply = Reply(encode_error(waiting.msgid, error.errno, error.text))
            except Exception as error:  # noqa: BLE001 - counted and logged
                self._services.faults.note(error, f"a request of pid {self._peer.pid} that waited failed")
                reply = Reply(encode_error(waiting.msgid, errno.EIO, _INTERNAL))
            self._waiting.remove(waiting)
            yield reply

    def close(self, now_ns: int) -> None:
        """The connection is closed: forget waiting requests, close every handle."""
        self.closing = True
        self._waiting.clear()
        for reply in self.last_answers():
            for fd in reply.fds:
                os.close(fd)
        for handle in list(self._handles):
            try:
                self._handles.pop(handle).close()
            except TraceError as error:
                daemon_log("handle-close-failed", handle=handle, reason=error)
            except Exception as error:  # noqa: BLE001 - counted and logged
                self._services.faults.note(error, f"closing handle {handle} failed")
        if not self._closed:
            self._closed = True
            self._enablers.drop(self._opened_by)

    def _answer(self, request: Request) -> Iterator[Reply | None]:
        kind = messages.METHODS.get(request.method)
        fds: tuple[int, ...] = ()
        began = False
        try:
            if kind is None:
                raise TraceError(
                    errno.ENOSYS, f"no method {request.method!r} on the tracefs socket: {TOO_OLD}"
                )
            if not self._took_in:
                self._took_in = True
                self._services.take_in_all()
            self._enablers.notifiers.begin()
            began = True
            result = _METHODS[kind](self, kind.from_params(request.params))
            if isinstance(result, _Waiting):
                self._wait(result, request.msgid)
                return
            if isinstance(result, tuple):
                result, fds = result
            if isinstance(result, Iterator):  # a bin object that may be large
                pieces = []
                for piece in result:
                    if piece is None:
                        yield None
                        # Other requests may have changed enablers meanwhile.
                        self._enablers.notifiers.begin()
                    else:
                        pieces.append(piece)
                parts = encode_bin_response(request.msgid, pieces)
            else:
                parts = [encode_response(request.msgid, result)]
        except ProtocolError:
            raise
        except TraceError as error:
            parts = [encode_error(request.msgid, error.errno, error.text)]
        except Exception as error:  # noqa: BLE001 - counted and logged
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                parts = [encode_error(request.msgid, error.errno, "the daemon has no descriptor left")]
            else:
                self._services.faults.note(error, f"{request.method} for pid {self._peer.pid} failed")
                parts = [encode_error(request.msgid, errno.EIO, _INTERNAL)]
        replies = [Reply(part) for part in parts]
        if fds:
            replies[0] = Reply(parts[0], fds)
        replies += self._dropped
        self._dropped.clear()
        change = self._enablers.notifiers.take(self._services.now_ns()) if began else None
        if change is None:
            yield from replies
        else:
            self._delayed.append((change, replies))

    # Methods. Each takes the message of that name and returns the result, some with descriptors.

    def _list_dir(self, message: messages.ListDir) -> list[list[str | bytes | int]]:
        if message.modes:
            return [messages.DirEntry(*entry).to_wire() for entry in self._files.list_modes(message.path)]
        entries = self._files.list_dir(message.path)
        return [messages.DirEntry(name, kind).to_wire() for name, kind in entries]

    def _open(self, message: messages.Open) -> int:
        self._check_room(OpenFile)
        return self._add(OpenFile, self._files.open(message.path, message.flags, peer=self._peer))

    def _read(self, message: messages.Read) -> bytes | _Waiting:
        number = message.handle
        size = min(message.size_untrusted, MAX_READ)
        opened = self._handle(number)
        if isinstance(opened, PerfEvent):
            return opened.read()
        file = self._file(number)
        if message.flags is not None:
            file.blocking = not message.flags & os.O_NONBLOCK
        if file.blocking and any(one.handle == number and one.size is not None for one in self._waiting):
            return _Waiting(number, size)  # behind earlier reads
        try:
            return file.read(size)
        except TraceError as error:
            if error.errno != errno.EAGAIN or not file.blocking:
                raise
        return _Waiting(number, size)

    def _write(self, message: messages.Write) -> int:
        file = self._file(message.handle, errno.EINVAL, "a perf event cannot be written")
        if message.writer is None:
            file.written_by(self._peer.pid, None)
        else:
            file.written_by(message.writer.pid, self._cpu_of(message.writer))
        return file.write(message.data)

    def _cpu_of(self, writer: messages.Writer) -> int | None:
        """The cpu of a thread that sleeps until the response; None: unknown. EPERM: the peer may only write
        as itself. ESRCH: no such thread any more, or another one, or hidden."""
        if not self._opened_by.privileged:
            raise TraceError(
                errno.EPERM, "only root and the daemon's own user write on behalf of another thread"
            )
        if not attrs.evolve(self._peer, pid=writer.pid, start_time=writer.start_time).lives():
            raise TraceError(errno.ESRCH, f"there is no thread {writer.pid} that began then")
        _, cpu = self._services.comms.meet(writer.pid)
        return cpu

    def _seek(self, message: messages.Seek) -> int:
        file = self._file(message.handle, errno.ESPIPE, "a perf event has no position")
        return file.seek(message.offset)

    def _poll(self, message: messages.Poll) -> _Waiting | None:
        return None if self._handle(message.handle).ready() else _Waiting(message.handle, None)

    def _cancel(self, message: messages.Cancel) -> bool:
        for waiting in self._waiting:
            if waiting.msgid == message.msgid:
                self._drop(waiting, errno.EINTR, "cancelled")
                return True
        return False

    def _drop(self, waiting: _Waiting, number: int, text: str) -> None:
        """End its wait; its response follows that of the request that ends it."""
        self._waiting.remove(waiting)
        self._dropped.append(Reply(encode_error(waiting.msgid, number, text)))

    def _close_handle(self, message: messages.Close) -> None:
        number = message.handle
        opened = self._handle(number)
        for waiting in [one for one in self._waiting if one.handle == number]:
            self._drop(waiting, errno.EBADF, f"handle {number} was closed")
        del self._handles[number]
        self._numbers[next(kind for kind in _MOST if isinstance(opened, kind))] -= 1
        opened.close()

    def _perf_event_open(self, attr: messages.PerfAttr) -> tuple[Any, tuple[int, ...]]:
        self._check_room(PerfEvent)
        number = self._services.new_handle()
        event = self._services.perf.open(attr, handle=number)
        fd = event.descriptor()
        self._add(PerfEvent, event, number)
        return messages.PerfOpened(number).to_wire(), (fd,) if fd >= 0 else ()

    def _perf_ioctl(self, message: messages.PerfIoctl) -> Any:
        opened = self._handle(message.handle)
        if not isinstance(opened, PerfEvent):
            raise TraceError(errno.ENOTTY, f"handle {message.handle} is no perf event")
        return opened.ioctl(message.name, message.arg)

    def _stream_open(self, attr: messages.StreamAttr) -> tuple[Any, tuple[int, ...]]:
        self._check_room(OpenStream)
        number = self._services.new_handle()
        stream = self._services.streams.open(attr, handle=number, uid=self._opened_by.uid)
        try:
            counts = {} if attr.pages else stream.missed().to_wire()
            fds = stream.descriptors()
        except BaseException:
            stream.close()
            raise
        self._add(OpenStream, stream, number)
        return {**messages.StreamOpened(number).to_wire(), **counts}, fds

    def _stream_missed(self, message: messages.GetMissed) -> Any:
        stream = self._handles.get(message.handle)
        if not isinstance(stream, OpenStream):
            raise _not_open(message.handle)
        return stream.missed().to_wire()

    def _check_room(self, kind: type) -> None:
        most, what = _MOST[kind]
        if self._numbers[kind] >= most:
            raise TraceError(errno.EMFILE, f"this connection has {most} {what}; close some")

    def _add(self, kind: type, opened: OpenFile | PerfEvent | OpenStream, number: int | None = None) -> int:
        number = self._services.new_handle() if number is None else number
        self._handles[number] = opened
        self._numbers[kind] += 1
        return number

    def _handle(self, number: int) -> OpenFile | PerfEvent | OpenStream:
        if number not in self._handles:
            raise _not_open(number)
        return self._handles[number]

    def _file(self, number: int, perf_errno: int = errno.EINVAL, perf_text: str = "") -> OpenFile:
        """perf_errno, perf_text: the error for a perf event."""
        opened = self._handle(number)
        if isinstance(opened, OpenFile):
            return opened
        if isinstance(opened, PerfEvent):
            raise TraceError(perf_errno, perf_text)
        raise TraceError(errno.EINVAL, f"handle {number} is a stream: look into its ring")

    def _wait(self, waiting: _Waiting, msgid: int) -> None:
        if len(self._waiting) >= MAX_UNANSWERED:
            raise ProtocolError(
                errno.EMSGSIZE, f"{MAX_UNANSWERED} requests of this connection wait for data already"
            )
        waiting.msgid = msgid
        self._waiting.append(waiting)


_MOST: dict[type, tuple[int, str]] = {
    OpenFile: (MAX_HANDLES, "open handles"),
    PerfEvent: (MAX_PERF_HANDLES, "open handles"),
    OpenStream: (MAX_STREAMS, "streams"),
}
"""How many of each a connection may have."""


def _not_open(number: int) -> TraceError:
    return TraceError(errno.EBADF, f"handle {number} is not open on this connection")


# Functions, not methods of one connection: methods would keep it alive until a garbage collection.
_METHODS: dict[type[Params], Callable[[TracefsConnection, Any], Any]] = {
    messages.ReadFile: lambda one, file: one._files.read_pieces(file.path, one._peer),
    messages.WriteFile: lambda one, file: one._files.write_file(
        file.path, file.data, file.truncate, one._peer
    ),
    messages.ListDir: TracefsConnection._list_dir,
    messages.StatPath: lambda one, file: one._files.stat(file.path).to_wire(),
    messages.Mkdir: lambda one, directory: one._files.mkdir(directory.path),
    messages.Rmdir: lambda one, directory: one._files.rmdir(directory.path),
    messages.Open: TracefsConnection._open,
    messages.Read: TracefsConnection._read,
    messages.Write: TracefsConnection._write,
    messages.Seek: TracefsConnection._seek,
    messages.Poll: TracefsConnection._poll,
    messages.Ready: lambda one, file: one._handle(file.handle).ready(),
    messages.Cancel: TracefsConnection._cancel,
    messages.Close: TracefsConnection._close_handle,
    messages.PerfAttr: TracefsConnection._perf_event_open,
    messages.PerfIoctl: TracefsConnection._perf_ioctl,
    messages.StreamAttr: TracefsConnection._stream_open,
    messages.GetMissed: TracefsConnection._stream_missed,
}
