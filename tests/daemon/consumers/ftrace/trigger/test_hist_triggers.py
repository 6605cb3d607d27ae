"""HistTrigger and HistSwitch as such; as commands they are in test_hist_kinds.py."""

from __future__ import annotations

import pytest

from tests.daemon.consumers.ftrace.histograms import defined, hist_of
from tests.daemon.consumers.ftrace.trigger.desk import Desk
from utracefsd.consumers.ftrace.event._trigger_cells import Trigger
from utracefsd.consumers.ftrace.trigger._triggers import HistSwitch, HistTrigger


def trigger(desk: Desk, *, active: bool = True, kept: tuple[int, int] | None = None) -> HistTrigger:
    hist = hist_of(defined(b"keys=v", desk.a.declaration))
    return HistTrigger(desk.instance.sink, hist, active=active, kept=kept)


def attach(desk: Desk, *triggers: Trigger) -> None:
    desk.enable(desk.a)
    file = desk.instance.events.of(desk.a)
    assert file is not None
    assert file.probe is not None
    file.probe.triggers = triggers


def test_counts_while_it_is_active(desk: Desk) -> None:
    one, other = trigger(desk), trigger(desk, active=False)
    assert (one.needs_record, one.is_conditional, one.count, other.count) == (True, True, 1, 0)
    attach(desk, one, other)
    for switched in (False, True, False):
        desk.emit(desk.a)
        one.active, other.active = switched, not switched
        assert (one.active, other.active) == (switched, not switched)
        assert (one.count, other.count) == (switched, not switched)
    assert (one.hist.table.hits, other.hist.table.hits) == (2, 1)
    assert desk.recorded() == [0, 0, 0]
    attach(desk)


def test_its_state_is_in_its_cell(desk: Desk) -> None:
    before = trigger(desk, active=False)
    after = trigger(desk, active=True, kept=(before.cell, before.key))
    assert not after.active
    before.active = True
    assert trigger(desk, active=False, kept=(before.cell, before.key)).active


def test_the_table_knows_the_record(desk: Desk) -> None:
    one, other = trigger(desk), trigger(desk)
    attach(desk, one, other)
    for serial in (1, 2):
        desk.emit(desk.a)
        for each in (one, other):
            assert each.hist.table.has_taken(each.key, serial)
            assert not each.hist.table.has_taken(each.key, serial - 1)
    attach(desk)


@pytest.mark.parametrize("on", [False, True])
def test_switch(desk: Desk, on: bool) -> None:
    one, other = trigger(desk, active=not on), trigger(desk, active=on)
    attach(desk, one, other)
    file = desk.instance.events.of(desk.a)
    assert file is not None
    assert file.probe is not None
    switch = HistSwitch(file.probe, on, 1)
    attach(desk, switch, one, other)
    desk.emit(desk.a)
    assert (one.active, other.active, switch.count) == (on, on, 0)
    one.active = not on
    desk.emit(desk.a)
    assert (one.active, other.active, switch.count) == (not on, on, 0)
    attach(desk)
