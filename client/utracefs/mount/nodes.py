"""Node ids, the kernel's names for files, and our data of each: its path, kind, mode and owner.

A path has one node while the kernel has a reference to it (LOOKUP counts up, FORGET down). The inode number
visible to programs is computed from the path, so it does not change when the kernel forgets a file meanwhile.

chmod(2) and chown(2) last as long as the mount, as in tracefs; they do not reach the daemon. They give other
users access if the mount was made with `allow_other`.
"""

import errno
import hashlib
import os
import stat
from typing import Final

import attrs

from utracefs.mount.abi import ATTR_OUT, ENTRY_OUT, ROOT_ID
from utracefs_protocol.messages.tracefs import Stat

MAX_CHANGED: Final = 65536
"""Limit of files with changed mode or owner: `chmod -R` of a tree of 8,000 events. Above: ENOSPC, since the
number of paths is unlimited, because of instances."""

_FOREVER_S: Final = 1 << 30
"""Kind and mode of a path never change outside of the kernel."""

_BLOCK: Final = 4096


def inode_number(path: bytes) -> int:
    """A number of 63 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(path, digest_size=8).digest(), "little") >> 1 | 1


@attrs.define
class Node:
    """A file or directory known to the kernel."""

    id: int
    path: bytes
    """Relative to the root of the tree; the root is empty."""
    mode: int
    """With the file type."""
    lookups: int = 0

    @property
    def name(self) -> bytes:
        return self.path.rpartition(b"/")[2]

    def child(self, name: bytes) -> bytes:
        return b"%s/%s" % (self.path, name) if self.path else name


class Nodes:
    """uid, gid: defaults of all files. time_s: all their time stamps."""

    def __init__(self, *, uid: int, gid: int, time_s: int) -> None:
        self._uid = uid
        self._gid = gid
        self._time_s = time_s
        self._by_id: dict[int, Node] = {}
        self._by_path: dict[bytes, Node] = {}
        self._changed: dict[bytes, tuple[int | None, ...]] = {}
        """By path: mode, uid and gid by chmod(2) and chown(2); None: unchanged."""
        self._next_id = ROOT_ID
        self._add(b"", stat.S_IFDIR | 0o700).lookups = 1

    def __len__(self) -> int:
        return len(self._by_id)

    def _add(self, path: bytes, mode: int) -> Node:
        node = Node(self._next_id, path, mode)
        self._next_id += 1
        self._by_id[node.id] = self._by_path[path] = node
        return node

    def __getitem__(self, node_id: int) -> Node:
        """OSError: ESTALE for an unknown or forgotten id."""
        try:
            return self._by_id[node_id]
        except KeyError:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE)) from None

    def looked_up(self, path: bytes, found: Stat) -> Node:
        """The node of an existing path, with one more reference."""
        mode = (stat.S_IFDIR if found.kind == "d" else stat.S_IFREG) | stat.S_IMODE(found.mode)
        node = self._by_path.get(path) or self._add(path, mode)
        node.mode = mode
        node.lookups += 1
        return node

    def forget(self, node_id: int, lookups: int) -> None:
        node = self._by_id.get(node_id)
        if node is None or node_id == ROOT_ID:
            return
        node.lookups -= lookups
        if node.lookups <= 0:
            del self._by_id[node_id], self._by_path[node.path]

    def removed(self, path: bytes) -> None:
        """A directory was removed, with all below it: later entries there are new."""
        below = path + b"/"
        for changed in [one for one in self._changed if one == path or one.startswith(below)]:
            del self._changed[changed]

    def change(
        self, node: Node, *, mode: int | None = None, uid: int | None = None, gid: int | None = None
    ) -> None:
        """None: unchanged. OSError: ENOSPC."""
        if node.path not in self._changed and len(self._changed) >= MAX_CHANGED:
            raise OSError(errno.ENOSPC, f"{MAX_CHANGED} files have a mode or an owner of their own")
        new = (None if mode is None else stat.S_IMODE(mode), uid, gid)
        old = self._changed.get(node.path, (None,) * 3)
        self._changed[node.path] = tuple(o if n is None else n for o, n in zip(old, new, strict=True))

    def attr_out(self, node: Node) -> bytes:
        """The reply to GETATTR."""
        return ATTR_OUT.pack(_FOREVER_S, 0, 0, *self._attributes(node))

    def entry_out(self, node: Node, valid_s: int) -> bytes:
        """The reply to LOOKUP; the kernel caches the name for valid_s."""
        return ENTRY_OUT.pack(node.id, 0, valid_s, _FOREVER_S, 0, 0, *self._attributes(node))

    def _attributes(self, node: Node) -> tuple[int, ...]:
        mode, uid, gid = self._changed.get(node.path, (None,) * 3)
        mode = node.mode if mode is None else stat.S_IFMT(node.mode) | mode
        uid = self._uid if uid is None else uid
        gid = self._gid if gid is None else gid
        time_s = self._time_s
        return (
            *(inode_number(node.path), 0, 0, time_s, time_s, time_s, 0, 0, 0),
            *(mode, 1, uid, gid, 0, _BLOCK, 0),
        )
