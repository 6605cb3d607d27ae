"""The tree as a file system: answers the kernel's requests over /dev/fuse by requests to the daemon.

    request ──> FileSystem.handle ──> Operation ──> Ask ──> Channel ──> daemon
    reply   <── `reply`           <── its end   <─────────────────────┘

No thread, no socket and no device here: `serving` has the loop. A request up to the daemon's answer is a
generator (see operation), so hundreds can wait at a time without delaying others.

| the kernel's | here |
|---|---|
| lookup, stat, mkdir, rmdir | the method of that name, on the shared connection |
| names | names of files stay valid (1); names of events and instances are looked up at the daemon (2) |
| open file | a handle there; a file that can be waited for (_WAITED) has its own connection, closed with it |
| read | `read`, with the file's present flags; for a stream it may wait, until it is interrupted (3) |
| lseek, then read | a read at another offset than the end of the last one is `seek`, `read` |
| poll | `ready`; while programs wait, one `poll` of the daemon is pending, whose answer wakes them |
| write to a marker | `write` on behalf of the writing thread |
| open, ioctl, write of user_events_data | see user_events_data |
| close | RELEASE, which arrives after close(2) has returned (4) |

(1) Files of an instance or event are removed only with the whole. (2) Unless that name was shown in the last
second, and nothing was changed through this mount since. (3) Then the daemon is requested to `cancel` it, and
its answer is the reply: EINTR, or the data that had just arrived. (4) So open() and rmdir() of an instance
wait until pending RELEASE requests have reached the daemon: a program never gets EBUSY for a file that it has
closed.

Sizes are 0 and files are read by direct I/O, as in tracefs. The kernel checks modes and owners itself
(default_permissions).

sendfile(2) and splice(2) read through the page cache, and nothing of a file whose size is 0. So in the kernel
an inode that is open for reading has a large size, while stat(2) shows 0 (`_enlarge`): a byte stored far
behind the text sets the size (fuse_notify_store) and makes the kernel ignore the one in the answer to an
earlier request (fuse_change_attributes). A short answer to a read of the page cache ends the text and becomes
the size (fuse_short_read), until the next open.
"""

import errno
import itertools
import logging
import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final

import attrs

from utracefs.mount import abi
from utracefs.mount.abi import Header, InitFlag, Opcode, OpenFlag, SetattrValid
from utracefs.mount.channel import ANSWER_S, Channel
from utracefs.mount.nodes import Node, Nodes, inode_number
from utracefs.mount.operation import Ask, AskEach, Gate, Operation, Steps, error
from utracefs.mount.user_events_data import DataFile, UserEventsData
from utracefs.tree.rpc import checked
from utracefs_protocol.messages import tracefs as messages
from utracefs_protocol.text import bytes_of, text_of

logger = logging.getLogger("utracefs.mount")

MAX_WAITED_FILES: Final = 200
"""Limit of open files with their own connection, of the 256 connections that a daemon has for administrators.
Above: ENFILE."""

MAX_WAITING_READS: Final = 64
"""Limit of waiting reads of one open file, by threads that share a descriptor. The daemon ends a connection
at 256. Above: EBUSY."""

MAX_WRITE: Final = 512 << 10
"""Bytes of one write(2) in one request: a message to the daemon has at most 1 MiB."""

REQUEST_BYTES: Final = MAX_WRITE + 4096
"""Longest request in bytes, headers included."""

_MAX_PAGES: Final = 256
"""Pages of one read(2): a MiB, the daemon's limit."""

_BACKGROUND: Final = 4096
"""Number of RELEASE requests that the kernel sends before it holds them back, which would let a later open
overtake them."""

SEEN_S: Final = 1.0
"""How long a name shown by a lookup or a listing is valid: `ls -l` and `cat */enable` look up each entry of a
listing. Removals by others are visible after that time; changes through this mount at once."""

_MAX_SEEN: Final = 20_000
"""Limit of cached names; above it all are dropped."""

_STREAMS: Final = frozenset(
    {b"trace_pipe", b"trace_pipe_raw", b"snapshot_raw", b"trace_marker", b"trace_marker_raw"}
)
_MARKERS: Final = frozenset({b"trace_marker", b"trace_marker_raw"})
_WAITED: Final = frozenset({b"trace_pipe", b"trace_pipe_raw", b"snapshot_raw", b"hist"})
_OPEN_FLAGS: Final = os.O_ACCMODE | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK

_STAYS_S: Final = 3600
"""How long the kernel caches names that exist as long as their directory."""

_IN: Final = select.POLLIN | select.POLLRDNORM
_ALWAYS: Final = _IN | select.POLLOUT | select.POLLWRNORM  # DEFAULT_POLLMASK

_DATA: Final = b"user_events_data"

_GET_READER: Final = 0x5220  # _IO('R', 0x20), TRACE_MMAP_IOCTL_GET_READER


@attrs.define(eq=False)
class _OpenFile:
    name: bytes
    path: bytes
    channel: Channel
    handle: int
    """Handle of the daemon."""
    readable: bool
    position: int | None = 0
    """Offset of the next read without a `seek`; None: a read is pending."""
    waiting_reads: int = 0
    poll_under_way: bool = False
    kh: int = 0
    """The kernel's handles of waiting polls."""

    @property
    def is_waited(self) -> bool:
        return self.name in _WAITED

    @property
    def is_cached(self) -> bool:
        """Whether the kernel may read it through its page cache."""
        return self.readable and self.name not in _STREAMS


@attrs.define(eq=False)
class FileSystem:
    """main: the shared connection. connect: makes another one, or raises OSError. reply: sends to the kernel;
    returns whether the caller still waited. start_time_of: that of a thread, None if /proc does not show it.
    is_killed: whether SIGKILL is pending for that thread. data: implements user_events_data."""

    _main: Channel
    _nodes: Nodes
    _connect: Callable[[], Channel]
    _reply: Callable[[bytes], bool]
    _start_time_of: Callable[[int], int | None]
    _is_killed: Callable[[int], bool]
    _data: UserEventsData
    _clock: Callable[[], float] = time.monotonic
    _seen: dict[bytes, tuple[messages.Stat, float]] = attrs.field(factory=dict)
    """By path: result of `stat`, and its expiry."""
    _operations: dict[int, tuple[int, Operation]] = attrs.field(factory=dict)
    """Pending operations by `unique`, each with its waiting thread."""
    _given_up: set[int] = attrs.field(factory=set)
    """Those of them already answered, since their caller was killed."""
    _files: dict[int, _OpenFile] = attrs.field(factory=dict)
    _data_files: dict[int, DataFile] = attrs.field(factory=dict)
    _directories: dict[int, list[bytes]] = attrs.field(factory=dict)
    """Encoded entries, listed when reading begins or restarts."""
    _fhs: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    _closing: Gate = attrs.field(factory=Gate)
    _waited_files: int = 0
    _far: int = 1 << 40  # no text is longer
    _speaks_for_others: bool = True
    _handlers: dict[int, Callable[[Header, bytes], Steps]] = attrs.field(init=False)
    """An opcode that is not here gets ENOSYS."""

    @_handlers.default
    def _all_handlers(self) -> dict[int, Callable[[Header, bytes], Steps]]:
        return {
            Opcode.LOOKUP: self._lookup,
            Opcode.GETATTR: self._getattr,
            Opcode.SETATTR: self._setattr,
            Opcode.MKDIR: self._mkdir,
            Opcode.RMDIR: self._rmdir,
            Opcode.OPEN: self._open,
            Opcode.READ: self._read,
            Opcode.WRITE: self._write,
            Opcode.STATFS: self._statfs,
            Opcode.RELEASE: self._release,
            Opcode.INIT: self._init,
            Opcode.OPENDIR: self._opendir,
            Opcode.READDIR: self._readdir,
            Opcode.RELEASEDIR: self._releasedir,
            Opcode.CREATE: _refusing(errno.EACCES),
            Opcode.MKNOD: self._mknod,
            Opcode.SYMLINK: _refusing(errno.EPERM),
            Opcode.LINK: _refusing(errno.EPERM),
            Opcode.UNLINK: _refusing(errno.EPERM),
            Opcode.RENAME: _refusing(errno.EPERM),
            Opcode.RENAME2: _refusing(errno.EPERM),
            Opcode.IOCTL: self._ioctl,
            Opcode.POLL: self._poll,
        }

    def handle(self, request: bytes) -> None:
        header, body = Header.from_request(request)
        match header.opcode:
            case Opcode.FORGET:
                self._nodes.forget(header.node_id, abi.FORGET_IN.unpack_from(body)[0])
            case Opcode.BATCH_FORGET:
                count, _ = abi.BATCH_FORGET_IN.unpack_from(body)
                for i in range(count):
                    offset = abi.BATCH_FORGET_IN.size + i * abi.FORGET_ONE.size
                    self._nodes.forget(*abi.FORGET_ONE.unpack_from(body, offset))
            case Opcode.INTERRUPT:
                self._interrupt(abi.INTERRUPT_IN.unpack_from(body)[0])
            case opcode if opcode in self._handlers:
                self._begin(header, self._handlers[opcode](header, body), _changes_names(opcode, body))
            case _:
                self._answer(header.unique, b"", errno.ENOSYS)

    def _interrupt(self, unique: int) -> None:
        """A signal arrived. Cancel the wait if possible; a killed thread cannot end before it is answered, so
        it is, and its operation continues without a caller."""
        tid, operation = self._operations.get(unique, (0, None))
        if operation is None:
            return
        operation.interrupt()
        if unique in self._operations and unique not in self._given_up and self._is_killed(tid):
            self._given_up.add(unique)
            self._answer(unique, b"", errno.EINTR)

    def _begin(self, header: Header, steps: Steps, changes_names: bool) -> None:
        if changes_names:
            self._seen.clear()

        def done(reply: bytes, error: int) -> None:
            if changes_names:
                self._seen.clear()
            self._operations.pop(header.unique, None)
            is_given_up = header.unique in self._given_up
            self._given_up.discard(header.unique)
            if (is_given_up or not self._answer(header.unique, reply, error)) and not error:
                self._undo(header, reply)

        operation = Operation(steps, done)
        self._operations[header.unique] = header.pid, operation
        operation.start()

    def _undo(self, header: Header, reply: bytes) -> None:
        """The caller was killed meanwhile, so the kernel does not know its result."""
        match header.opcode:
            case Opcode.OPEN:
                fh = abi.OPEN_OUT.unpack(reply)[0]
                Operation(self._release(header, abi.RELEASE_IN.pack(fh, 0, 0, 0)), lambda *_: None).start()
            case Opcode.OPENDIR:
                self._directories.pop(abi.OPEN_OUT.unpack(reply)[0], None)
            case Opcode.LOOKUP | Opcode.MKDIR:
                self._nodes.forget(abi.ENTRY_OUT.unpack(reply)[0], 1)

    def _answer(self, unique: int, reply: bytes, error: int) -> bool:
        return self._reply(abi.OUT_HEADER.pack(abi.OUT_HEADER.size + len(reply), -error, unique) + reply)

    def daemon_came(self, main: Channel) -> None:
        """Use the next daemon, on that connection; handles of the previous one are invalid."""
        self._main = main
        self._seen.clear()

    # The connection to the kernel

    def _init(self, _header: Header, body: bytes) -> Steps:
        yield from ()
        major, minor, readahead, flags = abi.INIT_IN.unpack_from(body)
        if major != abi.MAJOR or minor < abi.MINOR:
            logger.error("the kernel speaks FUSE %d.%d; %d.%d is needed", major, minor, abi.MAJOR, abi.MINOR)
            raise error(errno.EPROTO)
        flags &= sum(InitFlag)
        return abi.INIT_OUT.pack(
            *(abi.MAJOR, abi.MINOR, readahead, flags),
            *(_BACKGROUND, _BACKGROUND, MAX_WRITE, 1, _MAX_PAGES, 0),
            *[0] * 8,
        )

    def _statfs(self, _header: Header, _body: bytes) -> Steps:
        yield from ()
        return abi.STATFS_OUT.pack(0, 0, 0, 0, 0, 4096, 255, 4096, *[0] * 7)

    # Names

    def _lookup(self, header: Header, body: bytes) -> Steps:
        parent = self._nodes[header.node_id]
        return (yield from self._look(parent, _name(body)))

    def _look(self, parent: Node, name: bytes) -> Steps:
        path = parent.child(name)
        found, until = self._seen.get(path, (None, 0.0))
        if found is None or until <= self._clock():
            answer = yield Ask(self._main, messages.StatPath(path))
            found = checked(messages.Stat.from_wire, answer, text_of(path))
            self._see(path, found)
        return self._nodes.entry_out(self._nodes.looked_up(path, found), _valid_s(parent.path))

    def _see(self, path: bytes, found: messages.Stat) -> None:
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen[path] = (found, self._clock() + SEEN_S)

    def _getattr(self, header: Header, body: bytes) -> Steps:
        yield from ()
        # (lseek uses the size that it gets: tail looks for lines at the end of what has one)
        node = self._nodes[header.node_id]
        is_cached = any(file.path == node.path and file.is_cached for file in self._files.values())
        if is_cached and not abi.GETATTR_IN.unpack_from(body)[0] & abi.GETATTR_FH:
            self._enlarge(node.id)
        return self._nodes.attr_out(node)

    def _setattr(self, header: Header, body: bytes) -> Steps:
        """chmod and chown are stored. Truncating is not opening with O_TRUNC: like a change of times it has
        no effect."""
        yield from ()
        node = self._nodes[header.node_id]
        members = abi.SETATTR_IN.unpack_from(body)
        valid, mode, uid, gid = members[0], members[11], members[13], members[14]
        if valid & (SetattrValid.MODE | SetattrValid.UID | SetattrValid.GID):
            self._nodes.change(
                node,
                mode=mode if valid & SetattrValid.MODE else None,
                uid=uid if valid & SetattrValid.UID else None,
                gid=gid if valid & SetattrValid.GID else None,
            )
        return self._nodes.attr_out(node)

    def _mkdir(self, header: Header, body: bytes) -> Steps:
        parent = self._nodes[header.node_id]
        name = _name(body[abi.MKDIR_IN.size :])
        yield Ask(self._main, messages.Mkdir(parent.child(name)))
        return (yield from self._look(parent, name))

    def _rmdir(self, header: Header, body: bytes) -> Steps:
        path = self._nodes[header.node_id].child(_name(body))
        yield self._closing
        yield Ask(self._main, messages.Rmdir(path))
        self._nodes.removed(path)
        return b""

    def _mknod(self, _header: Header, body: bytes) -> Steps:
        yield from ()
        raise error(errno.EACCES if stat.S_ISREG(abi.MKNOD_IN.unpack_from(body)[0]) else errno.EPERM)

    # Directories

    def _opendir(self, _header: Header, _body: bytes) -> Steps:
        yield from ()
        fh = next(self._fhs)
        self._directories[fh] = []
        return abi.OPEN_OUT.pack(fh, 0, 0)

    def _readdir(self, header: Header, body: bytes) -> Steps:
        fh, offset, size = abi.READ_IN.unpack_from(body)[:3]
        entries = self._directories[fh]
        if offset == 0:
            node = self._nodes[header.node_id]
            answer = yield Ask(self._main, messages.ListDir(node.path, modes=True))
            entries[:] = self._dirents(node, answer)
        return _fill(entries, offset, size)

    def _dirents(self, node: Node, answer: object) -> list[bytes]:
        """The encoded entries, each with the next one's number as its offset. Their names are cached."""
        if not isinstance(answer, list):
            raise OSError(errno.EPROTO, "a listing is an array")
        encoded = [_dirent(1, b".", "d", node.path), _dirent(2, b"..", "d", node.path.rpartition(b"/")[0])]
        for each in answer:
            # DirEntry.from_wire inlined, for thousands of entries.
            match each:
                case [str() | bytes() as name, str() as kind, int() as mode]:
                    name = name if isinstance(name, bytes) else bytes_of(name)
                case _:
                    raise OSError(errno.EPROTO, "an entry is [name, kind, mode]")
            path = node.child(name)
            encoded.append(_dirent(len(encoded) + 1, name, kind, path))
            self._see(path, messages.Stat(kind, mode))
        return encoded

    def _releasedir(self, _header: Header, body: bytes) -> Steps:
        yield from ()
        self._directories.pop(abi.RELEASE_IN.unpack_from(body)[0], None)
        return b""

    # Open files

    def _open(self, header: Header, body: bytes) -> Steps:
        node = self._nodes[header.node_id]
        flags = abi.OPEN_IN.unpack_from(body)[0] & _OPEN_FLAGS
        yield self._closing
        if node.path == _DATA:
            return (yield from self._open_data(header))
        channel = self._channel_for(node)
        try:
            handle = yield Ask(channel, messages.Open(node.path, flags))
            if not isinstance(handle, int):
                raise OSError(errno.EPROTO, "a handle is a number")
        except OSError:
            self._channel_is_free(node.name, channel)
            raise
        fh = next(self._fhs)
        readable = flags & os.O_ACCMODE != os.O_WRONLY
        self._files[fh] = _OpenFile(node.name, node.path, channel, handle, readable)
        if self._files[fh].is_cached:
            self._enlarge(node.id)
        streams = OpenFlag.STREAM | OpenFlag.NONSEEKABLE if node.name in _STREAMS else 0
        return abi.OPEN_OUT.pack(fh, OpenFlag.DIRECT_IO | streams, 0)

    def _enlarge(self, node_id: int) -> None:
        """Let the page cache read the file."""
        self._far += 1  # the size changes only if it grows
        self._notify(abi.NOTIFY_STORE, abi.NOTIFY_STORE_OUT.pack(node_id, self._far, 1, 0) + b"\0")
        # Without cached attributes stat(2) and the next open request the size.
        self._notify(abi.NOTIFY_INVAL_INODE, abi.NOTIFY_INVAL_INODE_OUT.pack(node_id, -1, 0))

    def _open_data(self, header: Header) -> Steps:
        file = yield from self._data.open(header)
        fh = next(self._fhs)
        self._data_files[fh] = file
        # Without a position: else each write would advance it, until `ulimit -f` kills the program. And
        # writers in different processes need not wait for each other.
        streams = OpenFlag.STREAM | OpenFlag.NONSEEKABLE | OpenFlag.PARALLEL_DIRECT_WRITES
        return abi.OPEN_OUT.pack(fh, OpenFlag.DIRECT_IO | streams, 0)

    def _channel_for(self, node: Node) -> Channel:
        if node.name not in _WAITED:
            return self._main
        if self._waited_files >= MAX_WAITED_FILES:
            raise OSError(errno.ENFILE, f"{MAX_WAITED_FILES} files that can be waited for are open")
        channel = self._connect()
        self._waited_files += 1
        return channel

    def _channel_is_free(self, name: bytes, channel: Channel) -> None:
        if name in _WAITED:
            self._waited_files -= 1
            channel.close()

    def _read(self, header: Header, body: bytes) -> Steps:
        fh, offset, size, read_flags, _, flags, _ = abi.READ_IN.unpack_from(body)
        if fh in self._data_files:
            raise OSError(errno.EINVAL, "user_events_data cannot be read")
        file = self._file(fh)
        is_stream = file.name in _STREAMS
        own_flags = flags & os.O_NONBLOCK if file.is_waited else None
        request = messages.Read(file.handle, size, own_flags)
        waits = is_stream and file.is_waited and not flags & os.O_NONBLOCK
        if waits and file.waiting_reads >= MAX_WAITING_READS:
            raise OSError(errno.EBUSY, f"{MAX_WAITING_READS} reads of this open file wait already")
        position, file.position = file.position, None
        file.waiting_reads += waits
        try:
            data: bytes
            if is_stream or position == offset:
                data = yield Ask(file.channel, request, answer_s=None if waits else ANSWER_S)
            else:
                for data in (yield AskEach(file.channel, [messages.Seek(file.handle, offset), request])):
                    if isinstance(data, OSError):
                        raise data
        finally:
            file.waiting_reads -= waits
        while 0 < len(data) < size and not read_flags & abi.READ_LOCKOWNER:
            rest = messages.Read(file.handle, size - len(data), own_flags)
            if not (more := (yield Ask(file.channel, rest))):
                break
            data += more
        file.position = offset + len(data)
        return data

    def _write(self, header: Header, body: bytes) -> Steps:
        fh, offset, size, _, _, flags, _ = abi.WRITE_IN.unpack_from(body)
        data = body[abi.WRITE_IN.size : abi.WRITE_IN.size + size]
        if fh in self._data_files:
            # With O_APPEND it is the kernel's size of the file.
            offset = 0 if flags & os.O_APPEND else offset
            taken = yield from self._data.write(self._data_files[fh], header, offset, data)
            return abi.WRITE_OUT.pack(taken, 0)
        file = self._file(fh)
        writer = self._writer(header.pid) if file.name in _MARKERS else None
        try:
            taken = yield Ask(file.channel, messages.Write(file.handle, data, writer))
        except OSError as failure:
            if writer is None or failure.errno not in (errno.ESRCH, errno.EPERM):
                raise
            # The daemon does not see that thread, or does not allow us to write for it: the marker is ours.
            self._speaks_for_others = failure.errno != errno.EPERM
            taken = yield Ask(file.channel, messages.Write(file.handle, data))
        return abi.WRITE_OUT.pack(taken, 0)

    def _writer(self, pid: int) -> messages.Writer | None:
        if not pid or not self._speaks_for_others:
            return None
        start_time = self._start_time_of(pid)
        return None if start_time is None else messages.Writer(pid, start_time)

    def _poll(self, _header: Header, body: bytes) -> Steps:
        fh, kh, flags, _events = abi.POLL_IN.unpack_from(body)
        if fh in self._data_files:
            return abi.POLL_OUT.pack(_ALWAYS, 0)
        file = self._file(fh)
        if not file.is_waited or not file.readable:
            return abi.POLL_OUT.pack(_ALWAYS, 0)
        file.kh = kh
        ready = yield Ask(file.channel, messages.Ready(file.handle))
        if not ready and flags & abi.POLL_SCHEDULE_NOTIFY and not file.poll_under_way:
            file.poll_under_way = True
            file.channel.send(messages.Poll(file.handle), lambda *_: self._wake(file), answer_s=None)
        return abi.POLL_OUT.pack(_IN if ready else 0, 0)

    def _wake(self, file: _OpenFile) -> None:
        """It is ready, or cannot be waited for any more: wake the pollers."""
        file.poll_under_way = False
        self._notify(abi.NOTIFY_POLL, abi.NOTIFY_POLL_OUT.pack(file.kh))

    def _notify(self, kind: int, body: bytes) -> None:
        self._reply(abi.OUT_HEADER.pack(abi.OUT_HEADER.size + len(body), kind, 0) + body)

    def _ioctl(self, header: Header, body: bytes) -> Steps:
        """For trace_pipe_raw 0 wakes waiting readers, who find no page and wait again: no action needed."""
        fh, flags, command, argument = abi.IOCTL_IN.unpack_from(body)[:4]
        if fh in self._data_files:
            return (yield from self._data.ioctl(self._data_files[fh], header, flags, command, argument))
        if self._file(fh).name == b"trace_pipe_raw":
            if command == 0:
                return abi.IOCTL_OUT.pack(0, 0, 0, 0)
            if command == _GET_READER:
                raise OSError(errno.ENODEV, "it is not mapped")
        raise error(errno.ENOTTY)

    def _release(self, _header: Header, body: bytes) -> Steps:
        fh = abi.RELEASE_IN.unpack_from(body)[0]
        if (data_file := self._data_files.pop(fh, None)) is not None:
            self._closing.enter(data_file)
            try:
                return (yield from self._data.release(data_file))
            finally:
                self._closing.leave(data_file)
        file = self._files.pop(fh, None)
        if file is None:
            return b""
        self._closing.enter(file)
        try:
            yield Ask(file.channel, messages.Close(file.handle))
        finally:
            self._closing.leave(file)
            self._channel_is_free(file.name, file.channel)
        return b""

    def _file(self, fh: int) -> _OpenFile:
        try:
            return self._files[fh]
        except KeyError:
            raise error(errno.EBADF) from None


def _refusing(number: int) -> Callable[[Header, bytes], Steps]:
    def steps(_header: Header, _body: bytes) -> Steps:
        yield from ()
        raise error(number)

    return steps


def _changes_names(opcode: int, body: bytes) -> bool:
    """Whether it may add or remove events or instances: a write or a truncating open (dynamic_events), a
    close of a file open for writing (remove_on_close)."""
    match opcode:
        case Opcode.WRITE | Opcode.MKDIR | Opcode.RMDIR:
            return True
        case Opcode.OPEN:
            return bool(abi.OPEN_IN.unpack_from(body)[0] & os.O_TRUNC)
        case Opcode.RELEASE:
            return bool(abi.RELEASE_IN.unpack_from(body)[1] & os.O_ACCMODE != os.O_RDONLY)
    return False


def _name(body: bytes) -> bytes:
    return body[: body.index(b"\0")]


def _valid_s(parent: bytes) -> int:
    """How long the kernel may cache an entry of this directory: see the table above."""
    parts = parent.split(b"/")
    if parts[0] == b"instances" and len(parts) > 1:
        parts = parts[2:] or [b""]
    match parts:
        case [b""] | [b"options"] | [b"per_cpu"] | [b"per_cpu", _] | [b"events", _, _]:
            return _STAYS_S
    return 0


def _dirent(number: int, name: bytes, kind: str, path: bytes) -> bytes:
    file_type = stat.S_IFDIR >> 12 if kind == "d" else stat.S_IFREG >> 12
    return abi.DIRENT.pack(inode_number(path), number, len(name), file_type) + name + bytes(-len(name) % 8)


def _fill(entries: list[bytes], first: int, size: int) -> bytes:
    taken = bytearray()
    for entry in entries[first:]:
        if len(taken) + len(entry) > size:
            break
        taken += entry
    return bytes(taken)
