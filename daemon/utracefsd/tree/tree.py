"""The virtual tracefs: paths, and the system calls on them.

A path is walked from the root at each call, part by part, as in a filesystem: ENOENT for a missing entry,
ENOTDIR for a path below a file. Paths are relative to the root; empty parts and `.` are skipped, `..` goes up
and stays at the root.

`read_pieces` and `write_file` are open, read or write, and close in one, like `cat FILE` and `echo TEXT >
FILE`. A read that would have to wait for data ends the content. A write may use only a part of the data
(set_event takes one word) and returns its length; the caller writes the rest, as a shell does.
"""

import errno
import itertools
import os
from collections.abc import Iterator

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MAX_READ_FILE
from utracefs_protocol.messages.tracefs import Stat
from utracefsd.machine.peer import Peer
from utracefsd.tree.nodes import Directory, Node, OpenFile
from utracefsd.tree.top import InstanceDirectory, InstancesDirectory, Parts, TopDirectory

_PATH_MAX = 4096
"""Bytes of a path, a NUL included (linux/limits.h); longer is ENAMETOOLONG."""

_PIECE = 1 << 20


class Tree:
    """The tree of the tracefs socket. Plain and synchronous; owns no files."""

    def __init__(self, parts: Parts) -> None:
        self._root = TopDirectory(parts)

    def open(self, path: bytes, flags: int, *, peer: Peer) -> OpenFile:
        """Open a file (or a directory, which can only be closed again). ENOENT, ENOTDIR, EISDIR (a directory
        for writing), EACCES (O_CREAT of a missing entry), EEXIST (O_EXCL), ENAMETOOLONG, and errors of the
        file's own opening: EBUSY (trace_pipe, dynamic_events)."""
        above, name = self._above(path)
        node = above[-1] if name is None else above[-1].lookup(name)
        if node is None:
            if flags & os.O_CREAT:
                what = f"{_shown(path)}: no such file, and files cannot be created here"
                raise TraceError(errno.EACCES, what)
            raise _no_entry(path)
        if name is not None and path.endswith(b"/"):
            if flags & os.O_CREAT:
                raise TraceError(errno.EISDIR, f"{_shown(path)}: is a directory")
            _check_directory(node, path)
        file = node.open(flags, peer)
        if node.holds_instance:
            _hold_instance(above, file)
        return file

    def read_pieces(self, path: bytes, peer: Peer) -> Iterator[bytes | None]:
        """The whole content in pieces of at most a MiB, made one by one; None where other tasks may run.
        EFBIG with the first piece above 64 MiB, and errors of `open` and `OpenFile.read`."""
        file = self.open(path, os.O_RDONLY | os.O_NONBLOCK, peer=peer)
        total = 0
        try:
            while piece := file.read(_PIECE):
                total += len(piece)
                if total > MAX_READ_FILE:
                    raise TraceError(
                        errno.EFBIG,
                        f"{_shown(path)} has more than {MAX_READ_FILE} bytes; open it and read in pieces",
                    )
                yield piece
                if file.is_steady:
                    yield None
        except TraceError as error:
            if error.errno != errno.EAGAIN:
                raise
        finally:
            file.close()

    def write_file(self, path: bytes, data: bytes, truncate: bool, peer: Peer) -> int:
        """One write, after opening with O_TRUNC (the shell's `>`) or O_APPEND. Returns the bytes used."""
        file = self.open(
            path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else os.O_APPEND), peer=peer
        )
        try:
            return file.write(data)
        finally:
            file.close()

    def list_dir(self, path: bytes) -> list[tuple[bytes, str]]:
        """Name and kind (`d`, `f`) of every entry. ENOTDIR for a file."""
        return list(_check_directory(self._walk(path), path).names())

    def list_modes(self, path: bytes) -> list[tuple[bytes, str, int]]:
        """The same with permission bits, as `stat` of each would give them."""
        return list(_check_directory(self._walk(path), path).modes())

    def stat(self, path: bytes) -> Stat:
        """Kind, permission bits, size."""
        return self._walk(path).stat()

    def mkdir(self, path: bytes) -> None:
        """EEXIST, ENOENT, EPERM anywhere but directly below instances/, and errors of `Instances.make`."""
        above, name = self._above(path)
        parent = above[-1]
        if name is None or parent.lookup(name) is not None:
            raise TraceError(errno.EEXIST, f"{_shown(path)}: exists")
        if not isinstance(parent, InstancesDirectory):
            raise TraceError(errno.EPERM, f"{_shown(path)}: directories can be made below instances only")
        parent.instances.make(name)

    def rmdir(self, path: bytes) -> None:
        """ENOENT, ENOTDIR, EBUSY (a file in it is open), EPERM anywhere but directly below instances/."""
        above, name = self._above(path)
        parent = above[-1]
        node = parent if name is None else parent.lookup(name)
        if node is None:
            raise _no_entry(path)
        _check_directory(node, path)
        if name is None or not isinstance(parent, InstancesDirectory):
            raise TraceError(errno.EPERM, f"{_shown(path)}: only instances can be removed")
        parent.instances.remove(name)

    def _walk(self, path: bytes) -> Node:
        above, name = self._above(path)
        if name is None:
            return above[-1]
        node = above[-1].lookup(name)
        if node is None:
            raise _no_entry(path)
        if path.endswith(b"/"):
            _check_directory(node, path)
        return node

    def _above(self, path: bytes) -> tuple[list[Directory], bytes | None]:
        """The directories above the last part, from the root on, and that part; no part if the path ends in a
        directory by itself (`.`, `..`)."""
        if len(path) >= _PATH_MAX:
            raise TraceError(errno.ENAMETOOLONG, f"a path has at most {_PATH_MAX - 1} bytes, not {len(path)}")
        parts = [part for part in path.split(b"/") if part not in (b"", b".")]
        name = parts.pop() if parts and parts[-1] != b".." else None
        above: list[Directory] = [self._root]
        for part in parts:
            if part == b"..":
                if len(above) > 1:
                    above.pop()
                continue
            node = above[-1].lookup(part)
            if node is None:
                raise _no_entry(path)
            if not isinstance(node, Directory):
                raise TraceError(errno.ENOTDIR, f"{_shown(path)}: {_shown(part)} is not a directory")
            above.append(node)
        return above, name


def _hold_instance(above: list[Directory], file: OpenFile) -> None:
    """While a file of a named instance is open, the instance cannot be removed."""
    for directory, below in itertools.pairwise(above):
        if isinstance(directory, InstancesDirectory) and isinstance(below, InstanceDirectory):
            file.on_close = directory.instances.hold(below.instance)


def _check_directory(node: Node, path: bytes) -> Directory:
    if not isinstance(node, Directory):
        raise TraceError(errno.ENOTDIR, f"{_shown(path)}: is not a directory")
    return node


def _no_entry(path: bytes) -> TraceError:
    return TraceError(errno.ENOENT, f"{_shown(path)}: no such file or directory")


def _shown(path: bytes) -> str:
    return path[:200].decode("utf-8", "backslashreplace") + ("..." if len(path) > 200 else "")
