"""Forked children against the real daemon. How they end, and whose records are lost then, is a part of the
simulation (tests/simulation/clients.py) and of tests/client/c/test_instructions.py."""

from __future__ import annotations

from tests.client.daemons.fake_daemon import wait_for
from tests.client.daemons.real_daemon import Work


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
