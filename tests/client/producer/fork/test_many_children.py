"""Many children of one program: each record is recorded, or counted as lost in the ring of their parent."""

from __future__ import annotations

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.daemons.real_daemon import Work
from tests.integration.test_conservation import stats


def counts(work: Work, emitted: int) -> tuple[int, int]:
    """Recorded and lost, when so many are known to be emitted."""

    def known() -> tuple[int, int, int]:
        number, consumers = stats(work.tree.read_file("events/user_events/work/stats"))
        return number, consumers["ftrace"]["recorded"], consumers["ftrace"]["lost"]

    wait_for(lambda: known()[0] == emitted, what=known)
    return known()[1:]


@pytest.mark.usefixtures("patience")
def test_children_in_a_row_that_end_at_once(work: Work) -> None:
    """They are faster than the daemon, which would refuse some: they have ended, and would not hear of it."""
    work.run(
        """
        for who in range(1000):
            pid = os.fork()
            if not pid:
                event.emit(who, 0)
                os._exit(0)
            os.waitpid(pid, 0)
        """
    )
    assert counts(work, 1000) == (1000, 0)


@pytest.mark.usefixtures("patience")
def test_900_children_at_once(work: Work) -> None:
    work.run(
        """
        gate, go = os.pipe()
        def work(who):
            os.read(gate, 1)
            event.emit(who, 0)
            os._exit(0)
        threading.Timer(1, os.write, (go, b"x" * 900)).start()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the timer is a thread
            ends = children(work, 900)
        assert set(ends) == {0}
        """
    )
    assert sum(counts(work, 900)) == 900


def test_children_in_a_row_beside_a_stopped_daemon(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's queue takes some of them; the others are counted, and only the first of these waits."""
    monkeypatch.setenv("UTRACEFS_PATIENCE_S", "2")
    took = work.run(
        f"""
        os.kill({work.daemon.pid}, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            for who in range(300):
                pid = os.fork()
                if not pid:
                    event.emit(who, 0)
                    os._exit(0)
                os.waitpid(pid, 0)
            print(time.monotonic() - begin)
        finally:
            os.kill({work.daemon.pid}, signal.SIGCONT)
        """
    )
    recorded, lost = counts(work, 300)
    assert recorded + lost == 300
    assert recorded > 100 < lost
    assert float(took) < 40, "150 that wait would take 300 s"


def test_children_of_a_program_whose_user_has_many_connections_that_wait(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not connect: `behind` of the parent's ring, as the daemon sets it, and the children's bit."""
    monkeypatch.setenv("UTRACEFS_PATIENCE_S", "2")
    said = work.run(
        """
        import ctypes
        with open("/proc/self/maps") as lines:
            maps = [line.split() for line in lines if "utracefs-data-ring" in line]
        start = min(int(line[0].split("-")[0], 16) for line in maps if line[2] == "00000000")
        behind = ctypes.c_uint32.from_address(start + 284)
        def has_waited():
            pid = os.fork()
            if not pid:
                begin = time.monotonic()
                event.emit(1, 0)
                os._exit(time.monotonic() - begin > 1.5)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for word in (1, 3, 2, 0):
            behind.value = word
            print(has_waited(), behind.value)
        """
    )
    assert said.splitlines() == ["1 3", "0 3", "0 0", "0 0"]
    assert counts(work, 4) == (2, 2)
