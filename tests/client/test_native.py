"""The thread that Python does not know, and the wait that nobody patches."""

from __future__ import annotations

import _thread
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from tests.client.conftest import native_threads
from tests.client.fake_daemon import wait_for
from utracefs._native import NativeThread, Waiter
from utracefs._outlets import Fifo

# ---- waiting


def test_released_before_and_meanwhile() -> None:
    before = Waiter()
    before.release()
    assert before.wait(60)
    meanwhile = Waiter()
    thread = threading.Thread(target=meanwhile.release)
    thread.start()
    assert meanwhile.wait(60)
    thread.join()
    with pytest.raises(RuntimeError, match="released before"):
        meanwhile.release()


@pytest.mark.parametrize("timeout_s", [0, -1, -1e300, 0.01])
def test_not_released(timeout_s: float) -> None:
    assert not Waiter().wait(timeout_s)


def test_very_long_is_not_for_ever_nor_at_once() -> None:
    waiter = Waiter()
    threading.Timer(0.01, waiter.release).start()
    assert waiter.wait(float("inf"))


def test_signal_handlers_run_while_it_waits() -> None:
    waiter = Waiter()

    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt):
            waiter.wait(60)
    finally:
        signal.signal(signal.SIGALRM, before)


# ---- the thread


class Steps:
    """Counts its steps; ends the thread when `last` is set."""

    def __init__(self) -> None:
        self.fifo = Fifo(4096)
        self.fifo.open_bell()
        self.count = 0
        self.idents: set[int] = set()
        self.last = False
        self.hold: threading.Event | None = None
        self.thread = NativeThread(self.fifo, self.step)

    def step(self, happened: int) -> tuple[None, int] | None:
        self.count += 1
        self.idents.add(_thread.get_ident())
        assert self.thread.is_current
        if self.hold is not None:
            self.hold.wait(20)
        return None if self.last else (None, 10_000)

    def comes_to(self, count: int) -> None:
        wait_for(lambda: self.count >= count)


@pytest.fixture
def steps() -> Iterator[Steps]:
    steps = Steps()
    yield steps
    assert steps.thread.stop(10)
    assert "utracefs" not in native_threads()
    steps.fifo.close_bell()


def test_it_steps_when_it_is_woken_and_is_unknown_to_python(steps: Steps) -> None:
    assert steps.thread.start()
    steps.comes_to(1)
    assert not steps.thread.is_current
    assert native_threads().count("utracefs") == 1
    before = steps.count
    steps.fifo.wake()
    steps.comes_to(before + 1)
    assert not steps.idents & {thread.ident for thread in threading.enumerate()}
    wait_for(lambda: not steps.idents & set(sys._current_frames()))


def test_start_and_stop_over_and_over(steps: Steps) -> None:
    for _ in range(200):
        assert steps.thread.start()
        assert steps.thread.start()
        assert steps.thread.stop(10)
        assert not steps.thread.is_running
        assert "utracefs" not in native_threads()
    assert steps.thread.stop(0)


def test_it_ends_by_its_last_step(steps: Steps) -> None:
    steps.last = True
    assert steps.thread.start()
    wait_for(lambda: not steps.thread.is_running)
    assert (steps.count, steps.thread.is_wanted) == (1, False)


def test_a_step_that_takes_long_is_not_waited_for_and_not_broken_off(steps: Steps) -> None:
    steps.hold = threading.Event()
    assert steps.thread.start()
    steps.comes_to(1)
    begin = time.monotonic()
    assert not steps.thread.stop(0.05)
    assert time.monotonic() - begin < 10
    assert steps.thread.is_running
    # It is to go on after all: the same thread does.
    assert steps.thread.start()
    steps.hold.set()
    steps.fifo.wake()
    steps.comes_to(2)
    assert native_threads().count("utracefs") == 1


def test_stop_is_waited_for_by_several(steps: Steps) -> None:
    ended: list[bool] = []
    for _ in range(20):
        assert steps.thread.start()
        threads = [threading.Thread(target=lambda: ended.append(steps.thread.stop(10))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert ended == [True] * 80


def test_its_signals_are_blocked_but_for_faults(steps: Steps) -> None:
    assert steps.thread.start()
    steps.comes_to(1)
    masks = []
    for number in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{number}/status") as status:
            lines = dict(line.rstrip("\n").split(":\t", 1) for line in status if ":\t" in line)
        if lines["Name"] == "utracefs":
            masks.append(int(lines["SigBlk"], 16))
    (mask,) = masks
    for kind in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGCHLD,
        signal.SIGPROF,
        signal.SIGRTMIN + 5,
    ):
        assert mask >> (kind - 1) & 1, kind
    for kind in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP):
        assert not mask >> (kind - 1) & 1, kind


def test_a_step_that_fails_ends_neither_the_thread_nor_the_process(steps: Steps) -> None:
    faults: list[BaseException] = [SystemExit("no"), ValueError("no"), KeyboardInterrupt()]
    left = [*faults]

    def fail(_: int) -> tuple[None, int]:
        if left:
            raise left.pop(0)
        return None, 10_000

    failing = NativeThread(steps.fifo, fail)
    seen: list[object] = []
    before, sys.unraisablehook = sys.unraisablehook, lambda info: seen.append(info.exc_value)
    try:
        assert failing.start()
        wait_for(lambda: len(seen) == 1)
        steps.fifo.wake()
        wait_for(lambda: len(seen) == 2)
        steps.fifo.wake()
        wait_for(lambda: not left)
        assert failing.is_running
        assert failing.stop(10)
    finally:
        sys.unraisablehook = before
    assert seen == faults


def test_it_belongs_to_one_process(steps: Steps) -> None:
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(steps.thread)


# ---- fork


def outcome(program: str, *options: str, traced: bool = True) -> tuple[int, str, str]:
    """traced: measure its coverage with the rest."""
    env = {name: value for name, value in os.environ.items() if traced or not name.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, *options, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=env,
    )
    return done.returncode, done.stdout, done.stderr


PROLOGUE = """
import os, sys, threading, time
from utracefs import _native
from utracefs._native import NativeThread
from utracefs._outlets import Fifo
fifo = Fifo(4096)
fifo.open_bell()
thread = NativeThread(fifo, lambda happened: (None, 10_000))
def tasks(): return len(os.listdir("/proc/self/task"))
def resume():
    thread.is_wanted and thread.start()
_native.install_fork_hooks(lambda: thread.pause(5), resume, thread.forget)
assert thread.start() and tasks() == 2
"""


@pytest.mark.parametrize("hooks", ["none of others", "of others, in Python, later"])
def test_a_fork_finds_one_thread_and_leaves_two(hooks: str) -> None:
    """Also where Python counts them after the hooks, and for a second fork right after the first."""
    program = PROLOGUE
    if hooks != "none of others":
        program += """
def busy():
    for _ in range(1000): pass
os.register_at_fork(after_in_parent=busy)
"""
    program += """
for _ in range(100):
    first = os.fork()
    if not first:
        os._exit(tasks())
    second = os.fork()
    if not second:
        os._exit(tasks())
    for _ in range(3): pass
    assert tasks() == 2
    for pid in (first, second):
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
assert thread.stop(5)
"""
    assert outcome(program, "-W", "error") == (0, "", "")


def test_forks_of_several_threads_at_once() -> None:
    program = (
        PROLOGUE
        + """
import warnings
warnings.simplefilter("ignore")  # there are several threads
def work():
    for _ in range(30):
        pid = os.fork()
        if not pid:
            os._exit(tasks())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
threads = [threading.Thread(target=work) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
deadline = time.monotonic() + 10
while tasks() != 2 and time.monotonic() < deadline: time.sleep(0.001)
assert tasks() == 2 and thread.is_running
assert thread.stop(5)
"""
    )
    assert outcome(program) == (0, "", "")


def test_a_fork_by_the_thread_itself() -> None:
    """It does not wait for itself. The child is that thread, and ends with it."""
    program = """
import os, sys, time
from utracefs import _native
from utracefs._native import NativeThread
from utracefs._outlets import Fifo
import warnings
warnings.simplefilter("ignore")
fifo = Fifo(4096)
fifo.open_bell()
pids = []
def step(happened):
    pids.append(os.fork())
    return (None, 10_000)
thread = NativeThread(fifo, step)
def resume():
    thread.is_wanted and thread.start()
_native.install_fork_hooks(lambda: thread.pause(5), resume, thread.forget)
thread.start()
deadline = time.monotonic() + 20
while not pids: assert time.monotonic() < deadline
assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 0
assert thread.stop(5)
"""
    assert outcome(program) == (0, "", "")


def test_a_traced_program_forks() -> None:
    """On 3.11 a pending call that runs Python never came back there when another one was added."""
    program = (
        PROLOGUE
        + """
os.register_at_fork(after_in_parent=lambda: None)
sys.settrace(lambda frame, what, about: None)
for _ in range(20):
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
tasks()
assert thread.stop(5)
"""
    )
    assert outcome(program, traced=False) == (0, "", "")


def test_a_fork_that_fails() -> None:
    program = (
        PROLOGUE
        + """
import resource
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
try:
    pid = os.fork()
except BlockingIOError:
    pass
else:
    sys.exit("forked")
# The limit holds for the thread, too: then there is none, and nothing worse.
assert tasks() in (1, 2)
assert thread.stop(5)
"""
    )
    assert outcome(program, traced=False) == (0, "", "")
