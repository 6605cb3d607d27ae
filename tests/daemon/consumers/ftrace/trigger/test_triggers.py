"""The simple kinds when an event fires."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from tests.daemon.consumers.ftrace.trigger.playing import STEPS, Step, compare, take_step
from tests.daemon.consumers.ftrace.trigger.trigger_model import Model


def test_traceoff_comes_after_its_record(desk: Desk) -> None:
    desk.enable(desk.a)
    desk.write(desk.a, b"traceoff:2")
    desk.emit(desk.a, 1)
    desk.emit(desk.a, 2)
    assert (desk.recorded(), desk.instance.tracing_on) == ([1], False)
    assert desk.lines(desk.a) == [b"traceoff:count=1"], "nothing changed the second time"
    desk.instance.tracing_on = True
    desk.emit(desk.a, 3)
    desk.instance.tracing_on = True
    desk.emit(desk.a, 4)
    assert (desk.recorded(), desk.instance.tracing_on) == ([1, 3, 4], True)
    assert desk.lines(desk.a) == [b"traceoff:count=0"]


def test_traceon_comes_before_its_record(desk: Desk) -> None:
    desk.enable(desk.a)
    desk.instance.tracing_on = False
    desk.write(desk.a, b"traceon:1")
    desk.emit(desk.a, 1)
    desk.emit(desk.a, 2)
    assert (desk.recorded(), desk.instance.tracing_on) == ([1, 2], True)
    desk.instance.tracing_on = False
    desk.emit(desk.a, 3)
    assert (desk.recorded(), desk.lines(desk.a)) == ([1, 2], [b"traceon:count=0"])


def test_a_traceon_that_waits_for_the_record_does_not_store_it(desk: Desk) -> None:
    """stacktrace makes all triggers of the event wait (TRIGGER_COND)."""
    desk.enable(desk.a)
    desk.instance.tracing_on = False
    desk.write(desk.a, b"traceon")
    desk.write(desk.a, b"stacktrace:9")
    desk.emit(desk.a, 1)
    desk.emit(desk.a, 2)
    assert desk.recorded() == [2]
    assert desk.lines(desk.a) == [b"stacktrace:count=7", b"traceon:unlimited"]


def test_triggers_see_what_is_not_stored(desk: Desk) -> None:
    desk.write(desk.a, b"enable_event:user_events:b:1")
    assert desk.emit(desk.a, 1) == 0
    desk.emit(desk.b, 2)
    assert (desk.enabled(desk.a), desk.enabled(desk.b), desk.recorded()) == (b"0*", b"1*", [2])
    desk.instance.events.disable(desk.b)
    desk.emit(desk.a, 3)
    assert (desk.enabled(desk.b), desk.lines(desk.a)) == (b"0*", [b"enable_event:user_events:b:count=0"])


def test_an_event_may_switch_itself(desk: Desk) -> None:
    desk.write(desk.a, b"enable_event:user_events:a")
    desk.emit(desk.a, 1)
    desk.emit(desk.a, 2)
    assert (desk.enabled(desk.a), desk.recorded()) == (b"1*", [1, 2])
    desk.write(desk.a, b"!enable_event:user_events:a")
    assert desk.enabled(desk.a) == b"1"
    desk.write(desk.a, b"disable_event:user_events:a")
    desk.write(desk.a, b"stacktrace")
    desk.emit(desk.a, 3)
    assert (desk.enabled(desk.a), desk.recorded()) == (b"0*", [1, 2])


def test_pids_and_triggers(desk: Desk) -> None:
    """Triggers that fire at once come before the pid lists, triggers that wait for the record after them
    (__trace_trigger_soft_disabled(), trace_event_buffer_reserve())."""
    desk.instance.pids.add([1], notrace=False)
    desk.write(desk.a, b"enable_event:user_events:b:5")
    desk.emit(desk.a)
    assert desk.enabled(desk.b) == b"1*"
    desk.instance.events.disable(desk.b)
    desk.write(desk.a, b"stacktrace:5")
    desk.emit(desk.a)
    assert desk.enabled(desk.b) == b"0*"
    desk.emit(desk.a, pid=1)
    assert desk.enabled(desk.b) == b"1*"
    assert desk.lines(desk.a)[0] == b"stacktrace:count=4"


def test_a_record_that_no_sub_buffer_holds(desk: Desk) -> None:
    desk.enable(desk.a)
    desk.write(desk.a, b"traceoff")
    assert desk.emit(desk.a, extra=5000) == 0
    assert desk.instance.tracing_on
    assert (
        desk.a.tracepoint.stats_text() == b"emitted: 1\nbytes: 5012\nftrace: recorded 0 filtered 0 lost 1\n"
    )


def test_an_invalid_record(desk: Desk) -> None:
    """It fires only triggers that do not wait; with triggers that wait its fault is always found."""
    event = desk.world.event(b"c __data_loc char[] s")
    bad = b"\xff\xff\xff\xff"

    def emit() -> int:
        return event.tracepoint.write(bad, ts_ns=1, cpu=0, pid=1)

    desk.write(event, b"enable_event:user_events:b:5")
    assert emit() == 0
    assert desk.lines(event) == [b"enable_event:user_events:b:count=4"]
    desk.enable(event)
    assert emit() == -14
    desk.write(event, b"traceoff")
    desk.instance.events.disable(event)
    assert emit() == -14
    assert desk.instance.tracing_on


def test_instances_have_triggers_of_their_own(desk: Desk) -> None:
    other = desk.world.instances.make(b"other")
    other.triggers.write(desk.a, b"traceoff")
    desk.enable(desk.a)
    desk.emit(desk.a, 1)
    assert (desk.instance.tracing_on, other.tracing_on, desk.recorded()) == (True, False, [1])
    assert desk.lines(desk.a) == []


def test_a_reader_that_pauses_and_a_trigger(desk: Desk) -> None:
    desk.instance.pause()
    desk.instance.tracing_on = False
    desk.write(desk.a, b"traceon")
    desk.enable(desk.a)
    desk.emit(desk.a, 1)
    assert (desk.instance.tracing_on, desk.recorded()) == (True, [])
    desk.instance.resume()
    desk.emit(desk.a, 2)
    assert desk.recorded() == [2]


def test_filters(desk: Desk) -> None:
    """The fields are those of the firing event; the record is stored before a traceoff, and a traceon does
    not store it."""
    desk.enable(desk.a)
    assert desk.write(desk.a, b"traceoff:1  if  v == 2 && s == ''") == ""
    assert desk.lines(desk.a) == [b"traceoff:count=1 if  v == 2 && s == ''"]
    for v in (1, 2, 3):
        desk.emit(desk.a, v)
    assert desk.recorded() == [1, 2]
    desk.write(desk.a, b"!traceoff")
    desk.write(desk.a, b"traceon if v == 5")
    for v in (4, 5, 6):
        desk.emit(desk.a, v)
    assert desk.recorded() == [1, 2, 6]


def test_a_filter_of_an_event_that_is_not_stored(desk: Desk) -> None:
    desk.write(desk.a, b"enable_event:user_events:b if v & 1")
    desk.emit(desk.a, 2)
    assert desk.enabled(desk.b) == b"0*"
    desk.emit(desk.a, 3)
    assert desk.enabled(desk.b) == b"1*"


def test_an_event_that_keeps_its_own_record_out(desk: Desk) -> None:
    desk.enable(desk.a)
    desk.write(desk.a, b"disable_event:user_events:a if v == 2")
    for v in (1, 2, 3):
        desk.emit(desk.a, v)
    assert desk.recorded() == [1]
    desk.write(desk.a, b"!disable_event:user_events:a")
    desk.write(desk.a, b"enable_event:user_events:a if v == 5")
    for v in (4, 5, 6):
        desk.emit(desk.a, v)
    assert desk.recorded() == [1, 5, 6]


def test_a_snapshot_comes_before_its_record(desk: Desk) -> None:
    desk.enable(desk.a)
    desk.write(desk.a, b"snapshot:2")
    assert desk.snapshot() == []
    for v in (1, 2, 3):
        desk.emit(desk.a, v)
    assert (desk.snapshot(), desk.recorded()) == ([1], [2, 3])
    assert desk.lines(desk.a) == [b"snapshot:count=0"]
    desk.write(desk.a, b"!snapshot")
    assert desk.snapshot() == [1], "it stays"


def test_a_snapshot_that_waits_for_the_record_has_it(desk: Desk) -> None:
    desk.enable(desk.a)
    desk.write(desk.a, b"snapshot if v == 2")
    for v in (1, 2, 3):
        desk.emit(desk.a, v)
    assert (desk.snapshot(), desk.recorded()) == ([1, 2], [3])


def test_a_snapshot_of_what_is_not_stored(desk: Desk) -> None:
    desk.enable(desk.b)
    desk.emit(desk.b, 1)
    desk.instance.tracing_on = False
    desk.write(desk.a, b"snapshot:1 if v == 2")
    desk.emit(desk.a, 2)
    assert (desk.snapshot(), desk.recorded(), desk.lines(desk.a)) == (
        [1],
        [],
        [b"snapshot:count=0 if v == 2"],
    )


def test_a_snapshot_without_a_spare(desk: Desk) -> None:
    desk.write(desk.a, b"snapshot:5")
    desk.instance.snapshot.free()
    desk.emit(desk.a)
    assert desk.lines(desk.a) == [b"snapshot:count=4"]


def test_a_trigger_and_the_filter_of_its_event(desk: Desk) -> None:
    """The event's filter selects the stored records, the trigger's own those for which it fires."""
    desk.enable(desk.a)
    desk.instance.set_filter(desk.a, b"v > 10")
    desk.write(desk.a, b"traceoff if v == 5")
    for v in (11, 5, 12):
        desk.emit(desk.a, v)
    assert (desk.recorded(), desk.instance.tracing_on) == ([11], False)
    desk.write(desk.a, b"!traceoff")
    desk.write(desk.a, b"traceon if v >= 20")
    for v in (19, 20, 5):
        desk.emit(desk.a, v)
    assert desk.recorded() == [11, 20], "with a filter its place is taken when it has passed"


@settings(max_examples=150)
@given(st.lists(STEPS, max_size=25))
def test_as_the_model(steps: list[Step]) -> None:
    desk, model = Desk(), Model()
    try:
        for step in steps:
            take_step(desk, model, step)
            compare(desk, model)
    finally:
        desk.close()
