"""The service manager's descriptor store: data rings outlive the daemon and the programs that wrote them.

sd_notify(3): `FDSTORE=1` with descriptors beside it asks the manager to keep duplicates under `FDNAME=`,
`FDSTOREREMOVE=1` to drop those of a name. The next process of the service gets them like sockets
(LISTEN_FDS, `sd_notify.take_listen_fds`). FDPOLL=0, because poll(2) on memory never shows that it is unused.
The unit's FileDescriptorStoreMax= bounds their number; newer managers pass it in $FDSTORE. `Rings` decides
which rings get the places; a ring without one is lost unless its program brings it back.

Nothing here waits. When the manager does not read its socket, messages wait in a queue, and `on_blocked` is
called: call `flush` again a little later. Dropping a descriptor that waits there removes it from the queue,
so the queue is bounded by the rings in use plus the manager's.
"""

import errno
import os
import socket
from collections.abc import Callable, MutableMapping, Sequence

from utracefsd.daemon_log import daemon_log
from utracefsd.intake.rings import STORED
from utracefsd.server.sd_notify import ListenFd, Notifier

DEFAULT_MAX = 1024
"""The value in systemd/utracefsd.service, for managers that do not pass it."""

_AGAIN = {errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS}


def take_stored(listen_fds: Sequence[ListenFd]) -> tuple[list[ListenFd], list[ListenFd]]:
    """Divide the manager's descriptors, by name, into sockets and stored ones."""
    stored = [one for one in listen_fds if one.name.startswith(STORED)]
    return [one for one in listen_fds if one not in stored], stored


class FdStore:
    """The store of this process's service. `stored`: names of descriptors that it has already. `limit`: how
    many the manager keeps."""

    def __init__(self, notifier: Notifier, stored: Sequence[str] = (), limit: int = DEFAULT_MAX) -> None:
        self._limit = limit
        self.on_blocked: Callable[[], None] = lambda: None
        self._names = set(stored)
        self._queue: dict[str, int] = {}
        """Messages in order, by name: keep this descriptor, which this object owns; -1: drop it."""
        self._socket: socket.socket | None = None
        if notifier.address is not None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            try:
                self._socket.connect(notifier.address)
            except OSError as error:
                self._give_up(error)

    @classmethod
    def from_environ(
        cls, notifier: Notifier, stored: Sequence[ListenFd], environ: MutableMapping[str, str] = os.environ
    ) -> "FdStore":
        limit = environ.pop("FDSTORE", "")
        return cls(notifier, [one.name for one in stored], int(limit) if limit.isdecimal() else DEFAULT_MAX)

    @property
    def limit(self) -> int:
        """How many the manager keeps; 0: there is no manager, or it no longer listens."""
        return 0 if self._socket is None else self._limit

    def keep(self, name: str, fd: int) -> bool:
        """Keep a duplicate of `fd`; False: not possible."""
        if name in self._names:
            return True
        if self._socket is None or name in self._queue:
            return False
        try:
            own = os.dup(fd)
        except OSError:
            return False
        self._names.add(name)
        self._say(name, own)
        return True

    def drop(self, name: str) -> None:
        """Drop the descriptor of that name."""
        if self._socket is not None and name in self._names:
            self._names.remove(name)
            waiting = self._queue.pop(name, None)
            if waiting is None:
                self._say(name, -1)
            else:
                os.close(waiting)

    def flush(self) -> bool:
        """Send the queue; False: a part of it is left."""
        while self._queue and self._socket is not None:
            name, fd = next(iter(self._queue.items()))
            text = f"FDSTOREREMOVE=1\nFDNAME={name}" if fd < 0 else f"FDSTORE=1\nFDNAME={name}\nFDPOLL=0"
            try:
                socket.send_fds(self._socket, [text.encode()], [fd] if fd >= 0 else [])
            except OSError as error:
                if error.errno in _AGAIN:
                    return False
                self._give_up(error)
                return True
            del self._queue[name]
            if fd >= 0:
                os.close(fd)
        return True

    def close(self) -> None:
        """Send nothing more."""
        self.flush()
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        for fd in self._queue.values():
            if fd >= 0:
                os.close(fd)
        self._queue.clear()

    def _say(self, name: str, fd: int) -> None:
        self._queue[name] = fd
        if not self.flush():
            self.on_blocked()

    def _give_up(self, error: OSError) -> None:
        daemon_log("fd-store-failed", reason=error.strerror)
        sock, self._socket = self._socket, None
        if sock is not None:
            sock.close()
        self.close()
