"""Forked children against the real daemon: complete to the record, however they end; quiet if they are."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.fake_daemon import wait_for
from tests.client.real_daemon import Utracefsd
from utracefs import Session
from utracefs.tracefs import Tracefs

PROLOGUE = """
import os, signal, sys, threading, time, warnings
warnings.simplefilter("error")
import utracefs
event = utracefs.event("work u32 who; u32 number")
deadline = time.monotonic() + 20
while not event:
    assert time.monotonic() < deadline
    time.sleep(0.005)

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


@pytest.fixture
def tree(directory: Path) -> Iterator[Tracefs]:
    """Of a daemon that listens to the event before any program begins."""
    daemon = Utracefsd(directory)
    daemon.start()
    try:
        with Tracefs(str(directory)) as tree, Session(directory) as session:
            wait_for(lambda: session.event("work u32 who; u32 number").registered)
            tree.write_file("buffer_size_kb", b"4096")
            tree.write_file("events/user_events/work/enable", b"1")
            yield tree
    finally:
        daemon.stop()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str], str]:
    def run(program: str) -> str:
        script = tmp_path / "program.py"
        script.write_text(PROLOGUE + textwrap.dedent(program))
        environ = {
            name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")
        }
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=environ,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def numbers(tree: Tracefs) -> dict[int, list[int]]:
    """Of each `who`, in the order of the trace."""
    found: dict[int, list[int]] = {}
    for line in tree.read_file("trace").decode().splitlines():
        if "work: " in line:
            fields = dict(word.split("=") for word in line.split() if "=" in word)
            found.setdefault(int(fields["who"], 16), []).append(int(fields["number"], 16))
    return found


ENDS = {
    "_exit": "os._exit(0)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "exec": "os.execv('/bin/true', ['true'])",
    "sleep": "time.sleep(0.02); os._exit(0)",
    "sys.exit": "sys.exit(0)",
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_child_is_complete_however_it_ends(tree: Tracefs, run: Callable[[str], str], end: str) -> None:
    run(
        f"""
        def work(who):
            emit(who)
            {ENDS[end]}
        assert set(children(work)) <= {{0, signal.SIGKILL}}
        """
    )
    wait_for(lambda: numbers(tree) == {who: list(range(10)) for who in range(20)}, what=lambda: numbers(tree))


def test_a_single_record_of_a_child(tree: Tracefs, run: Callable[[str], str]) -> None:
    run(
        """
        def work(who):
            event.emit(who, 0)
            os.kill(os.getpid(), signal.SIGKILL)
        children(work)
        """
    )
    wait_for(lambda: numbers(tree) == {who: [0] for who in range(20)})


def test_children_of_children(tree: Tracefs, run: Callable[[str], str]) -> None:
    """Of those that emitted before and those that did not."""
    run(
        """
        def grandchild(who):
            emit(100 + who)
            os._exit(0)
        def work(who):
            if who % 2:
                emit(who)
            pid = os.fork()
            if not pid:
                grandchild(who)
            os.waitpid(pid, 0)
            os._exit(0)
        assert set(children(work, 10)) == {0}
        """
    )
    expected = {who: list(range(10)) for who in (1, 3, 5, 7, 9, *range(100, 110))}
    wait_for(lambda: numbers(tree) == expected, what=lambda: numbers(tree))


def test_children_with_threads_that_all_begin_at_once(tree: Tracefs, run: Callable[[str], str]) -> None:
    run(
        """
        def work(who):
            start = threading.Barrier(4)
            def emitting(part):
                start.wait()
                emit(10 * who + part)
            threads = [threading.Thread(target=emitting, args=(part,)) for part in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            os.kill(os.getpid(), signal.SIGKILL)
        children(work, 10)
        """
    )
    expected = {10 * who + part: list(range(10)) for who in range(10) for part in range(4)}
    wait_for(lambda: numbers(tree) == expected, what=lambda: numbers(tree))


def test_a_child_that_is_forked_and_emits_in_signal_handlers(
    tree: Tracefs, run: Callable[[str], str]
) -> None:
    """The first emit of a child is interrupted by handlers that emit, too."""
    run(
        """
        seen = []
        def handler(*_):
            seen.append(None)
            event.emit(1000 + who, len(seen) - 1)
        def work(number):
            global who
            who = number
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0005)
            emit(who)
            while len(seen) < 3:
                pass
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
            event.emit(2000 + who, len(seen))
            os._exit(0)
        assert set(children(work, 10)) == {0}
        """
    )
    wait_for(lambda: len(numbers(tree)) == 30)
    got = numbers(tree)
    for who in range(10):
        assert got[who] == list(range(10))
        assert [len(got[1000 + who])] == got[2000 + who]


def test_a_child_that_does_not_emit_makes_no_connection(tree: Tracefs, run: Callable[[str], str]) -> None:
    run(
        """
        def work(who):
            assert event and event.enabled and event.registered
            assert not utracefs.stats().connected
            assert len(os.listdir("/proc/self/task")) == 1
            links = [os.readlink(f"/proc/self/fd/{fd}") for fd in (3, 4, 5, *range(40, 50))
                     if os.path.exists(f"/proc/self/fd/{fd}")]
            assert not [link for link in links if "socket" in link or "memfd" in link], links
            os._exit(0)
        assert set(children(work)) == {0}
        """
    )
    assert numbers(tree) == {}


def test_200_children_at_once(tree: Tracefs, run: Callable[[str], str]) -> None:
    """Those that the daemon does not answer within the patience go on, and know that they are not served."""
    unserved = run(
        """
        gate, go = os.pipe()
        def work(who):
            os.read(gate, 1)
            emit(who)
            stats = utracefs.stats()
            os._exit(0 if stats.emitted == 10 and stats.connected else 3)
        threading.Timer(0.5, os.write, (go, b"x" * 200)).start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the timer is a thread
            ends = children(work, 200)
        assert set(ends) <= {0, 3 << 8}
        print(ends.count(3 << 8))
        """
    )
    wait_for(lambda: sum(len(one) for one in numbers(tree).values()) >= 10 * (200 - int(unserved)))
    assert all(one == list(range(10)) for one in numbers(tree).values())


# ---- no daemon, or one that does not answer


def test_a_child_whose_daemon_has_gone_goes_on(
    tree: Tracefs, directory: Path, run: Callable[[str], str]
) -> None:
    run(
        """
        import glob
        for name in glob.glob(os.environ["UTRACEFS_DIR"] + "/user_events_data"):
            os.unlink(name)
        def work(who):
            begin = time.monotonic()
            emit(who)
            stats = utracefs.stats()
            assert stats.emitted == stats.pending + stats.lost + stats.sent
            assert 1 <= stats.emitted <= 10, stats
            assert time.monotonic() - begin < 5
            os._exit(0)
        assert set(children(work, 3)) == {0}
        """
    )
    assert numbers(tree) == {}
