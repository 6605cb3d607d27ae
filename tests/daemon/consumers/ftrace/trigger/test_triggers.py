"""The simple kinds when an event fires."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from tests.daemon.consumers.ftrace.trigger.playing import STEPS, Step, compare, take_step
from tests.daemon.consumers.ftrace.trigger.trigger_model import Model
from tests.daemon.record_path import write


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
        return write(event.tracepoint, bad, ts_ns=1, cpu=0, pid=1)

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


def test_a_snapshot_without_a_spare(desk: Desk) -> None:
    desk.write(desk.a, b"snapshot:5")
    desk.instance.snapshot.free()
    desk.emit(desk.a)
    assert desk.lines(desk.a) == [b"snapshot:count=4"]


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
