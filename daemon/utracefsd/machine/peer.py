"""Who is at the other end of a connection, and how much of the daemon one user may take.

The kernel vouches for pid, uid and gid (SO_PEERCRED, taken when the connection was made). Two classes follow
from them (docs/protocol.md, "Runtime directory"): the daemon's owner and root are administrators, which
stands for the kernel's CAP_PERFMON; everybody else on the data socket is a plain producer.

Effective capabilities from /proc are deliberately not asked: a process in a user namespace of its own shows a
full set there without having any power over the daemon.

Everything that arrives on the data socket is hostile, so a user may hold only so many connections (here) and
events (counted by the event table, which knows when one is made). Without these numbers one user could use up
the status page or the daemon's descriptors and so silence everybody else.
"""

import errno

import attrs

from utracefs_protocol.errors import TraceError

# One descriptor of the daemon each. systemd gives a service 524288, a login session 1024; a prefork server
# with a process per core and a session or two in each stays far below.
MAX_CONNECTIONS_PER_UID = 1024

# Half of the default status page (4095 events), so that one user cannot take the last index from another.
MAX_EVENTS_PER_UID = 2048

# What one user's enablers may map in the daemon: a mapping each, of the 65530 that the kernel allows a
# process (vm.max_map_count). 4 KiB pages, so 256 pages hold 131072 words of 8 bytes, or 262144 of 4.
MAX_ENABLER_PAGES_PER_UID = 256

# Enablers are daemon memory (about 200 bytes each) and work at each toggle. Sixteen for each event of a full
# page.
MAX_ENABLERS_PER_UID = 65536


@attrs.frozen
class Peer:
    """The process at the other end, as the kernel saw it when it connected."""

    pid: int
    """Process id; common_pid of the records that come over the socket. 0 when it lives in a namespace we
    cannot see."""

    uid: int
    """User id; limits are counted by it."""

    gid: int
    """Group id."""

    privileged: bool
    """Administrator: may make and delete persistent events (the kernel asks for CAP_PERFMON there)."""

    comm: bytes = b"<...>"
    """Command name at connect time, at most 15 bytes; `<...>` (the kernel's word for an unknown one) when
    unreadable."""

    @classmethod
    def from_credentials(cls, pid: int, uid: int, gid: int, *, owner_uid: int) -> "Peer":
        """The peer behind SO_PEERCRED's three numbers; `owner_uid` is the daemon's own user."""
        return cls(pid, uid, gid, uid in (0, owner_uid), read_comm(pid))


def read_comm(pid: int) -> bytes:
    """The command name of `pid` from /proc, `<...>` when there is none to read."""
    if pid <= 0:
        return b"<...>"
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return file.read().removesuffix(b"\n") or b"<...>"
    except OSError:
        return b"<...>"


class PeerLimits:
    """Counts the data connections of each user. One for the daemon; administrators are counted but not
    refused."""

    def __init__(self, max_connections_per_uid: int = MAX_CONNECTIONS_PER_UID) -> None:
        self.max_connections_per_uid = max_connections_per_uid
        self._connections: dict[int, int] = {}

    def connections(self, uid: int) -> int:
        """How many connections `uid` has now."""
        return self._connections.get(uid, 0)

    def enter(self, peer: Peer) -> None:
        """Count one more connection of `peer`. Raises TraceError(EMFILE), having counted nothing, when it is
        one too many."""
        count = self.connections(peer.uid)
        if not peer.privileged and count >= self.max_connections_per_uid:
            raise TraceError(
                errno.EMFILE,
                f"user {peer.uid} has {count} connections already, which is the limit; close some",
            )
        self._connections[peer.uid] = count + 1

    def leave(self, peer: Peer) -> None:
        """The connection that `enter` counted is closed."""
        count = self._connections.pop(peer.uid) - 1
        if count:
            self._connections[peer.uid] = count
