"""An exception of a signal handler ends a program's first declaration, at any line; it declares again."""

from __future__ import annotations

from tests.client.daemons.real_daemon import Work, run_python

PROGRAM = """
import multiprocessing.util, os, sys
import utracefs
from utracefs.producer import fork, process_session, session

FILES = [module.__file__ for module in (fork, process_session, session)]

class Interrupted(Exception): pass

def trace(frame, what, _):
    global left
    if what == "line" and frame.f_code.co_filename in FILES:
        left -= 1
        if not left:
            raise Interrupted
    return trace

def declare():
    return utracefs.event("work u32 who; u32 number")

place = 0
while True:
    place += 1
    child = os.fork()
    if not child:
        left = place
        sys.settrace(trace)
        try:
            declare()
        except Interrupted:
            pass
        sys.settrace(None)
        event = declare()
        assert event is declare()
        event.emit(place, 0)
        assert fork._watched and utracefs.stats().emitted == 1
        sys.exit(3 if left > 0 else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        assert status == 3, status
        break
print(place)
"""


def test_a_declaration_that_is_interrupted_at_each_line(work: Work) -> None:
    done = run_python("-c", PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    places = int(done.stdout)
    assert places > 30
    assert work.numbers() == {place: [0] for place in range(1, places + 1)}


def test_an_exception_before_a_fork_is_not_lost(work: Work) -> None:
    """It would be, with a text on standard error, in a hook that is Python code."""
    program = """
import _thread, functools, os, signal
import utracefs

class Stop(Exception): pass

def stop(*_):
    raise Stop

signal.signal(signal.SIGUSR1, stop)
assert utracefs.event("work u32 who; u32 number")
os.register_at_fork(before=functools.partial(_thread.interrupt_main, signal.SIGUSR1))
try:
    if not os.fork():
        os._exit(0)
except Stop:
    print("stopped")
"""
    done = run_python("-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "stopped\n", "")
