"""Workers of multiprocessing, emits at the end of an interpreter, and what an import changes."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import FakeDaemon, wait_for
from tests.client.daemons.real_daemon import run_python

EVENT = b"work u32 who; u32 number"


def run(tmp_path: Path, program: str) -> str:
    """Run a program of its own; the daemon is found by UTRACEFS_DIR."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    done = run_python(str(script))
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def records(daemon: FakeDaemon) -> Counter[tuple[int, int]]:
    """(who, number) of all records that all connections brought."""
    wait_for(lambda: not any(client.open for client in daemon.clients))
    return Counter(
        (int.from_bytes(payload[:4], "little"), int.from_bytes(payload[4:8], "little"))
        for client in daemon.clients
        for name, payload in client.records
        if name == EVENT
    )


def expected(who: int, count: int) -> Counter[tuple[int, int]]:
    return Counter((who, number) for number in range(count))


@pytest.fixture
def daemon(daemon: FakeDaemon) -> FakeDaemon:
    daemon.enabled_from_start = {EVENT}
    return daemon


PROLOGUE = """
    import os, sys, threading, time
    import utracefs
    event = utracefs.event("work u32 who; u32 number")
"""


@pytest.mark.parametrize(
    ("method", "declared"),
    [
        ("fork", "in the module"),
        ("fork", "in the worker"),
        ("forkserver", "in the worker"),
        ("spawn", "in the module"),
    ],
)
def test_workers_of_multiprocessing_lose_nothing_at_their_end(
    daemon: FakeDaemon, tmp_path: Path, method: str, declared: str
) -> None:
    at_top = declared == "in the module"
    run(
        tmp_path,
        f"""
    import multiprocessing
    import utracefs
    DECLARATION = "work u32 who; u32 number"
    {"event = utracefs.event(DECLARATION)" if at_top else ""}

    def work(who):
        {"" if at_top else "event = utracefs.event(DECLARATION)"}
        for i in range(30):
            {"globals()['event']" if at_top else "event"}.emit(who, i)

    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        processes = [context.Process(target=work, args=(who,)) for who in range(3)]
        for process in processes:
            process.start()
        work(3)
        for process in processes:
            process.join()
            assert process.exitcode == 0
    """,
    )
    assert records(daemon) == sum((expected(who, 30) for who in range(4)), Counter())


def test_multiprocessing_that_is_imported_after_the_first_event(daemon: FakeDaemon, tmp_path: Path) -> None:
    run(
        tmp_path,
        PROLOGUE
        + """
    assert event
    assert "multiprocessing" not in sys.modules
    import concurrent.futures, multiprocessing

    def work(who):
        for i in range(30):
            event.emit(who, i)
        return who

    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        assert list(pool.map(work, range(6))) == list(range(6))
    """,
    )
    assert records(daemon) == sum((expected(who, 30) for who in range(6)), Counter())


# ---- the end of the interpreter


def test_emitting_from_everything_that_runs_at_the_end(daemon: FakeDaemon, tmp_path: Path) -> None:
    run(
        tmp_path,
        """
    import atexit, threading, time

    def early():  # registered before, so it runs after the session was closed
        event.emit(2, 0)
        assert not event
        utracefs.event("late u32 a").emit(1)
        assert utracefs.flush(0.1) in (True, False)
        utracefs.close()
    atexit.register(early)

    import utracefs
    event = utracefs.event("work u32 who; u32 number")
    event.emit(1, 0)

    def late():
        event.emit(1, 1)
    atexit.register(late)

    class Last:
        def __del__(self):
            event.emit(3, 0)
            bool(event)
    last = Last()
    last.itself = last

    def forever():
        while True:
            event.emit(4, 0)
            time.sleep(0.0001)
    threading.Thread(target=forever, daemon=True).start()
    """,
    )
    got = records(daemon)
    assert {key: count for key, count in got.items() if key[0] != 4} == expected(1, 2)


def test_threads_that_emit_while_interpreters_end(
    daemon: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UTRACEFS_RING_KB", "64")  # a full ring makes a crash more likely
    run(
        tmp_path,
        PROLOGUE
        + """
    import threading, time

    def forever():
        while True:
            event.emit(1, 0)
    for _ in range(40):
        if not (pid := os.fork()):
            for _ in range(2):
                threading.Thread(target=forever, daemon=True).start()
            time.sleep(0.01)
            break
        assert os.waitpid(pid, 0)[1] == 0
    """,
    )


def test_importing_changes_nothing(tmp_path: Path) -> None:
    out = run(
        tmp_path,
        """
    import atexit, os, sys, threading
    import utracefs
    s = utracefs.__all__
    assert "utracefs.producer.session" not in sys.modules
    assert threading.active_count() == 1
    assert atexit._ncallbacks() == 0
    session = utracefs.Session("/nowhere")
    assert atexit._ncallbacks() == 0 or "attr" in sys.modules
    assert len(os.listdir("/proc/self/task")) == 1
    assert not utracefs.event("a u8 b")
    try:
        utracefs.nothing
    except AttributeError as error:
        print(error)
    """,
    )
    assert out == "module 'utracefs' has no attribute 'nothing'\n"
