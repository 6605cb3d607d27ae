"""set_event_pid and set_event_notrace_pid, with and without event-fork."""

import pytest

from tests.daemon.tree.world import World
from utracefsd.events.event import Event
from utracefsd.machine.comms import Task


@pytest.fixture
def event(world: World) -> Event:
    event = world.event(b"alpha u32 n")
    world.w(b"events/enable", b"1")
    return event


def born(world: World, pid: int, parent: int, tgid: int | None = None) -> None:
    """A thread of the process tgid (by default one of its own), which `parent` started."""
    world.tasks[pid] = Task(b"t%d" % pid, pid)
    world.tgids[pid] = pid if tgid is None else tgid
    world.parents[pid] = parent


def writers(world: World, event: Event, *pids: int) -> list[int]:
    """The threads whose records are stored."""
    world.wn(b"trace", b"")
    for pid in pids:
        assert world.emit(event, pid.to_bytes(4, "little"), pid=pid) == 0
    return [int(body.split(b"(")[1].rstrip(b")")) for body in world.bodies()]


def test_without_the_option_only_the_listed(world: World, event: Event) -> None:
    born(world, 50, 46)
    world.w(b"set_event_pid", b"46")
    assert writers(world, event, 46, 50, 60) == [46]
    assert world.cat(b"set_event_pid") == b"46\n"
    world.wn(b"set_event_pid", b"")
    world.w(b"set_event_notrace_pid", b"46 60")
    assert writers(world, event, 46, 50, 60) == [50]


def test_the_other_list_too(world: World, event: Event) -> None:
    world.w(b"options/event-fork", b"1")
    born(world, 50, 46)
    born(world, 60, 1)
    world.w(b"set_event_notrace_pid", b"46")
    assert writers(world, event, 46, 50, 60, 50) == [60]
    assert world.cat(b"set_event_notrace_pid") == b"46\n50\n"


def test_the_dead_leave_when_the_list_is_read(world: World, event: Event) -> None:
    world.w(b"options/event-fork", b"1")
    born(world, 50, 46)
    world.w(b"set_event_pid", b"0 46")
    assert writers(world, event, 50) == [50]
    del world.tasks[50]
    assert world.cat(b"set_event_pid") == b"0\n46\n"
    assert world.instance.settings.pids == {0, 46}


def test_an_empty_list_would_mean_everybody(world: World, event: Event) -> None:
    world.w(b"options/event-fork", b"1")
    world.w(b"set_event_pid", b"50")
    assert world.cat(b"set_event_pid") == b"50\n"
    assert writers(world, event, 46) == []


def test_each_thread_is_looked_up_once(world: World, event: Event) -> None:
    asked: list[int] = []

    class Asked(dict[int, int]):
        def get(self, pid: int) -> int | None:  # type: ignore[override]
            asked.append(pid)
            return super().get(pid)

    world.tgids = Asked(world.tgids)
    world.w(b"options/event-fork", b"1")
    assert writers(world, event, 60) == [60]
    assert not asked  # there is no list
    world.w(b"set_event_pid", b"46")
    writers(world, event, 60, 60, 60)
    assert asked == [60]
    world.wa(b"set_event_pid", b"47")
    writers(world, event, 60)
    assert asked == [60, 60]


def test_an_error_there_costs_the_thread_only(
    world: World, event: Event, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(dict[int, int]):
        def get(self, pid: int) -> int:  # type: ignore[override]
            raise ZeroDivisionError(pid)

    world.tgids = Failing()
    world.w(b"options/event-fork", b"1")
    world.w(b"set_event_pid", b"46")
    assert writers(world, event, 60, 46, 60) == [46]
    assert "ZeroDivisionError: 60" in capsys.readouterr().err
