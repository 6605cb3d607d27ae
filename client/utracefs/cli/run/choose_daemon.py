"""The daemon of a command: the running one, or its own for as long as it runs a COMMAND.

a daemon answers           it is used
none, and a COMMAND        a daemon of its own, for as long as the command runs (`embedded_daemon`)
none, and no COMMAND       an error: no program would find our daemon
"""

import contextlib
import importlib.util
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator

import click

from utracefs.cli import Failure, error_text
from utracefs.cli.common import NoAnswer, connect
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.own_processes import in_background
from utracefs_protocol.places import xdg_runtime_dir


@contextlib.contextmanager
def running_or_own(
    directory: str | None, *, has_command: bool, embedded: bool = False
) -> Iterator[tuple[Tracefs, bool]]:
    """The running daemon, or a new one, and whether it is new. A daemon that does not answer does not prevent
    the command.

    embedded: always start a new one. Without a command a running one is required: no program would find ours.
    """
    if not embedded:
        try:
            tree = connect(directory)
        except NoAnswer as error:
            if not has_command:
                raise
            click.echo(f"utracefs: recording with a daemon of its own: {error_text(error)}", err=True)
        except Failure:
            if directory or not has_command:
                raise
        else:
            with tree:
                yield tree, False
            return
    with embedded_daemon() as own, connect(own) as tree:
        yield tree, True


START_S = 20.0
"""Starting takes some 0.3 s, most of it Python's imports; this is for machines that swap."""

END_S = 5.0


@contextlib.contextmanager
def embedded_daemon(*options: str) -> Iterator[str]:
    """Run a daemon; yields the directory of its sockets, with mode 0700. Failure when it does not start; its
    output goes to our stderr. It has its own process group, so that Ctrl-C does not reach it before all is
    drained, and ends with us however we end."""
    if importlib.util.find_spec("trio") is None:  # the daemon's message and ours would be two
        raise ModuleNotFoundError("the daemon needs trio", name="trio")
    # Socket paths have at most 107 bytes, so not below a TMPDIR that may be deep.
    folder = xdg_runtime_dir(os.environ) or "/tmp"
    directory = tempfile.mkdtemp(
        prefix="utracefs-", dir=folder if len(folder) < 60 and os.access(folder, os.W_OK) else "/tmp"
    )
    try:
        daemon = _start(directory, options)
        try:
            yield directory
        finally:
            _end(daemon)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _start(directory: str, options: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    ready, ready_w = os.pipe()
    try:
        words = ["--dir", directory, "--ready-fd", str(ready_w), "--exit-with-parent", *options]
        daemon = in_background(ready_w, "utracefsd", *words, "--log-level", "warning")
        os.close(ready_w)
        deadline = time.monotonic() + START_S
        readable, _, _ = select.select([ready], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            _end(daemon)
            raise Failure("daemon", f"did not start within {START_S:.0f} s")
        if not os.read(ready, 16):
            daemon.wait()
            raise Failure("daemon", f"did not start (exit status {daemon.returncode})")
    finally:
        os.close(ready)
    return daemon


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    daemon.terminate()
    try:
        daemon.wait(END_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
