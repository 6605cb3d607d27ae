"""A plan in a real daemon: filters of present and later events, changes, and the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess
from utracefs import Session
from utracefs.fleet.instance import PlannedInstance, instance_name
from utracefs.fleet.plan import Plan
from utracefs.fleet.wish import Wish
from utracefs.forward.policy import Policy
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import Tracefs


@pytest.fixture
def instance(utracefsd: DaemonProcess, directory: Path) -> Iterator[PlannedInstance]:
    instance = PlannedInstance(str(directory))
    yield instance
    instance.close()


def registering(instance: PlannedInstance, session: Session) -> Callable[[str], None]:
    def register(declaration: str) -> None:
        event = EventName("user_events", declaration.split()[0])
        made = session.event(declaration)
        wait_for(lambda: made.registered, 60)
        # An event that comes between its two reads is first seen as enabled only.
        wait_for(lambda: (instance.look(), event in instance.events)[1], 60)

    return register


def test_a_plan_and_its_changes(
    instance: PlannedInstance, directory: Path, new_session: Callable[..., Session]
) -> None:
    register = registering(instance, new_session())
    register("work u32 a")
    register("other u32 a")
    with Tracefs(str(directory)) as tree:

        def read(file: str) -> str:
            return tree.read_file(f"instances/{instance_name()}/{file}").decode().strip()

        instance.apply(Plan([Wish(("work*",), 9, "a > 1"), Wish(("work",), 9, "a < 9")]))
        assert read("set_event") == "user_events:work"
        assert read("events/user_events/work/filter") == "(a > 1) || (a < 9)"
        register("work_later u32 a")
        assert read("events/user_events/work_later/filter") == "a > 1"
        assert sorted(map(str, instance.enabled)) == ["user_events:work", "user_events:work_later"]
        instance.apply(Plan([Wish(("other",), 9), Wish(("work_later",), 9, "no == 1")]))
        assert sorted(read("set_event").split()) == ["user_events:other", "user_events:work_later"]
        assert read("standing_events").split() == ["other", "work_later"]
        assert read("standing_filters").split("\n") == ["other 0", "work_later no == 1"]
        assert read("events/user_events/work/filter") == "none"
        assert "Field not found" in str(instance.refused[EventName("user_events", "work_later")])
        instance.apply(Plan([]))
        assert [read(file) for file in ("set_event", "standing_events", "standing_filters")] == ["", "", ""]
        assert read("tracing_on") == "0"
        instance.close()
        wait_for(lambda: not tree.list_dir("instances"), 60)


def test_triggers(instance: PlannedInstance, directory: Path, new_session: Callable[..., Session]) -> None:
    register = registering(instance, new_session())
    register("work u32 a")
    register("secret u32 a")
    with Tracefs(str(directory)) as tree:

        def triggers(event: str) -> list[str]:
            text = tree.read_file(f"instances/{instance_name()}/events/user_events/{event}/trigger").decode()
            return [line for line in text.splitlines() if not line.startswith("#")]

        policy = Policy(("user_events:work*", "user_events:card"), fields={"card": {"no": "redact"}})
        counts = "hist:keys=a:vals=hitcount:sort=hitcount:size=2048"
        words, exact = ("*",), ("user_events:work_later",)
        old = Wish(
            words, 9, triggers=("hist:keys=a", "traceoff if a > 1", "enable_event:user_events:work_later")
        )
        instance.apply(Plan([old, Wish(exact, 9, triggers=("hist:keys=a", "traceon"))], policy))
        assert sorted(triggers("work")) == [f"{counts} [active]", "traceoff:unlimited if a > 1"]
        assert triggers("secret") == []
        assert "names no event" in str(instance.refused[EventName("user_events", "work")])
        register("work_later u32 a")
        assert "enable_event:user_events:work_later:unlimited" in triggers("work")
        assert EventName("user_events", "work") not in instance.refused
        # Its own standing lines have precedence: they hold from its first record on.
        assert f"{counts} [active]" in triggers("work_later")
        assert "there is 'traceoff if a > 1' of an older wish" in str(
            instance.refused[EventName("user_events", "work_later")]
        )
        register("work_text char c[8]")
        assert "trigger 'hist:keys=a'" in str(instance.refused[EventName("user_events", "work_text")])
        register("card u32 a; u32 no")
        assert f"{counts} [active]" in triggers("card")

        instance.apply(Plan([Wish(words, 9, triggers=("hist:keys=a", "traceon"))], policy))
        assert sorted(triggers("work")) == [f"{counts} [active]", "traceon:unlimited"]
        instance.apply(Plan([Wish(words, 9)], policy))
        assert triggers("work") == triggers("work_later") == triggers("card") == []
        assert tree.read_file(f"instances/{instance_name()}/standing_triggers") == b""


def test_the_end_of_a_trigger_that_disabled_an_event_of_another_wish(
    instance: PlannedInstance, directory: Path, new_session: Callable[..., Session]
) -> None:
    session = new_session()
    work, other = session.event("work u32 a"), session.event("other u32 a")
    wait_for(lambda: other.registered, 20)
    disabling = Wish(("other",), 9, triggers=("disable_event:user_events:work",))
    instance.apply(Plan([Wish(("work",), 9), disabling]))
    wait_for(lambda: work and other, 20)
    other.emit(1)
    assert session.flush(20)
    path = f"instances/{instance_name()}/events/user_events/work/enable"
    with Tracefs(str(directory)) as tree:
        assert tree.read_file(path) == b"0*\n"
        instance.apply(Plan([Wish(("work",), 9)]))
        assert tree.read_file(path) == b"1\n"
    assert instance.enabled == [EventName("user_events", "work")]


def test_a_plan_that_is_left_over(
    instance: PlannedInstance, directory: Path, new_session: Callable[..., Session]
) -> None:
    """The forwarder's stream holds the instance, also after an error of the daemon."""
    session = new_session()
    work = session.event("work u32 a")
    wait_for(lambda: work.registered, 20)
    path = f"instances/{instance_name()}"
    with Tracefs(str(directory)) as tree:
        tree.open(f"{path}/trace_pipe", os.O_RDONLY)
        instance.apply(Plan([Wish(("work*",), 9, "a > 1", triggers=("hist:keys=a",))]))
        instance.close()
        again = PlannedInstance(str(directory))
        again.look()
        assert again.enabled == []
        files = ("standing_events", "standing_filters", "standing_triggers", "events/user_events/work/filter")
        assert [tree.read_file(f"{path}/{file}") for file in files] == [b"", b"", b"", b"none\n"]
        assert tree.read_file(f"{path}/events/user_events/work/trigger").startswith(b"#")
        again.close()


def test_a_daemon_that_ends(instance: PlannedInstance, utracefsd: DaemonProcess, directory: Path) -> None:
    utracefsd.stop()
    with pytest.raises(OSError):
        instance.apply(Plan([Wish(("a",), 1)]))
    with pytest.raises(OSError):
        PlannedInstance(str(directory))
