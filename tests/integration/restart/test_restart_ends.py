"""Whatever ends a daemon, or prevents its start: the state is kept for the next one.

Each test lets a daemon take over `precious`, ends it in some way, and checks that the next one has it.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.restarting import logged
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from utracefsd.server.runtime import locate
from utracefsd.state.log import parse_log

STEPS = [
    "utracefsd.server.runtime.Runtime.prepare",
    "utracefsd.server.runtime._check_private",
    "utracefsd.server.runtime._try_lock",
    "utracefsd.events.status_file._create_file",
    "utracefsd.state.folder.StateFolder.take_over",
    "utracefsd.daemon.restore_events",
    "utracefsd.daemon.Journal",
    "utracefsd.daemon.Instances",
    "utracefsd.daemon.restore_instances",
    "utracefsd.daemon.State",
    "utracefsd.state.living.State._rewrite",
    "utracefsd.daemon.PerfEvents",
    "utracefsd.daemon.Rings",
    "utracefsd.server.serve._max_descriptors",
    "utracefsd.server.serve.listening",
    "utracefsd.connections.acceptor.Acceptor.listen",
    "utracefsd.server.serve.Server",
    "utracefsd.server.serve.Serving",
    "utracefsd.server.sd_notify.Notifier.ready",
]
"""Steps of a start, in their order."""

END_STEPS = [
    "utracefsd.daemon.Daemon.close",
    "utracefsd.daemon.Daemon.take_in_all",
    "utracefsd.state.living.State.close",
    "utracefsd.intake.rings.Rings.hand_over",
    "utracefsd.intake.rings.Rings.close",
    "utracefsd.connections.port.Port.close",
    "utracefsd.events.status_file.StatusFile.close",
    "utracefsd.server.runtime.Runtime.remove_status_folder",
]
"""Steps of an orderly end."""

RUN = """
import importlib, os, signal, sys
from utracefsd.main import main

step, what = sys.argv[1:3]
del sys.argv[1:3]
sys.argv[0] = "utracefsd"
parts = step.split(".")
for n in range(len(parts) - 1, 0, -1):
    try:
        owner = importlib.import_module(".".join(parts[:n]))
        break
    except ImportError:
        pass
for name in parts[n:-1]:
    owner = getattr(owner, name)
real = getattr(owner, parts[-1])

def at_the_step(*args, **named):
    print("at the step", file=sys.stderr, flush=True)
    if what == "raise":
        raise RuntimeError("an unexpected error")
    os.kill(os.getpid(), int(what))
    return real(*args, **named)

setattr(owner, parts[-1], at_the_step)
main()
"""


@pytest.fixture
def daemon(directory: str) -> Iterator[DaemonProcess]:
    """A killed daemon with `precious`."""
    process = DaemonProcess(directory)
    process.start()
    try:
        with process.tree() as tree:
            tree.write_file("dynamic_events", b"u:precious u32 n\n", truncate=False)
            tree.write_file("events/user_events/precious/enable", b"1")
            tree.write_file("trace_marker", b"a precious marker\n")
        process.stop(kill=True)
        yield process
    finally:
        process.stop(kill=True)


def assert_it_is_there(daemon: DaemonProcess) -> None:
    daemon.options = ()
    daemon.start()
    with daemon.tree() as tree:
        assert tree.read_file("events/user_events/precious/enable") == b"1\n"
        assert b"a precious marker" in tree.read_file("trace")
    daemon.stop(kill=True)


def run_to(daemon: DaemonProcess, step: str, what: str, *, end: bool = False) -> str:
    """Run a daemon in which `what` happens at a step of its start or, with `end`, of its end."""
    ready, ready_w = os.pipe()
    popen: subprocess.Popen[str] = Popen(
        [sys.executable, "-c", RUN, step, what, "--dir", daemon.directory, "--ready-fd", str(ready_w)]
        + (["--keep-state"] if end else []),
        pass_fds=[ready_w],
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(ready_w)
    try:
        if end:
            assert os.read(ready, 16) == b"READY\n"
            popen.terminate()
        _, log = popen.communicate(timeout=60)
    finally:
        os.close(ready)
        popen.kill()
        popen.wait()
    assert "at the step" in log
    return log


def assert_the_files_are_there(daemon: DaemonProcess, step: str) -> None:
    """The same without a daemon, which would take longer."""
    folder = locate(daemon.directory).status_folder
    taken = parse_log(logged(folder))
    assert [event.tracepoint_name for event in taken.events.values()] == [b"precious"], step
    assert Path(folder, taken.instances[0].buffer_folder, "cpu0").exists(), step


# Kills and errors of a disk at each of its calls, in starts and ends, are in tests/simulation.


@pytest.mark.long
@pytest.mark.parametrize("what", [str(int(signal.SIGTERM)), "raise"])
def test_at_each_step_of_a_start(daemon: DaemonProcess, what: str) -> None:
    for step in STEPS:
        run_to(daemon, step, what)
        assert_the_files_are_there(daemon, step)
    assert_it_is_there(daemon)


@pytest.mark.long
def test_at_each_step_of_an_end(daemon: DaemonProcess) -> None:
    for step in END_STEPS:
        run_to(daemon, step, "raise", end=True)
        assert_the_files_are_there(daemon, step)
    assert_it_is_there(daemon)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("full", ["the directory of the sockets", "shared memory"])
def test_a_full_file_system(daemon: DaemonProcess, full: str) -> None:
    """Each full file system is private to the daemon, in a mount namespace of its own."""
    state = locate(daemon.directory).status_folder
    if full == "shared memory":
        # The state is copied into the small file system, which is then filled to the last byte.
        script = f"""
            cp -a {state} /var/tmp/$$ && mount -t tmpfs -o size=24m,mode=1777 tmpfs /dev/shm
            mv /var/tmp/$$ {state}
            cat /dev/zero > /dev/shm/full 2>/dev/null
            rm -f {daemon.directory}/tracefs; "$@" & pid=$!
            while kill -0 $pid && [ ! -S {daemon.directory}/tracefs ]; do :; done 2>/dev/null
            kill $pid; wait $pid
            rm /dev/shm/full; "$@" --log-level debug & pid=$!
            while [ ! -S {daemon.directory}/tracefs ]; do kill -0 $pid || exit 9; done
            {sys.executable} -m utracefs.cli cat --dir {daemon.directory} trace dynamic_events
            kill $pid; wait $pid
        """
        run = in_namespace(script, daemon)
        assert "a precious marker" in run.stdout, run
        assert "precious" in run.stdout
        assert "set-aside" not in run.stderr
    else:
        script = f"""
            mount -t tmpfs -o nr_inodes=2,mode=0700 tmpfs {daemon.directory}
            "$@"; echo "status $?"
        """
        run = in_namespace(script, daemon)
        assert "status 1" in run.stdout, run
        assert os.strerror(errno.ENOSPC) in run.stderr
        assert_it_is_there(daemon)


def in_namespace(script: str, daemon: DaemonProcess) -> subprocess.CompletedProcess[str]:
    """Run a shell script with private mounts; "$@" starts a daemon."""
    start = ["timeout", "50", sys.executable, "-m", "utracefsd", "--dir", daemon.directory, "--keep-state"]
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh", *start],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/nonexistent")])
def test_foreign_things_in_the_folder(daemon: DaemonProcess, make: Callable[[Path], object]) -> None:
    for name in ("state.new", "journal.new", "set-aside", "buffer.0.9", "unknown"):
        make(locate(daemon.directory).status_folder / name)
    assert_it_is_there(daemon)


def test_a_folder_that_is_taken_away(daemon: DaemonProcess) -> None:
    """It continues to work, and tracing users notice nothing."""
    folder = locate(daemon.directory).status_folder
    daemon.start()
    subprocess.run(["rm", "-r", str(folder)], check=True)
    with daemon.tree() as tree:
        tree.write_file("buffer_size_kb", b"2000")
        tree.write_file("dynamic_events", b"u:later u32 n\n", truncate=False)
        tree.write_file("events/enable", b"1")
        assert b"a precious marker" in tree.read_file("trace")
    daemon.process.send_signal(signal.SIGINT)  # type: ignore[union-attr]
    daemon.process.wait(60)  # type: ignore[union-attr]
    assert daemon.process.returncode == 0  # type: ignore[union-attr]
    assert b"Traceback" not in daemon.stop()
