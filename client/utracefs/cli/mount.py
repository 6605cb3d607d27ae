"""`utracefs mount`: the tree as files, for cat, echo, grep, trace-cmd."""

import ctypes
import grp
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import attrs
import click

from utracefs.cli import COMMAND_SETTINGS, Failure
from utracefs.cli.common import directory_option, why_no_connection
from utracefs.cli.completion import complete_command
from utracefs.cli.run.choose_daemon import running_or_own
from utracefs.cli.run.run_loop import run_steps, signals_blocked
from utracefs.cli.run.traced_command import Launch, launched
from utracefs.mount import Mount, Signals, connect, signals
from utracefs_protocol.places import chosen_directory

logger = logging.getLogger("utracefs.mount")

_BEGUN: Final = b"begun"

_PR_SET_PDEATHSIG: Final = 1  # <linux/prctl.h>

_RETRY_S: Final = 0.25
"""Interval of looking for a daemon; a failed connect(2) costs some microseconds."""


@click.command(context_settings=COMMAND_SETTINGS)
@directory_option
@click.option(
    "--wait", is_flag=True, help="Wait for a daemon if there is none, and after its end for the next one."
)
@click.option("--foreground", is_flag=True, help="Do not go into the background; log to stderr.")
@click.option(
    "--allow-other", is_flag=True, help="Allow access by other users, as far as modes and owners permit."
)
@click.option("--group", metavar="GROUP", help="Group of all files. [default: yours]")
@click.argument("mountpoint", metavar="MOUNTPOINT")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, shell_complete=complete_command)
def mount(
    directory: str | None,
    wait: bool,
    foreground: bool,
    allow_other: bool,
    group: str | None,
    mountpoint: str,
    command: tuple[str, ...],
) -> int | None:
    """Mount the tree, for cat, echo, grep, trace-cmd, and for programs that use the kernel's user_events.

    With COMMAND only COMMAND sees the mount, which ends with it; if no daemon runs, one is started for it. If
    this command is killed, COMMAND gets SIGTERM.
    Else the mount ends with `umount MOUNTPOINT` (`fusermount3 -u MOUNTPOINT`), with SIGTERM, and, without
    --wait, with the daemon.
    """
    if command:
        if wait or foreground or allow_other or group is not None:
            raise click.UsageError("--wait, --foreground, --allow-other and --group go without a COMMAND")
        return _run_command(directory, os.path.realpath(mountpoint), command)
    mountpoint = os.path.realpath(mountpoint)
    directory = chosen_directory(directory, os.environ)
    run = partial(_run, mountpoint, directory, wait=wait, allow_other=allow_other, gid=_gid(group))
    if foreground:
        logging.basicConfig(format="utracefs: %(message)s", level=logging.INFO)
        run(lambda: None)
    else:
        _in_background(run, mountpoint)
    return None


def _run_command(directory: str | None, mountpoint: str, command: Sequence[str]) -> int:
    """Its exit status."""
    launch = Launch(preload=False, mountpoint=mountpoint)
    with (
        signals_blocked() as blocked,
        running_or_own(directory, has_command=True) as (tree, _),
        launched(launch, tree, command) as surroundings,
    ):

        def enter() -> None:
            surroundings.enter()
            # The command was started to see the mount: it gets SIGTERM when this process is killed.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

        with_us = attrs.evolve(surroundings, enter=enter)
        return run_steps(command, lambda: None, blocked=blocked, surroundings=with_us)


def _gid(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return int(group) if group.isascii() and group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise Failure(group, "no such group") from None


def _run(
    mountpoint: str,
    directory: str | None,
    begun: Callable[[], None],
    *,
    wait: bool,
    allow_other: bool,
    gid: int | None,
) -> None:
    """Mount and serve until the end. Calls `begun` when the command line may return to its caller."""
    with signals() as stop:
        sock = _daemon(directory, stop, begun, wait=wait)
        if sock is None:
            return
        with Mount(mountpoint, sock, allow_other=allow_other, gid=gid, reconnects=wait) as mounted:
            logger.info("%s shows the tree behind %s", mounted.mountpoint, mounted.address)
            begun()
            end = mounted.serve(stop)
        logger.info("unmounted: %s", end.value)


def _daemon(
    directory: str | None, stop: Signals, begun: Callable[[], None], *, wait: bool
) -> socket.socket | None:
    """Connect; None: a signal came before that. Failure: no daemon, and no --wait."""
    while True:
        try:
            return connect(directory)
        except OSError as error:
            if not wait:
                raise Failure(str(error.filename or "daemon"), why_no_connection(error)) from None
        begun()
        if stop.wait(_RETRY_S):
            return None


def _in_background(run: Callable[[Callable[[], None]], None], mountpoint: str) -> None:
    """Returns when it is mounted; with --wait, at the latest when it waits for a daemon."""
    read_end, tell = os.pipe()
    if os.fork():
        os.close(tell)
        with open(read_end, "rb") as pipe:
            answer = pipe.read()
        if answer != _BEGUN:
            about, _, reason = answer.decode("utf-8", "surrogateescape").partition("\0")
            raise Failure(about, reason or "the mount ended without a message")
        return
    status = 1
    try:
        os.close(read_end)
        os.setsid()
        os.chdir("/")

        def begun() -> None:
            nonlocal tell
            if tell >= 0:
                os.write(tell, _BEGUN)
                nothing = os.open(os.devnull, os.O_RDWR)
                for fd in range(3):
                    os.dup2(nothing, fd)
                os.close(nothing)
                os.close(tell)
                tell = -1

        try:
            run(begun)
            status = 0
        except Failure as error:
            _tell(tell, error.about, error.reason)
        except OSError as error:
            _tell(tell, str(error.filename or mountpoint), error.strerror or str(error))
    finally:
        os._exit(status)


def _tell(tell: int, about: str, reason: str) -> None:
    if tell >= 0:
        os.write(tell, f"{about}\0{reason}".encode("utf-8", "surrogateescape"))
