"""gevent replaces threads, locks, sockets and fork by its own: the session thread is none of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.client.daemons.real_daemon import PROLOGUE, Work, run_python

PATCH = "from gevent import monkey; monkey.patch_all()\n"


def patched(program: str, when: str) -> str:
    first = "import utracefs\nutracefs.event('early u8 a')\n"
    return (first + PATCH if when == "after the first event" else PATCH) + program


@pytest.mark.parametrize("when", ["before the import", "after the first event"])
def test_a_patched_program_emits_flushes_and_forks(work: Work, when: str) -> None:
    script = work.folder / "program.py"
    program = PROLOGUE.replace('warnings.simplefilter("error")', "")
    script.write_text(
        patched(program, when)
        + """
import gevent
ticks = []
def tick():
    while True:
        ticks.append(None)
        gevent.sleep(0.001)
ticking = gevent.spawn(tick)
def greenlet(who):
    for number in range(10):
        event.emit(who, number)
        gevent.sleep(0.001)
gevent.joinall([gevent.spawn(greenlet, who) for who in range(5)])
assert len(ticks) >= 10
pid = os.fork()
if not pid:
    emit(5)
    os._exit(0)
# gevent's own can miss the end of a child, and waits for ever: also in a program without utracefs.
assert monkey.get_original("os", "waitpid")(pid, 0)[1] == 0
gevent.joinall([gevent.spawn(greenlet, 6)])
ticking.kill()
assert utracefs.flush(60) and utracefs.stats().connected
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
assert "utracefs" in names
"""
    )
    done = run_python(str(script))
    assert (done.returncode, done.stderr) == (0, "")
    assert work.numbers() == {who: list(range(10)) for who in range(7)}


@pytest.mark.parametrize("when", ["before the import", "after the first event"])
def test_a_patched_program_without_a_daemon(directory: Path, tmp_path: Path, when: str) -> None:
    """It ended only when it was killed."""
    program = """
import utracefs, time
event = utracefs.event("work u32 who; u32 number")
assert not event
event.emit(1, 2)
time.sleep(0.05)
assert utracefs.flush(0.1)
"""
    done = run_python("-c", patched(program, when), UTRACEFS_DIR=str(directory))
    assert (done.returncode, done.stderr) == (0, "")


def test_warnings_are_printed(work: Work) -> None:
    """Logging handlers could wait, in a thread that gevent does not know: main thread and this one hung."""
    program = """
import gevent, logging, time, utracefs
class Handler(logging.Handler):
    def emit(self, record):
        time.sleep(0.001)
logging.getLogger().addHandler(Handler())
other = utracefs.event("work u64 other")
deadline = time.monotonic() + 60
while not other.error:
    assert time.monotonic() < deadline
    gevent.sleep(0.001)
"""
    done = run_python("-c", PATCH + program)
    assert done.returncode == 0
    assert done.stderr.startswith("utracefs: event work is off: ")
