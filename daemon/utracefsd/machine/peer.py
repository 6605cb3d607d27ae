"""Who is at the other end of a connection.

The kernel vouches for pid, uid and gid (SO_PEERCRED, taken when the connection was made). Two classes follow
from them (docs/protocol.md, section 1): the daemon's owner and root are administrators, which stands for the
kernel's CAP_PERFMON; all others on the data socket are plain producers, limited by `shares`.

Effective capabilities from /proc are deliberately not asked: a process in a user namespace of its own shows a
full set there without having any power over the daemon.
"""

import attrs


@attrs.frozen
class Peer:
    """The process at the other end, as the kernel saw it when it connected."""

    pid: int
    """Process id; common_pid of the records that come over the socket. 0 when it lives in a namespace that we
    do not see."""

    uid: int
    """User id; limits are counted by it."""

    gid: int
    """Group id."""

    privileged: bool
    """Administrator: may make and delete persistent events (the kernel asks for CAP_PERFMON there)."""

    @classmethod
    def from_credentials(cls, pid: int, uid: int, gid: int, *, owner_uid: int) -> "Peer":
        """The peer behind SO_PEERCRED's three numbers; `owner_uid` is the daemon's own user."""
        return cls(pid, uid, gid, uid in (0, owner_uid))
