"""systemd's protocol with a service: passed sockets, readiness, and the watchdog.

Sockets (sd_listen_fds(3)): LISTEN_PID is the process that they are for, LISTEN_FDS the number of descriptors
from 3 on, LISTEN_FDNAMES their names, separated by colons (FileDescriptorName= of each socket unit).

States (sd_notify(3)): datagrams of `NAME=value` lines to the AF_UNIX socket named in NOTIFY_SOCKET, which is
a path or, beginning with `@`, an abstract name. WATCHDOG_USEC demands a keep-alive message at least that
often, from WATCHDOG_PID if that is set; twice as often is recommended there and done here.

Without those variables everything here does nothing. They are removed from the environment, so that child
processes do not take themselves for the service.
"""

import contextlib
import fcntl
import os
import socket
from collections.abc import MutableMapping

import attrs

from utracefsd.daemon_log import daemon_log

FIRST_LISTEN_FD = 3

# A manager that does not read its socket must not block the daemon; the next keep-alive replaces a lost one.
SEND_TIMEOUT_S = 1.0


@attrs.frozen
class ListenFd:
    """One socket opened by systemd."""

    fd: int
    """The descriptor, now this process's to close."""
    name: str
    """FileDescriptorName= of its unit; "unknown" if systemd gave none."""


def take_listen_fds(
    environ: MutableMapping[str, str] = os.environ, *, pid: int | None = None
) -> list[ListenFd]:
    """The sockets for this process, close-on-exec set; empty when there are none or they are for another
    process."""
    listen_pid = environ.pop("LISTEN_PID", "")
    count = environ.pop("LISTEN_FDS", "")
    names = environ.pop("LISTEN_FDNAMES", "")
    if not listen_pid.isdecimal() or not count.isdecimal():
        return []
    if int(listen_pid) != (os.getpid() if pid is None else pid):
        return []
    listed = names.split(":") if names else []
    found = []
    for position in range(int(count)):
        fd = FIRST_LISTEN_FD + position
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
        found.append(ListenFd(fd, listed[position] if position < len(listed) else "unknown"))
    return found


@attrs.frozen
class Notifier:
    """Messages to the service manager. Every method returns at once and never raises."""

    address: str | bytes | None
    """Destination of the datagrams; None when no manager wants them."""
    watchdog_interval_s: float | None
    """Interval of keep-alive messages (half of WATCHDOG_USEC); None when the manager wants none."""

    @classmethod
    def from_environ(
        cls, environ: MutableMapping[str, str] = os.environ, *, pid: int | None = None
    ) -> "Notifier":
        name = environ.pop("NOTIFY_SOCKET", "")
        usec = environ.pop("WATCHDOG_USEC", "")
        watchdog_pid = environ.pop("WATCHDOG_PID", "")
        address: str | bytes | None = None
        if name.startswith("/"):
            address = name
        elif name.startswith("@"):
            address = b"\0" + os.fsencode(name[1:])
        elif name:
            daemon_log("notify-socket-invalid", name=name)
        own = os.getpid() if pid is None else pid
        meant_for_us = not watchdog_pid or (watchdog_pid.isdecimal() and int(watchdog_pid) == own)
        interval_s = None
        if address is not None and meant_for_us and usec.isdecimal() and int(usec) > 0:
            interval_s = int(usec) / 1e6 / 2
        return cls(address, interval_s)

    def ready(self, status: str) -> None:
        """Start-up is over: both sockets listen."""
        self.send(f"READY=1\nSTATUS={status}\nMAINPID={os.getpid()}")

    def stopping(self) -> None:
        self.send("STOPPING=1\nSTATUS=stopping")

    def watchdog(self) -> None:
        """Send a keep-alive message."""
        self.send("WATCHDOG=1")

    def send(self, state: str) -> None:
        if self.address is None:
            return
        try:
            with contextlib.closing(
                socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            ) as sock:
                sock.settimeout(SEND_TIMEOUT_S)
                sock.sendto(state.encode(), self.address)
        except OSError as error:
            daemon_log("notify-failed", state=state.split("\n")[0], reason=error)
