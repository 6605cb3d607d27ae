"""A private daemon: for `record` if none is running.

It is a process, `python -m utracefsd`, in a directory with mode 0700, in its own process group so that Ctrl-C
does not reach it before all is drained. It ends with us however we end, and removes the directory.
"""

import contextlib
import importlib.util
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator

from utracefs.cli import Failure
from utracefs_protocol.own_processes import python
from utracefs_protocol.places import xdg_runtime_dir

START_S = 20.0
"""Starting takes some 0.3 s, most of it Python's imports; this is for machines that swap."""

END_S = 5.0


@contextlib.contextmanager
def embedded_daemon(*options: str) -> Iterator[str]:
    """Run a daemon; yields the directory of its sockets. Failure when it does not start; its output goes to
    our stderr."""
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
        words, env = python("utracefsd", "--dir", directory, "--ready-fd", str(ready_w))
        words += ["--exit-with-parent", "--log-level", "warning", *options]
        daemon = subprocess.Popen(
            words,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[ready_w],
            process_group=0,
            preexec_fn=_unblock,  # noqa: PLW1509 - no threads here
        )
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


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    daemon.terminate()
    try:
        daemon.wait(END_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
