"""Directories, files and open files: the base classes of the tree.

The tree keeps no object for an event or an option. A walk along a path makes the nodes it passes, from
tables:

    Row          one file: its name, and functions that read, write, truncate and open it in a context
    Rows         a directory that is such a table over one context (an instance, an event, a cpu)
    Directory    anything with `lookup` and `names`; directories whose entries are computed subclass it
    FileNode     a Row with its context, found by a walk; opening it gives an OpenFile

OpenFile does once what open(2), read(2) and write(2) check before a tracefs file sees the call (fs/open.c,
fs/read_write.c). Permission bits are shown and not enforced: the socket decides who may connect. A read that
would have to wait raises EAGAIN; the owner of the loop waits and calls again if `blocking` is set.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.tracefs import Stat
from utracefsd.machine.peer import Peer

READ_WRITE = 0o640
READ_ONLY = 0o440
WRITE_ONLY = 0o200
MARKER = 0o220
"""Modes of files (fs/tracefs: TRACE_MODE_WRITE, TRACE_MODE_READ and the two exceptions)."""

C = TypeVar("C")


class Node:
    """The base of everything that a path can lead to."""

    kind: ClassVar[str]
    mode: int
    holds_instance = False
    """While it is open, its instance cannot be removed."""

    def stat(self) -> Stat:
        return Stat(self.kind, self.mode)

    def open(self, flags: int, peer: Peer) -> "OpenFile":
        """Open it; flags are the O_ numbers."""
        raise NotImplementedError


class Directory(Node):
    """Entries are computed at each call; two calls may answer differently."""

    kind = "d"
    mode = 0o755

    def lookup(self, name: bytes) -> Node | None:
        """The entry of that name, None if there is none. Must not walk over all entries."""
        raise NotImplementedError

    def names(self) -> Iterable[tuple[bytes, str]]:
        """Name and kind of every entry."""
        raise NotImplementedError

    def modes(self) -> Iterator[tuple[bytes, str, int]]:
        """The same with permission bits, as `lookup` and `stat` of each would give them."""
        for name, kind in self.names():
            node = self.lookup(name)
            if node is not None:
                yield name, kind, node.mode

    def open(self, flags: int, peer: Peer) -> "OpenFile":
        """For reading only; every read of it is EISDIR."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & (os.O_TRUNC | os.O_CREAT):
            raise TraceError(errno.EISDIR, "is a directory")
        return OpenDirectory(flags)


class OpenFile:
    """One open file: the handle of a peer. Subclasses implement `_read`, `_write`, `_close`. EBADF once
    closed or when the access mode does not allow it; EINVAL when this kind of file cannot be read, or
    written."""

    seekable = False
    is_steady = False
    """Its content is fixed at the first read, so a reader reaches its end whatever happens meanwhile."""

    def __init__(self, flags: int) -> None:
        access = flags & os.O_ACCMODE
        if access == os.O_ACCMODE:
            raise TraceError(errno.EINVAL, "an access mode is O_RDONLY, O_WRONLY or O_RDWR")
        self.readable = access != os.O_WRONLY
        self.writable = access != os.O_RDONLY
        self.blocking = not flags & os.O_NONBLOCK
        self.closed = False
        self.on_close: Callable[[], None] = lambda: None
        """Called once, after closing."""

    def read(self, size: int) -> bytes:
        """Up to size bytes; empty at the end of the file. EAGAIN when it would have to wait for data."""
        if self.closed or not self.readable:
            raise TraceError(errno.EBADF, "the file is not open for reading")
        if size < 0:
            raise TraceError(errno.EINVAL, f"invalid size {size}")
        return self._read(size)

    def write(self, data: bytes) -> int:
        """Write one command (or record); returns how many bytes of it were used."""
        if self.closed or not self.writable:
            raise TraceError(errno.EBADF, "the file is not open for writing")
        return self._write(data)

    def written_by(self, pid: int, cpu: int | None) -> None:
        """Set the thread, and the cpu if known, of the next write. Only markers show them."""

    def seek(self, offset: int) -> int:
        """Like lseek(SEEK_SET). ESPIPE on streams, EINVAL for a negative offset."""
        if self.closed:
            raise TraceError(errno.EBADF, "the file is closed")
        if not self.seekable:
            raise TraceError(errno.ESPIPE, "this file is a stream and cannot be positioned")
        if offset < 0:
            raise TraceError(errno.EINVAL, f"invalid offset {offset}")
        self._seek(offset)
        return offset

    def close(self) -> None:
        """Idempotent."""
        if not self.closed:
            self.closed = True
            self._close()
            self.on_close()

    def ready(self) -> bool:
        """Whether poll(2) would report it readable. Text files always are."""
        if self.closed or not self.readable:
            raise TraceError(errno.EBADF, "the file is not open for reading")
        return self._ready()

    def _ready(self) -> bool:
        return True

    def _read(self, size: int) -> bytes:
        raise TraceError(errno.EINVAL, "this file cannot be read")

    def _write(self, data: bytes) -> int:
        raise TraceError(errno.EINVAL, "this file cannot be written")

    def _seek(self, offset: int) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        pass


class OpenDirectory(OpenFile):
    """A directory opened for reading: it can only be closed."""

    def _read(self, size: int) -> bytes:
        raise TraceError(errno.EISDIR, "is a directory: list it")


@attrs.frozen
class Row(Generic[C]):
    """One file of a directory. The callables get the directory's context first."""

    name: bytes
    show: Callable[[C], bytes | Iterator[bytes]] | None = None
    """The whole content, in pieces where it is large; None: reading is EINVAL."""
    store: Callable[[C, bytes, Peer], int | None] | None = None
    """Process one write. Returns how many bytes it used, None for all. None: writing is EINVAL."""
    truncate: Callable[[C, Peer], None] | None = None
    """Called by opening with O_TRUNC for writing; None: nothing."""
    release: Callable[[C], None] | None = None
    """Called by closing a file that was open for writing; None: nothing."""
    opener: Callable[[C, int, Peer], OpenFile] | None = None
    """Makes the open file where OpenText does not suffice; then the four above are not used."""
    changes: Callable[[C], int] | None = None
    """A number that changes with the content: poll(2) waits for a change since the file was opened or read.
    None: it does not wait."""
    holds_instance: bool = True
    """While it is open, its instance cannot be removed; true for most of the kernel's files."""
    mode: int = attrs.field()
    """Permission bits; by default those of what it can do."""

    @mode.default
    def _mode(self) -> int:
        if self.opener is not None or (self.show is not None and self.store is not None):
            return READ_WRITE
        return WRITE_ONLY if self.show is None else READ_ONLY


RowTable: TypeAlias = dict[bytes, Row[C]]
"""By name, in their order. Made once per kind of directory."""


def row_table(*rows: Row[C]) -> RowTable[C]:
    return {row.name: row for row in rows}


@attrs.frozen
class FileNode(Node, Generic[C]):
    """A Row found by a walk."""

    kind = "f"
    row: Row[C]
    context: C
    """The object that the row's functions get."""
    guard: Callable[[], None] = lambda: None
    """Raises when the file was removed (ENODEV); called before each operation on an open file."""

    @property
    def mode(self) -> int:  # type: ignore[override]
        return self.row.mode

    @property
    def holds_instance(self) -> bool:  # type: ignore[override]
        return self.row.holds_instance

    def open(self, flags: int, peer: Peer) -> OpenFile:
        if flags & os.O_DIRECTORY:
            raise TraceError(errno.ENOTDIR, "is not a directory")
        if flags & os.O_CREAT and flags & os.O_EXCL:
            raise TraceError(errno.EEXIST, "exists")
        if self.row.opener is not None:
            return self.row.opener(self.context, flags, peer)
        return OpenText(self, flags, peer)


_AT_ONCE = 64 << 10
"""Bytes that one read renders at most of a text in pieces, so that other tasks run in between."""


class OpenText(OpenFile):
    """A text: made at the first read, or piece by piece as it is read; seeking back makes it anew."""

    seekable = True
    is_steady = True

    def __init__(self, node: FileNode[Any], flags: int, peer: Peer) -> None:
        super().__init__(flags)
        self._node = node
        self._peer = peer
        self._text: bytearray | None = None
        """The part that is rendered; None: not read since the last seek."""
        self._pieces: Iterator[bytes] = iter(())
        """Pieces still to be rendered."""
        self._position = 0
        self._seen = self._changes()
        if self.writable and flags & os.O_TRUNC and node.row.truncate is not None:
            node.row.truncate(node.context, peer)

    def _read(self, size: int) -> bytes:
        show = self._node.row.show
        if show is None:
            return super()._read(size)
        self._node.guard()
        if self._text is None:
            self._seen = self._changes()
            shown = show(self._node.context)
            self._pieces = iter((shown,)) if isinstance(shown, bytes) else shown
            self._text = bytearray()
        end = self._position + min(size, _AT_ONCE)
        while len(self._text) < end and (more := next(self._pieces, None)) is not None:
            self._text += more
        piece = bytes(self._text[self._position : self._position + size])
        self._position += len(piece)
        return piece

    def _ready(self) -> bool:
        return self._node.row.changes is None or self._changes() != self._seen

    def _changes(self) -> int:
        changes = self._node.row.changes
        return 0 if changes is None else changes(self._node.context)

    def _write(self, data: bytes) -> int:
        store = self._node.row.store
        if store is None:
            return super()._write(data)
        self._node.guard()
        used = store(self._node.context, data, self._peer)
        return len(data) if used is None else used

    def _seek(self, offset: int) -> None:
        if offset == 0:
            self._text = None
        self._position = offset

    def _close(self) -> None:
        if self._node.row.release is not None and self.writable:
            self._node.row.release(self._node.context)


@attrs.define(eq=False)
class Rows(Directory, Generic[C]):
    """A directory that is a table over one context, with a few directories among its files."""

    _context: C
    _table: RowTable[C]
    mode: int = 0o755
    _directories: Sequence[tuple[bytes, Callable[[C], Directory]]] = ()
    _guard: Callable[[], None] = lambda: None

    def lookup(self, name: bytes) -> Node | None:
        row = self._table.get(name)
        if row is not None:
            return FileNode(row, self._context, self._guard)
        for known, make in self._directories:
            if known == name:
                return make(self._context)
        return None

    def names(self) -> Iterator[tuple[bytes, str]]:
        for name in self._table:
            yield name, "f"
        for name, _ in self._directories:
            yield name, "d"


@attrs.define(eq=False)
class Listing(Directory):
    """A directory whose entries are computed: their names, and the node of a name, None for another one."""

    _names: Callable[[], Iterable[bytes]]
    _find: Callable[[bytes], Node | None]
    _kind: str = "d"
    mode: int = 0o750

    def lookup(self, name: bytes) -> Node | None:
        return self._find(name)

    def names(self) -> Iterator[tuple[bytes, str]]:
        for name in self._names():
            yield name, self._kind
