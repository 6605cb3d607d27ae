"""The real daemon as a process of its own, for tests of the client."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess, running
from utracefs import Session
from utracefs.tree.tracefs import Tracefs

PROLOGUE = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("error")
import utracefs
event = utracefs.event("work u32 who; u32 number")

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

wait_for(lambda: event.registered and event)

def emit(who, count=10):
    for number in range(count):
        event.emit(who, number)

def children(work, count=20):
    pids = []
    for who in range(count):
        pid = os.fork()
        if not pid:
            work(who)
            os._exit(77)
        pids.append(pid)
    return [os.waitpid(pid, 0)[1] for pid in pids]
"""
"""A program's begin: the event is on, warnings are errors."""


def run_python(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Without coverage, which would import and register more."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_PROCESS")}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**environ, **environment},
    )


class Work:
    """A daemon that listens to one event, and programs that emit it."""

    def __init__(self, daemon: DaemonProcess, tree: Tracefs, folder: Path) -> None:
        self.daemon = daemon
        self.tree = tree
        self.folder = folder

    def run(self, program: str, before: str = "", warning: str = "") -> str:
        """Returns its standard output; it must exit with 0 and print no error but this warning."""
        script = self.folder / "program.py"
        script.write_text(PROLOGUE + before + textwrap.dedent(program))
        done = run_python(str(script))
        assert (done.returncode, done.stderr) == (0, warning), f"{done.returncode}: {done.stderr}"
        return done.stdout

    def numbers(self) -> dict[int, list[int]]:
        """Numbers of each `who`, in the order of the trace."""
        found: dict[int, list[int]] = {}
        for line in self.tree.read_file("trace").decode().splitlines():
            if "work: " in line:
                fields = dict(word.split("=") for word in line.split() if "=" in word)
                found.setdefault(int(fields["who"], 16), []).append(int(fields["number"], 16))
        return found


def working(directory: Path, folder: Path) -> Iterator[Work]:
    """For a fixture. directory: of the sockets. folder: for programs."""
    with (
        running(directory) as daemon,
        Tracefs(daemon.directory) as tree,
        Session(directory) as session,
    ):
        wait_for(lambda: session.event("work u32 who; u32 number").registered)
        tree.write_file("buffer_size_kb", b"4096")
        tree.write_file("events/user_events/work/enable", b"1")
        yield Work(daemon, tree, folder)
