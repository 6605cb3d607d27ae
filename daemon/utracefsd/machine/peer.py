"""The identity of the process at the other end of a connection.

The kernel guarantees pid, uid and gid (SO_PEERCRED, taken when the connection was made). They decide between
two classes (docs/protocol.md, section 1): the daemon's owner and root are administrators, where the kernel
asks for CAP_PERFMON; all others on the data socket are plain producers, limited by `shares`.

A connection may outlive the process that made it, and then the pid may be given to another process. So the
start time of the process belongs to its identity: `lives` says whether the pid still is that process.

Effective capabilities in /proc are deliberately ignored: a process in a user namespace of its own shows a
full set and has no power over the daemon.

subuid(5): /etc/subuid gives ordinary users ranges of 65536 further user ids, for their containers. All ids of
a range count as that user (`share_of`), who could otherwise have each limit per user 65536 times. Ranges of
root are for containers that an administrator set up; there every id is a user of its own. Names are looked up
in /etc/passwd itself and not through the C library, which may ask a server and block.
"""

import errno
import os
import signal
import socket
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path

import attrs

from utracefs_protocol.errors import TraceError
from utracefsd.machine.comms import Task
from utracefsd.machine.procfs import read_task, read_tgid

SUBUID = Path("/etc/subuid")
PASSWD = Path("/etc/passwd")

FIRST_SUBORDINATE = 65536
"""Smaller ids are the system's and people's own (login.defs(5), SUB_UID_MIN); no file is read for them."""

_Ranges = list[tuple[int, int, int]]


def share_of(uid: int) -> int:
    """The user whose limits count `uid`."""
    if uid < FIRST_SUBORDINATE:
        return uid
    try:
        found = os.stat(SUBUID)
        ranges = _ranges(found.st_mtime, found.st_size)
    except OSError:  # no such file: there are no ranges
        ranges = []
    return next((owner for first, end, owner in ranges if first <= uid < end), uid)


@lru_cache(1)  # until the file changes
def _ranges(changed: float, size: int) -> _Ranges:
    subuid, passwd = SUBUID.read_bytes(), PASSWD.read_bytes()
    uids = {fields[0]: fields[2] for line in passwd.splitlines() if len(fields := line.split(b":")) > 2}
    ranges: _Ranges = []
    for line in subuid.splitlines():
        owner, *numbers = line.split(b":")
        try:
            first, count = map(int, numbers)
            # A user that only a server knows: then the range at least counts as one user.
            uid = int(uids.get(owner, owner)) if uids.get(owner, owner).isdigit() else first
        except ValueError:  # a comment, or not a line of this file
            continue
        if uid != 0:
            ranges.append((first, first + count, uid))
    return ranges


# asm-generic/socket.h, Linux 6.5; Python has no name for it.
_SO_PEERPIDFD = 77


@attrs.frozen
class Peer:
    """The process at the other end when it connected, by the kernel."""

    pid: int
    """Process id; common_pid of the records that come over the socket. 0 when its pid namespace is not
    visible from ours."""
    uid: int
    gid: int
    privileged: bool
    """Administrator: may make and delete persistent events (the kernel asks for CAP_PERFMON there)."""
    start_time: int | None = None
    """When the process began, in clock ticks since boot; None when it had ended or is hidden from us."""
    share: int = attrs.field(default=attrs.Factory(lambda peer: peer.uid, takes_self=True))
    """The user whose limits count it: `uid`, or the user to whom that id was given."""
    task: Task | None = attrs.field(default=None, eq=False)
    """As /proc showed it then; None: as `start_time`."""

    @classmethod
    def from_credentials(
        cls, pid: int, uid: int, gid: int, *, owner_uid: int, still_lives: Callable[[], bool] = lambda: True
    ) -> "Peer":
        """The peer of SO_PEERCRED's three numbers; `owner_uid` is the daemon's own user. still_lives: asked
        after the start time was read, which may be that of another process already."""
        task = read_task(pid) if pid > 0 else None
        start_time = task.start_time if task is not None and still_lives() else None
        return cls(pid, uid, gid, uid in (0, owner_uid), start_time, share_of(uid), task)

    @classmethod
    def of_process(cls, pid: int, start_time: int, uid: int, gid: int, *, owner_uid: int) -> "Peer":
        """The peer of a process for which a trusted connection speaks. TraceError(ESRCH): no process with
        that number and start time exists."""
        peer = cls(pid, uid, gid, uid in (0, owner_uid), start_time, share_of(uid))
        if not peer.lives() or read_tgid(pid) != pid:  # the number of a thread that is not its process's
            raise TraceError(errno.ESRCH, f"there is no process {pid} that began then")
        return peer

    @property
    def process(self) -> tuple[int, int | None]:
        """Distinguishes it from a process that gets its pid later."""
        return self.pid, self.start_time

    def lives(self) -> Task | None:
        """As /proc shows it now; None: the pid is no longer the process that connected."""
        task = None if self.start_time is None else read_task(self.pid)
        return task if task is not None and task.start_time == self.start_time else None


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    """struct ucred, as the kernel recorded it at connect time."""
    pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    # uid and gid are unsigned in the kernel
    return pid, uid & 0xFFFFFFFF, gid & 0xFFFFFFFF


def stranger(sock: socket.socket) -> Peer:
    """The peer, only by what is free to ask: no privilege, no start time. OSError."""
    pid, uid, gid = _credentials(sock)
    return Peer(pid, uid, gid, False, None, share_of(uid))


def peer_of(sock: socket.socket, *, owner_uid: int) -> Peer:
    """The peer by SO_PEERCRED. OSError."""
    still_lives = partial(_still_lives, sock)
    return Peer.from_credentials(*_credentials(sock), owner_uid=owner_uid, still_lives=still_lives)


def _still_lives(sock: socket.socket) -> bool:
    """Whether the process that connected still exists, even if its pid was reused; True where the kernel
    cannot tell."""
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        return error.errno != errno.ESRCH
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return False
    except OSError:  # EPERM: it lives and belongs to another user
        return True
    else:
        return True
    finally:
        os.close(pidfd)
