"""`utracefsd --background`, which returns when the daemon is ready, and `utracefsd --stop`, which ends it."""

import contextlib
import os
import select
import signal
import socket
import stat
import struct

import click

from utracefsd.server.runtime import locate
from utracefsd.state.folder import LOG

END_S = 20.0
"""Saving full ring buffers takes milliseconds; this is for machines that swap."""


def into_background() -> int:
    """Continue in a child with its own session; returns the descriptor to which it writes "READY".

    The parent exits in here, with status 0 when it reads that line, else with the child's status. The process
    must have one thread.
    """
    ready, ready_w = os.pipe()
    child = os.fork()
    if not child:
        os.close(ready)
        os.setsid()
        return ready_w
    os.close(ready_w)
    try:
        started = os.read(ready, 16)
    except BaseException:
        os.kill(child, signal.SIGTERM)
        raise
    # (not sys.exit: open files and exit handlers belong to the child)
    os._exit(0 if started else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF or 1)


def leave_terminal() -> None:
    """Close stdin, stdout and, unless it is a file, stderr, and leave the working directory: the caller may
    wait for the end of a pipe, and unmount its own working directory."""
    os.chdir("/")
    logs = False
    with contextlib.suppress(OSError):
        logs = stat.S_ISREG(os.fstat(2).st_mode)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in range(2 if logs else 3):
        os.dup2(nothing, fd)
    os.close(nothing)


def stop(directory: str | None) -> int:
    """Send SIGTERM to the daemon that listens in the directory, and wait for its end; say on stderr if it has
    left its state. Returns an exit status; with 1 the reason is on stderr."""
    where: object = directory
    try:
        place = locate(directory)
        where = place.directory
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(END_S)
            sock.connect(os.fspath(place.tracefs_socket))
            pid, _, _ = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if pid == 1:
                return _failed(f"{place.directory}: systemd listens there: systemctl stop utracefsd")
            if pid == 0:
                return _failed(f"{place.directory}: the daemon is in another pid namespace: stop it there")
            pidfd = os.pidfd_open(pid)
        with open(pidfd, "rb", buffering=0):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            if not select.select([pidfd], [], [], END_S)[0]:
                return _failed(
                    f"{place.directory}: the daemon, process {pid}, has not ended after {END_S:.0f} s"
                )
    except (FileNotFoundError, ConnectionRefusedError, ProcessLookupError):
        return _failed(f"{where}: no daemon is there")
    except OSError as error:
        return _failed(f"{where}: {error.strerror or error}")
    if (place.status_folder / LOG).exists():
        click.echo(
            f"utracefsd: events, settings and records stay in {place.status_folder} for the next daemon;"
            " --discard-state starts without them",
            err=True,
        )
    return 0


def _failed(text: str) -> int:
    click.echo(f"utracefsd: {text}", err=True)
    return 1
