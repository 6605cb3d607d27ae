"""Sockets that listen: made here, or opened by systemd and passed on.

A socket made here is not reachable before its mode and group are right, never replaces one on which a daemon
answers, and is removed at the end. For a socket from systemd, mode, group and file are systemd's.
"""

import contextlib
import errno
import grp
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from utracefs_protocol.errors import TraceError
from utracefs_protocol.places import DATA_SOCKET, TRACEFS_SOCKET
from utracefsd.daemon_log import daemon_log
from utracefsd.server.sd_notify import ListenFd

# Length of the queue of connections that wait to be accepted, as in systemd/utracefsd.socket. It is first
# come, first served, so a flood in it delays every other connection until it is accepted (20 us each). With a
# full queue connect(2) fails: a program tries again after some milliseconds, a forked child loses its record.
BACKLOG = 512

MAX_GID = 0xFFFFFFFE
"""The number behind it means none in the kernel: chown(2) would change nothing."""

_NUMBER = re.compile("[0-9]{1,10}")


@contextlib.contextmanager
def listening(path: Path, gid: int | None) -> Iterator[socket.socket]:
    """A socket that listens at `path`: mode 0660 with a group, else 0600. Its file is removed at the end,
    unless another has replaced it. EADDRINUSE: a daemon answers there; EEXIST: no socket; OSError."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(os.fspath(path))
        made = os.lstat(path)
        try:
            # connect(2) fails before listen(2), so no client connects before the mode is right
            os.chmod(path, 0o600)
            if gid is not None:
                try:
                    os.chown(path, -1, gid)
                    os.chmod(path, 0o660)
                except OSError as error:
                    # EINVAL: the group does not exist in this user namespace (`unshare -Ur`, a rootless
                    # container).
                    if error.errno not in (errno.EPERM, errno.EINVAL):
                        raise
                    daemon_log("group-not-usable", path=path, gid=gid)
            sock.listen(BACKLOG)
            yield sock
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(made, os.lstat(path)):
                    os.unlink(path)
    finally:
        sock.close()


def _remove_stale(path: Path) -> None:
    """Remove the socket of a killed daemon. The lock already says that none is running; this checks by a
    connection."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise TraceError(errno.EEXIST, f"{path}: is in the way and no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass  # its queue is full, so it listens
        except OSError as error:
            raise TraceError(error.errno or errno.EIO, f"{path}: {error.strerror}") from error
    raise TraceError(errno.EADDRINUSE, f"{path}: somebody answers there already")


def given_sockets(listen_fds: Sequence[ListenFd]) -> dict[str, socket.socket]:
    """systemd's sockets by our names of them.

    Taken from FileDescriptorName=, or from the path where that does not say it (systemd-socket-activate gives
    all sockets the same name).
    """
    given: dict[str, socket.socket] = {}
    for listen_fd in listen_fds:
        sock = socket.socket(fileno=listen_fd.fd)
        address = sock.getsockname() if sock.family == socket.AF_UNIX else ""
        names = (listen_fd.name, Path(os.fsdecode(address)).name)
        name = next((n for n in names if n in (DATA_SOCKET, TRACEFS_SOCKET)), None)
        if name is None or name in given or sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM:
            daemon_log("socket-unexpected", name=listen_fd.name)
            sock.close()
        else:
            given[name] = sock
    return given


def group_id(name: str, *, required: bool) -> int | None:
    """The group's number if its members can get access: the group exists, and this process is in it or root.
    A number needs no name: in a container the group often has none."""
    try:
        is_number = _NUMBER.fullmatch(name) and int(name) <= MAX_GID
        gid = int(name) if is_number else grp.getgrnam(name).gr_gid
    except KeyError:
        if required:
            raise TraceError(errno.EINVAL, f"there is no group {name!r}") from None
        return None
    if required or os.geteuid() == 0 or gid in (os.getegid(), *os.getgroups()):
        return gid
    return None
