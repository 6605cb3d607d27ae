"""Processes of utracefs: the first steps of each, and how one starts another.

A user may run a command where another user's files lie. So sys.path gets no folder that depends on the
current directory: neither that of `python -m` nor relative (or empty) entries of PYTHONPATH.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # without an import
if TYPE_CHECKING:
    import subprocess


def prepare() -> None:
    """The first call of a process."""
    if not sys.flags.safe_path:
        del sys.path[0]
    entries = _python_path()
    named = {entry for entry in entries if os.path.isabs(entry)}
    relative = {os.path.abspath(entry) for entry in entries} - named
    sys.path[:] = [folder for folder in sys.path if folder not in relative]
    # Otherwise a file could get the number of a closed standard stream. As on a closed one, reading
    # stdin and writing stdout fail; text for stderr is dropped. A command that we run finds them closed.
    for fd, flags in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDWR)):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, flags)
            name = ("stdin", "stdout", "stderr")[fd]
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r", closefd=False))


def python(module: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """The words of a command line that runs `module`, and its environment."""
    env = dict(os.environ)
    if named := os.pathsep.join(filter(os.path.isabs, _python_path())):
        env["PYTHONPATH"] = named
    else:
        env.pop("PYTHONPATH", None)
    return [sys.executable, "-P", "-m", module, *words], env


def in_background(fd: int, module: str, *words: str) -> subprocess.Popen[bytes]:
    """Start `module` with this descriptor, in a process group of its own: Ctrl-C is for the command, whose
    blocked signals it does not take over."""
    import subprocess

    line, env = python(module, *words)
    env.pop("NOTIFY_SOCKET", None)  # in a service only the command reports to systemd
    return subprocess.Popen(
        line,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[fd],
        process_group=0,
        preexec_fn=_unblock,  # noqa: PLW1509 - no threads here
    )


def _unblock() -> None:
    import signal

    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _python_path() -> list[str]:
    text = os.environ.get("PYTHONPATH")
    return text.split(os.pathsep) if text else []
