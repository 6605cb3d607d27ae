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


def test_children_in_a_row_that_end_at_once(work: Work) -> None:
    """They are faster than the daemon. None of them waits for its turn."""
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
    recorded, lost = counts(work, 1000)
    assert recorded + lost == 1000
    assert recorded > 500


def test_children_in_a_row_beside_a_stopped_daemon(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's queue takes some of them; the others are counted, and wait for less than a millisecond."""
    waits = work.run(
        f"""
        import resource
        os.kill({work.daemon.pid}, signal.SIGSTOP)
        try:
            for who in range(700):
                pid = os.fork()
                if not pid:
                    begin = resource.getrusage(resource.RUSAGE_THREAD)
                    event.emit(who, 0)
                    os._exit(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - begin.ru_nvcsw)
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        finally:
            os.kill({work.daemon.pid}, signal.SIGCONT)
        """
    )
    recorded, lost = counts(work, 700)
    assert recorded + lost == 700
    assert recorded > 400 and lost > 100
    assert max(map(int, waits.split())) < 8, "of 0.25 ms each, three"


def test_children_of_a_program_whose_user_has_many_connections_that_wait(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not connect: `behind` of the parent's ring, as the daemon sets it."""
    work.run(
        """
        import ctypes
        with open("/proc/self/maps") as lines:
            maps = [line.split() for line in lines if "utracefs-data-ring" in line]
        start = min(int(line[0].split("-")[0], 16) for line in maps if line[2] == "00000000")
        behind = ctypes.c_uint32.from_address(start + 284)
        for behind.value in (1, 0):
            pid = os.fork()
            if not pid:
                event.emit(1, 0)
                os._exit(0)
            os.waitpid(pid, 0)
        """
    )
    assert counts(work, 2) == (1, 1)
