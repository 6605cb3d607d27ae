"""Perf events that are opened as events appear, and again after a restart of the daemon."""

import errno
import itertools
import signal
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from tests.integration.conftest import DaemonProcess
from tests.protocol.pages.perf_records import perf_records
from utracefs import Session
from utracefs.cli import Failure
from utracefs.cli.common import connect
from utracefs.cli.event_options import Wanted
from utracefs.cli.perf.attached import Attached, Opened
from utracefs.tree.event_names import ALL_USER_EVENTS, EventName
from utracefs.tree.tracefs import PerfAttr
from utracefs_protocol.pages.perf_ring import Sample

WORK = EventName("user_events", "work")
SAMPLING = PerfAttr(sample_period=1, data_pages=4)


@pytest.fixture
def daemon(mortal: DaemonProcess) -> DaemonProcess:
    return mortal


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def attached_to(
    daemon: DaemonProcess, *wanted: Wanted, attr: PerfAttr = SAMPLING, **options: object
) -> Attached:
    return Attached(connect(str(daemon.directory)), wanted, attr, **options)  # type: ignore[arg-type]


def looked(attached: Attached) -> bool:
    attached.look()
    return WORK in attached.opened


def test_an_older_daemon_has_smaller_rings(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        attached_to(daemon, Wanted("work"), attr=PerfAttr(sample_period=1, data_pages=2048)) as attached,
        Session(str(daemon.directory)) as session,
    ):
        opened = attached.tree.perf_event_open

        def as_before(attr: PerfAttr) -> tuple[int, int | None]:
            if attr.data_pages > 1024:
                raise OSError(errno.EINVAL, f"data_pages {attr.data_pages}; at most 1024")
            return opened(attr)

        monkeypatch.setattr(attached.tree, "perf_event_open", as_before)
        session.event("work u32 n")
        until(lambda: looked(attached))
        mapping = attached.opened[WORK].mapping
        assert mapping is not None
        assert len(mapping) == 1025 * 4096
        attached.tree.close()


def test_rings_of_many_events_are_smaller(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utracefs.cli.perf.attached.fitting_ring_bytes", lambda: 16 << 20)
    with (
        attached_to(daemon, Wanted("work_*"), attr=PerfAttr(sample_period=1)) as attached,
        Session(str(daemon.directory)) as session,
    ):
        events = [session.event(f"work_{n} u32 n") for n in range(5)]
        until(lambda: all(event.registered for event in events))
        attached.look()
        sizes = [one.mapping and (len(one.mapping) - 4096) >> 20 for one in attached.opened.values()]
        assert sizes == [16, 8, 4, 4, 4]
        attached.tree.close()


def test_events_are_found_as_they_come(daemon: DaemonProcess) -> None:
    with (
        attached_to(daemon, Wanted("wo*", "n > 2"), Wanted("other"), attr=PerfAttr()) as attached,
        Session(str(daemon.directory)) as session,
    ):
        attached.look()
        assert attached.counts() == {}
        event = session.event("work u32 n")
        until(lambda: event.registered)
        attached.look()
        until(lambda: event)
        for n in range(5):
            event.emit(n)
        session.flush(60)
        assert attached.counts() == {WORK: 2}
        attached.look()
        assert list(attached.opened) == [WORK]
        assert attached.missing() == ["other"]
        attached.disable()
        event.emit(7)
        session.flush(60)
        assert attached.counts() == {WORK: 2}
        assert attached.finish() == 1
        attached.tree.close()


def test_a_filter_that_does_not_fit(daemon: DaemonProcess, capsys: pytest.CaptureFixture[str]) -> None:
    """A Failure for an existing event; for one registered later a single warning."""
    with Session(str(daemon.directory)) as session:
        with attached_to(daemon, Wanted("*", "nosuch == 1")) as attached:
            attached.look()
            event = session.event("work u32 n")
            until(lambda: event.registered)
            for _ in range(3):
                attached.look()
            assert attached.finish() == 1
            error = capsys.readouterr().err
            assert error == (
                "utracefs: user_events:work: filter: Field not found;"
                " `utracefs list --fields` shows its fields\n"
                "  nosuch == 1\n         ^\n"
            )
            attached.tree.close()
        with attached_to(daemon, Wanted("work", "nosuch == 1")) as attached:
            with pytest.raises(Failure, match="Field not found"):
                attached.look()
            attached.tree.close()


@pytest.mark.parametrize(
    ("pattern", "gone"), [("work", errno.ENOENT), ("wo*", errno.ENODEV), (ALL_USER_EVENTS, errno.ENOENT)]
)
def test_an_event_that_is_gone_before_it_is_opened(
    daemon: DaemonProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pattern: str,
    gone: int,
) -> None:
    """It said `no such event came; did you mean work?`; and nothing for globs."""
    monkeypatch.setattr(Attached, "_open", Mock(side_effect=OSError(gone, "the event is gone")))
    with attached_to(daemon, Wanted(pattern)) as attached, Session(str(daemon.directory)) as session:
        event = session.event("work u32 n")
        until(lambda: event.registered)
        attached.look()
        assert attached.unnoticed() == [WORK]
        assert attached.is_incomplete and not attached.has_opened
        assert attached.finish() == 1
        line = (
            "utracefs: user_events:work: was there too shortly to be noticed; `utracefs record` misses none\n"
        )
        assert capsys.readouterr().err == line
        monkeypatch.undo()
        attached.look()
        assert attached.unnoticed() == [] and attached.has_opened
        attached.tree.close()


@pytest.mark.parametrize("with_ftrace", [False, True])
def test_nothing_is_missing_silently_when_the_daemon_is_killed(
    daemon: DaemonProcess, capsys: pytest.CaptureFixture[str], with_ftrace: bool
) -> None:
    unseen: list[int] = []
    found: list[int] = []

    def take(one: Opened) -> None:
        assert one.reader is not None
        found.extend(
            int.from_bytes(s.raw[8:12], "little") for s in perf_records(one.reader) if isinstance(s, Sample)
        )

    with (
        attached_to(daemon, Wanted("work"), missed=lambda _, count: unseen.append(count)) as attached,
        attached_to(daemon, Wanted("work"), attr=PerfAttr()) as counter,
        Session(str(daemon.directory)) as session,
    ):
        event = session.event("work u32 n")
        until(lambda: event.registered)
        attached.look()
        counter.look()
        if with_ftrace:
            attached.tree.write_file("events/user_events/work/enable", b"1")
        until(lambda: event)
        for n in range(10):
            event.emit(n)
        session.flush(60)
        assert counter.counts() == {WORK: 10}
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGSTOP)
        for n in range(10, 15):  # left in the data ring
            event.emit(n)
        daemon.process.kill()
        daemon.process.communicate(timeout=60)
        attached.look()
        assert attached.is_away
        assert attached.counts() == {WORK: 0}  # it was not requested
        assert counter.counts() == {WORK: 10}
        (orphan,) = attached.take_orphans()
        take(orphan)
        orphan.close()
        assert found == list(range(10))
        assert attached.finish() == 1
        error = capsys.readouterr().err
        assert "utracefs: the daemon has ended; waiting for the next one\n" in error
        assert "its losses of the last 0.5 s are unknown" in error
        daemon.start()
        until(lambda: looked(attached))
        until(lambda: looked(counter))
        assert not attached.is_away
        until(lambda: event)
        for n in range(20, 27):
            event.emit(n)
        session.flush(60)
        take(attached.opened[WORK])
        assert found[-7:] == list(range(20, 27))
        if with_ftrace:  # records of the other consumer are known
            assert len(found) + sum(unseen) == 22
        assert unseen == [22 - len(found) if with_ftrace else 0]
        assert counter.counts()[WORK] in range(17, 23)
        error = capsys.readouterr().err
        assert "utracefs: the daemon is back; " in error
        assert ("unseen came at least 5 records of user_events:work" in error) == (unseen == [5])
        attached.tree.close()
        counter.tree.close()


def test_attempts_to_connect_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    now, attempts = 100.0, []

    def connect(_: str) -> None:
        attempts.append(now)
        raise Failure("tracefs", "no daemon is there")

    monkeypatch.setattr("utracefs.cli.perf.attached.time.monotonic", lambda: now)
    monkeypatch.setattr("utracefs.cli.perf.attached.connect", connect)
    gone = Mock(**{"read_file.side_effect": ConnectionError, "read_files.side_effect": ConnectionError})
    with Attached(gone, [Wanted("work")], SAMPLING) as attached:
        for _ in range(300):
            attached.look()
            now += 0.01
    pauses = [round(after - before, 2) for before, after in itertools.pairwise(attempts)]
    assert pauses[:5] == [0.02, 0.04, 0.08, 0.16, 0.25]
    assert set(pauses[5:]) <= {0.25, 0.26}
