"""Steps of a desk and of the model, which must agree after each."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import strategies as st

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from tests.daemon.consumers.ftrace.trigger.trigger_model import Model, ModelTrigger

Step = tuple[str, str, Any]
"""The action, its event, and an argument."""

EVENTS = st.sampled_from("ab")
TRIGGERS = st.builds(
    ModelTrigger,
    st.sampled_from(["traceon", "traceoff", "snapshot", "stacktrace"]),
    st.just(""),
    st.sampled_from([-1, 0, 1, 2]),
    st.sampled_from([None, None, 1, 2, 3]),
) | st.builds(
    ModelTrigger,
    st.sampled_from(["enable_event", "disable_event"]),
    EVENTS,
    st.sampled_from([-1, 0, 1, 2]),
    st.sampled_from([None, None, 1, 2, 3]),
)
STEPS = st.one_of(
    st.tuples(st.just("attach"), EVENTS, TRIGGERS),
    st.tuples(st.just("remove"), EVENTS, TRIGGERS),
    st.tuples(st.just("enable"), EVENTS, st.booleans()),
    st.tuples(st.just("filter"), EVENTS, st.sampled_from([None, 1, 2])),
    st.tuples(st.just("tracing_on"), EVENTS, st.booleans()),
    st.tuples(st.just("emit"), EVENTS, st.integers(1, 3)),
    st.tuples(st.just("emit"), EVENTS, st.integers(1, 3)),
)


def take_step(desk: Desk, model: Model, step: Step) -> None:
    what, name, value = step
    event = desk.a if name == "a" else desk.b
    if what == "attach":
        line = value.line().replace(b":unlimited", b"").replace(b"count=", b"")
        assert desk.write(event, line) == model.attach(name, attrs.evolve(value))
    elif what == "remove":
        assert desk.write(event, b"!" + value.line()) == ""
        model.remove(name, value)
    elif what == "enable":
        desk.instance.events.set_enabled((event,), value)
        model.stored[name] = value
    elif what == "filter":
        desk.instance.set_filter(event, b"0" if value is None else b"v > %d" % value)
        model.filters[name] = value
    elif what == "tracing_on":
        desk.instance.tracing_on = model.on = value
    else:
        desk.emit(event, value)
        model.emit(name, value)


def compare(desk: Desk, model: Model) -> None:
    for name, event in (("a", desk.a), ("b", desk.b)):
        assert desk.lines(event) == [trigger.line() for trigger in model.triggers[name]]
        assert desk.enabled(event) == model.enable_text(name)
    assert desk.instance.tracing_on == model.on
    assert desk.recorded() == model.live
    assert model.spare is None or desk.snapshot() == model.spare
    assert any(model.triggers.values()) or not len(desk.instance.sink.cells)
