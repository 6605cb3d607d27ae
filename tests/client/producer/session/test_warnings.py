"""Warnings never block a program, nor get into a file of its own; logging handlers have a thread."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.daemons.real_daemon import Work, run_python

PROLOGUE = """
import fcntl, os, signal, sys, threading, time

def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)

def clash():
    \"\"\"The daemon has refused this one, and the program is to be warned of that.\"\"\"
    import utracefs
    other = utracefs.event("work u64 other")
    wait_for(lambda: other.error)
    return utracefs.event("work u32 who; u32 number")
"""


def run(program: str, *options: str) -> tuple[str, str]:
    """Its standard output and error."""
    done = run_python(*options, "-c", PROLOGUE + program)
    assert done.returncode == 0, done
    return done.stdout, done.stderr


WARNED = "event work is off: event 'work' exists with other fields: 'work u32 who; u32 number' (EADDRINUSE)"
OPTIONS = [(), ("-Werror",)]
LOGGING = {
    "no logging": "",
    "logging": "import logging\n",
    "configured": "import logging\nlogging.basicConfig()\n",
}


@pytest.mark.parametrize("logging", LOGGING)
def test_on_standard_error(work: Work, logging: str) -> None:
    prefix = "WARNING:utracefs:" if logging == "configured" else "utracefs: "
    for options in OPTIONS:
        lines = run(LOGGING[logging] + "clash().emit('refused', 1)", *options)[1].splitlines()
        assert f"{prefix}{WARNED}" in lines
        refused = "work: field 'who' takes an integer, not str: such a record is refused and counted"
        (other,) = [line for line in lines if refused in line]
        assert other.startswith(prefix if options else "<string>:")


FULL = """
reader, full = os.pipe()
fcntl.fcntl(full, fcntl.F_SETFL, os.O_NONBLOCK)
for part in (b"x" * 4096, b"x"):
    try:
        while True:
            os.write(full, part)
    except BlockingIOError:
        pass
fcntl.fcntl(full, fcntl.F_SETFL, 0)
os.dup2(full, 2)
event = clash()
event.emit("refused", 1)
assert sum(event.refused.values()) == 1
assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
"""


@pytest.mark.parametrize("logging", LOGGING)
def test_not_on_a_standard_error_that_is_full(work: Work, logging: str) -> None:
    for options in OPTIONS:
        assert run(LOGGING[logging] + FULL, *options) == ("", "")


OWN_FILE = """
path = sys.argv[-1]
data = open(path, "wb", buffering=0)
# (As open has it after a close of descriptor 2, if no thread makes one at that moment.)
os.dup2(data.fileno(), 2, inheritable=False)
data.write(b"begin ")
event = clash()
event.emit("refused", 1)
assert sum(event.refused.values()) == 1
data.write(b"end")
print(open(path).read())
data.close()
"""


@pytest.mark.parametrize("logging", ["no logging", "logging"])
@pytest.mark.parametrize("when", ["at first", "later"])
def test_not_in_a_file_of_the_program(work: Work, tmp_path: Path, logging: str, when: str) -> None:
    """Descriptor 2 is a file that the program has opened itself."""
    program = LOGGING[logging] + ("import utracefs\nutracefs.event('early u8 a')\n" * (when == "later"))
    program += OWN_FILE.replace("sys.argv[-1]", repr(str(tmp_path / "data")))
    for options in OPTIONS:
        assert run(program, *options) == ("begin end\n", "")


HANDLER = """
import logging
mutex = threading.Lock()
entered, handled, forking = threading.Event(), threading.Event(), threading.Event()

class Handler(logging.Handler):
    def handle(self, record):
        entered.set()
        WAIT
        with mutex:
            handled.set()
logging.getLogger().addHandler(Handler())
"""


def test_a_handler_that_waits_for_a_lock_of_the_main_thread(work: Work) -> None:
    """It runs beside the main thread, not between two of its instructions."""
    program = """
with mutex:
    clash()
    wait_for(entered.is_set)
    assert not handled.is_set()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
wait_for(lambda: handled.is_set() and threading.enumerate() == [threading.main_thread()])
"""
    assert run(HANDLER.replace("WAIT", "") + program) == ("", "")


def test_a_fork_waits_for_a_handler_that_has_a_lock(work: Work) -> None:
    program = """
clash()
os.register_at_fork(before=forking.set)  # it is called first, as the last one
wait_for(entered.is_set)
child = os.fork()
if not child:
    os._exit(not (handled.is_set() and mutex.acquire(blocking=False)))
assert os.waitpid(child, 0)[1] == 0
"""
    assert run(HANDLER.replace("WAIT", "with mutex: assert forking.wait(60)") + program) == ("", "")


def test_forks_and_the_exit_do_not_wait_long_for_a_handler(work: Work) -> None:
    """It waits for the end of the program. The children log, too."""
    program = """
event = clash()
wait_for(entered.is_set)
begin = time.monotonic()
for _ in range(100):
    child = os.fork()
    if not child:
        event.emit(1, 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert time.monotonic() - begin < 40  # 50, if each waits
"""
    # (Python 3.12 and later warn of the handler's thread.)
    stuck = HANDLER.replace("WAIT", "threading.Event().wait()")
    assert run(stuck + program, "-Wignore::DeprecationWarning") == ("", "")
    wait_for(lambda: len(work.numbers()[1]) >= 100)  # a busy daemon takes in some rings later
    assert work.numbers()[1] == [1] * 100
