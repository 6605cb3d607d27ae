"""Forked children against the real daemon: complete to the record, however they end; quiet if they are."""

from __future__ import annotations

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.daemons.real_daemon import Work
from tests.integration.test_conservation import stats

ENDS = {
    "_exit": "os._exit(0)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "exec": "os.execv('/bin/true', ['true'])",
    "sleep": "time.sleep(0.02); os._exit(0)",
    "sys.exit": "sys.exit(0)",
}


@pytest.mark.parametrize("end", list(ENDS))
def test_a_child_is_complete_however_it_ends(work: Work, end: str) -> None:
    work.run(
        f"""
        def work(who):
            emit(who)
            {ENDS[end]}
        assert set(children(work)) <= {{0, signal.SIGKILL}}
        """
    )
    wait_for(
        lambda: work.numbers() == {who: list(range(10)) for who in range(20)}, what=lambda: work.numbers()
    )


def test_children_of_children(work: Work) -> None:
    """Children of processes with and without earlier records."""
    work.run(
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
    wait_for(lambda: work.numbers() == expected, what=lambda: work.numbers())


def test_children_with_threads_that_all_begin_at_once(work: Work) -> None:
    work.run(
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
        children(work, 40)
        """
    )
    expected = {10 * who + part: list(range(10)) for who in range(40) for part in range(4)}
    wait_for(lambda: work.numbers() == expected, what=lambda: work.numbers())


def test_a_child_that_is_forked_and_emits_in_signal_handlers(work: Work) -> None:
    """The first emit of a child is interrupted by handlers that emit, too."""
    work.run(
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
    wait_for(lambda: len(work.numbers()) == 30)
    got = work.numbers()
    for who in range(10):
        assert got[who] == list(range(10))
        assert [len(got[1000 + who])] == got[2000 + who]


def test_a_child_that_does_not_emit_makes_no_connection(work: Work) -> None:
    work.run(
        """
        wait_for(lambda: event and event.registered)
        def work(who):
            assert event and event.enabled and event.registered
            assert utracefs.flush() and not utracefs.stats().connected
            assert len(os.listdir("/proc/self/task")) == 1
            links = [os.readlink(f"/proc/self/fd/{fd}") for fd in (3, 4, 5, *range(40, 50))
                     if os.path.exists(f"/proc/self/fd/{fd}")]
            assert not [link for link in links if "socket" in link or "memfd" in link], links
            os._exit(0)
        assert set(children(work)) == {0}
        """
    )
    assert work.numbers() == {}


def test_a_child_with_more_events_than_registrations_may_be_under_way(work: Work) -> None:
    work.tree.write_file("standing_events", b"user_events:many*\n")
    work.run(
        """
        events = [utracefs.event(f"many{i} u32 who") for i in range(300)]
        wait_for(lambda: all(one.registered for one in events))
        def work(who):
            for one in events[-3:]:
                one.emit(who)
            os._exit(0)
        assert set(children(work, 10)) == {0}
        """
    )
    wait_for(lambda: work.tree.read_file("trace").count(b" many") == 30)


# ---- no daemon, or one that does not answer


def test_a_child_whose_daemon_has_ended_continues(work: Work) -> None:
    work.run(
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
            assert time.monotonic() - begin < 60
            os._exit(0)
        assert set(children(work, 3)) == {0}
        """
    )
    assert work.numbers() == {}


@pytest.mark.parametrize("ring", ["0", "1"])
@pytest.mark.parametrize("connects", [True, False])
@pytest.mark.parametrize("end", ["_exit", "kill", "sys.exit", "later"])
def test_a_daemon_that_does_not_answer_a_child(
    work: Work, monkeypatch: pytest.MonkeyPatch, end: str, connects: bool, ring: str
) -> None:
    """It gets the child's ring, or its records over the socket, all the same. If it has no room in its queue,
    they are counted as lost in the parent's ring."""
    monkeypatch.setenv("UTRACEFS_DATA_RING", ring)
    work.run(
        f"""
        import socket
        own = os.getpid()
        daemon = {work.daemon.pid}
        while not (event.registered and event):
            time.sleep(0.01)
        event.emit(7, 0)
        assert utracefs.flush(60)
        os.kill(daemon, signal.SIGSTOP)
        is_full = {connects}
        while not is_full:
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            is_full = one.connect_ex(os.environ["UTRACEFS_DIR"] + "/user_events_data") != 0
            one.detach()
        def work(who):
            emit(who)
            if {end!r} != "later":
                {ENDS.get(end, "pass")}
            os.kill(daemon, signal.SIGCONT)
            os._exit(0 if utracefs.flush(60) else 1)
        try:
            assert set(children(work, 3)) <= {{0, signal.SIGKILL}}
        finally:
            if os.getpid() == own:
                os.kill(daemon, signal.SIGCONT)
        """
    )
    lost = 0 if connects else 30

    def counts() -> tuple[int, int, int]:
        emitted, consumers = stats(work.tree.read_file("events/user_events/work/stats"))
        return emitted, consumers["ftrace"]["recorded"], consumers["ftrace"]["lost"]

    wait_for(lambda: counts()[0] == 31, what=counts)
    if lost and end == "later":  # the first of them that has ended continues the daemon
        assert sum(counts()[1:]) == 31
    else:
        assert counts() == (31, 31 - lost, lost)
    if not lost:
        assert work.numbers() == {7: [0], **{who: list(range(10)) for who in range(3)}}


def test_what_a_child_says_first_is_of_its_fork(work: Work) -> None:
    """Events that were declared or refused since the last fork, and a daemon that came anew."""
    work.run(
        """
        def work(who):
            emit(who)
            os._exit(0)
        assert set(children(work, 1)) == {0}
        more = utracefs.event("work2 u32 who; u32 number")
        wait_for(lambda: more.registered)
        event2 = utracefs.event("work u64 other_fields")
        wait_for(lambda: event2.error is not None)
        assert set(children(work, 2)) == {0}
        def work(who):
            late = utracefs.event("work3 u32 who; u32 number")
            emit(10 + who)
            wait_for(lambda: late.registered)
            os._exit(0)
        assert set(children(work, 2)) == {0}
        """,
        before="import logging\nlogging.getLogger('utracefs').setLevel(logging.ERROR)\n",
    )
    assert sorted(work.numbers()) == [0, 1, 10, 11]
