"""Messages between the kernel and a file system over /dev/fuse: <linux/fuse.h>, protocol 7.31.

    request   header (40 bytes), then by opcode one of the structs below; names end with a NUL
    reply     length, error (0 or a negative errno), the request's `unique`; then the body
    notice    a reply with `unique` 0, and the kind of notice in place of the error

A struct is a `struct.Struct` in native byte order; the comment behind it lists its members. Kernels since 5.2
support 7.31; newer ones fall back to it.
"""

import struct
from enum import IntEnum, IntFlag
from typing import Final

import attrs

MAJOR: Final = 7
MINOR: Final = 31
ROOT_ID: Final = 1


class Opcode(IntEnum):
    """enum fuse_opcode: the opcodes with an implementation; others are ENOSYS."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    CREATE = 35
    INTERRUPT = 36
    IOCTL = 39
    POLL = 40
    BATCH_FORGET = 42
    RENAME2 = 45


class InitFlag(IntFlag):
    """FUSE_*: capabilities of both sides."""

    ATOMIC_O_TRUNC = 1 << 3
    """OPEN has O_TRUNC, without a SETATTR before it: this distinguishes `>` from truncate(2)."""
    BIG_WRITES = 1 << 5
    PARALLEL_DIROPS = 1 << 18
    MAX_PAGES = 1 << 22


class OpenFlag(IntFlag):
    """FOPEN_*."""

    DIRECT_IO = 1 << 0
    """Every read(2) and write(2) is sent to us, whatever the size of the file."""
    NONSEEKABLE = 1 << 2
    STREAM = 1 << 4
    """No file position, so a waiting read blocks no other call on the file."""
    PARALLEL_DIRECT_WRITES = 1 << 6
    """Parallel writes (Linux 6.2); with O_APPEND, or beyond the kernel's end of the file, they are still
    serialized."""


class IoctlFlag(IntFlag):
    """FUSE_IOCTL_*: kind of caller."""

    COMPAT = 1 << 0
    """A 32-bit program on a 64-bit kernel."""
    BITS_32 = 1 << 3
    """A 32-bit kernel."""


class SetattrValid(IntFlag):
    """FATTR_*: valid members of SETATTR."""

    MODE = 1 << 0
    UID = 1 << 1
    GID = 1 << 2


GETATTR_FH: Final = 1
"""In the flags of GETATTR: the kernel wants the size, for lseek(SEEK_END); stat(2) has no handle."""
GETATTR_IN: Final = struct.Struct("=IIQ")  # flags dummy fh

POLL_SCHEDULE_NOTIFY: Final = 1
"""In the flags of POLL: a program waits, so send NOTIFY_POLL once."""

READ_LOCKOWNER: Final = 1 << 1
"""In the flags of READ: it is a read(2). Others fill the page cache, where a short one ends the file."""

NOTIFY_POLL: Final = 1
NOTIFY_INVAL_INODE: Final = 2
NOTIFY_STORE: Final = 4

_HEADER: Final = struct.Struct("=IIQQIIIHH")
OUT_HEADER: Final = struct.Struct("=IiQ")  # len, error, unique

_ATTR: Final = "6Q10I"
"""ino size blocks atime mtime ctime; atimensec mtimensec ctimensec mode nlink uid gid rdev blksize flags"""

ENTRY_OUT: Final = struct.Struct(
    "=4Q2I" + _ATTR
)  # nodeid generation entry_valid attr_valid, their nsec, attr
ATTR_OUT: Final = struct.Struct("=QII" + _ATTR)  # attr_valid attr_valid_nsec dummy attr
FORGET_IN: Final = struct.Struct("=Q")  # nlookup
BATCH_FORGET_IN: Final = struct.Struct("=II")  # count dummy
FORGET_ONE: Final = struct.Struct("=QQ")  # nodeid nlookup
SETATTR_IN: Final = struct.Struct("=2I6Q8I")
"""valid padding; fh size lock_owner atime mtime ctime; atimensec mtimensec ctimensec mode unused uid gid
unused"""
MKNOD_IN: Final = struct.Struct("=4I")  # mode rdev umask padding
MKDIR_IN: Final = struct.Struct("=II")  # mode umask
OPEN_IN: Final = struct.Struct("=II")  # flags open_flags
OPEN_OUT: Final = struct.Struct("=QIi")  # fh open_flags backing_id
READ_IN: Final = struct.Struct("=QQIIQII")  # fh offset size read_flags lock_owner flags padding
WRITE_IN: Final = struct.Struct("=QQIIQII")  # fh offset size write_flags lock_owner flags padding
WRITE_OUT: Final = struct.Struct("=II")  # size padding
RELEASE_IN: Final = struct.Struct("=QIIQ")  # fh flags release_flags lock_owner
STATFS_OUT: Final = struct.Struct(
    "=5Q10I"
)  # blocks bfree bavail files ffree; bsize namelen frsize padding spare
INIT_IN: Final = struct.Struct("=4I")  # major minor max_readahead flags
INIT_OUT: Final = struct.Struct("=4I2H2I2H8I")
"""major minor max_readahead flags; max_background congestion_threshold; max_write time_gran; max_pages
map_alignment; unused"""
INTERRUPT_IN: Final = struct.Struct("=Q")  # unique
IOCTL_IN: Final = struct.Struct("=QIIQII")  # fh flags cmd arg in_size out_size
IOCTL_OUT: Final = struct.Struct("=iIII")
"""result flags in_iovs out_iovs. The kernel copies the following bytes to the argument; our replies have
none."""
POLL_IN: Final = struct.Struct("=QQII")  # fh kh flags events
POLL_OUT: Final = struct.Struct("=II")  # revents padding
NOTIFY_INVAL_INODE_OUT: Final = struct.Struct("=Qqq")  # ino off len; off below 0: attributes only
NOTIFY_STORE_OUT: Final = struct.Struct("=QQII")  # nodeid offset size padding; then the bytes
NOTIFY_POLL_OUT: Final = struct.Struct("=Q")  # kh
DIRENT: Final = struct.Struct("=QQII")  # ino off namelen type; then the name, padded to a multiple of 8


@attrs.frozen
class Header:
    opcode: int
    unique: int
    """The request's number, for its reply."""
    node_id: int
    pid: int
    """The calling thread; 0 if it is in a namespace that we do not see."""
    uid: int = 0
    gid: int = 0
    """User of that thread, for files; RELEASE and FORGET have no valid one."""

    @classmethod
    def from_request(cls, request: bytes) -> "tuple[Header, bytes]":
        _len, opcode, unique, node_id, uid, gid, pid, _extra, _padding = _HEADER.unpack_from(request)
        return cls(opcode, unique, node_id, pid, uid, gid), request[_HEADER.size :]
