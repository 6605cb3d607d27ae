"""Notifications of enablers: one message at a time, the latest value of each token, and waiting
operations."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.record_path import tracepoint
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.data import MAX_CHANGES, EnablersChanged
from utracefsd.events import notifier as notifier_module
from utracefsd.events.enablers import EnablerTable
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable
from utracefsd.events.notifier import (
    FREE_NS,
    LOG_INTERVAL_NS,
    MOST_NAMED,
    MOST_NS,
    REFILL_DIVISOR,
    Change,
    Notifier,
    WaitBudget,
)
from utracefsd.machine.peer import Peer
from utracefsd.machine.shares import Shares

PEER = Peer(100, 1000, 1000, privileged=False)


class Notified:
    """A connection that is notified of tokens 0 to n - 1 of one event."""

    def __init__(self, table: EventTable, event: Event, tokens: int = 1, pid: int = 100) -> None:
        self.table = table
        self.calls = 0
        notifiers = table.enablers.notifiers
        self.notifier = notifiers.add(Peer(pid, 1000, 1000, privileged=False), self._speak_up)
        self.state: dict[int, bool] = {}
        for token in range(tokens):
            table.enablers.check_token(self.notifier, token)
            self.state[token] = table.enablers.add_notified(self.notifier, token, event)

    def _speak_up(self) -> None:
        self.calls += 1

    def read(self) -> EnablersChanged | None:
        message = self.notifier.next_message()
        if message is None:
            return None
        kind, method, params = msgpack.unpackb(message)
        assert (kind, method) == (2, "enablers_changed")
        changed = EnablersChanged.from_params(params)
        assert 0 < len(changed.changes) <= MAX_CHANGES
        self.state |= dict(changed.changes)
        return changed

    def answer(self) -> bool:
        """Read a message and acknowledge it; returns whether there was one."""
        changed = self.read()
        if changed is not None:
            self.notifier.written(changed.seq, 0)
        return changed is not None


def switch(table: EventTable, event: Event, on: bool, now_ns: int = 0) -> Change | None:
    """An operation that enables or disables."""
    table.enablers.notifiers.begin()
    table.enablers.write_state(event, on)
    return table.enablers.notifiers.take(now_ns)


def test_a_token_that_changes_again_keeps_its_place(
    table: EventTable, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a notification that changes all the time would never be sent."""
    monkeypatch.setattr(notifier_module, "MAX_CHANGES", 2)
    notified = Notified(table, event, tokens=4)
    other = table.register(CommandString.parse(b"other"), privileged=True)
    table.acquire(other)
    for token in (4, 5):
        table.enablers.add_notified(notified.notifier, token, other)
    first = switch(table, event, True)
    assert notified.read() == EnablersChanged(1, [(0, True), (1, True)])
    switch(table, other, True)
    later = switch(table, event, False)
    notified.notifier.written(1, 0)
    assert notified.read() == EnablersChanged(2, [(2, False), (3, False)])
    notified.notifier.written(2, 0)
    assert first is not None
    assert first.done, "its tokens were sent, with newer values"
    assert later is not None
    assert notified.read() == EnablersChanged(3, [(4, True), (5, True)])
    notified.notifier.written(3, 0)
    assert not later.done
    assert notified.read() == EnablersChanged(4, [(0, False), (1, False)])
    notified.notifier.written(4, 0)
    assert later.done


@pytest.mark.parametrize("seq", [0, 1, 3, 4])
def test_an_answer_out_of_order(table: EventTable, event: Event, seq: int) -> None:
    notified = Notified(table, event)
    switch(table, event, True)
    notified.answer()
    change = switch(table, event, False)
    notified.read()
    with pytest.raises(TraceError, match="2 is unanswered"):
        notified.notifier.written(seq, 0)
    assert change is not None
    assert not change.done


def test_the_last_changed_token_is_removed_while_nothing_is_unanswered(
    table: EventTable, event: Event
) -> None:
    notified = Notified(table, event)
    change = switch(table, event, True)
    table.enablers.remove_notified(notified.notifier, 0, 0)
    assert change is not None
    assert change.done
    assert not notified.notifier.has_news


def test_tokens_that_go_leave_less_to_wait_for(
    table: EventTable, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier_module, "MAX_CHANGES", 2)
    notified = Notified(table, event, tokens=4)
    other = table.register(CommandString.parse(b"other"), privileged=True)
    table.acquire(other)
    table.enablers.add_notified(notified.notifier, 4, other)
    first = switch(table, event, True)
    for token in (2, 3):
        table.enablers.remove_notified(notified.notifier, token, 0)
    later = switch(table, other, True)
    assert notified.read() == EnablersChanged(1, [(0, True), (1, True)])
    notified.notifier.written(1, 0)
    assert first is not None
    assert first.done
    assert later is not None
    assert not later.done
    assert notified.answer()
    assert later.done


def test_operations_in_progress_stop_waiting_for_an_overdue_connection(
    table: EventTable, event: Event
) -> None:
    """Otherwise many operations in a row would each wait."""
    stopped, other = Notified(table, event, pid=7), Notified(table, event, pid=8)
    first = switch(table, event, True, now_ns=0)
    second = switch(table, event, False, now_ns=50)
    assert first is not None
    assert second is not None
    assert other.answer()
    first.give_up(first.deadline_ns)
    assert second.done
    assert stopped.notifier.overdue
    assert not other.notifier.overdue


def test_the_log_has_one_line_a_second(
    table: EventTable, event: Event, log: pytest.LogCaptureFixture
) -> None:
    first = [Notified(table, event, pid=5000 + n) for n in range(MOST_NAMED + 3)]
    change = switch(table, event, True)
    assert change is not None
    change.give_up(0)
    (line,) = log.messages
    assert "5000, 5001, " in line
    assert line.count("50") == MOST_NAMED
    assert "and 3 more" in line
    for now_ns, pid in ((1, 7), (2, 8), (LOG_INTERVAL_NS, 9)):
        Notified(table, event, pid=pid)
        change = switch(table, event, False)
        assert change is not None
        change.give_up(now_ns)
    assert "by pid 7, 8, 9:" in log.messages[1]
    assert len(log.messages) == 2
    assert all(notified.notifier.overdue for notified in first)
    assert log.records[0].levelno == logging.WARNING


def test_a_change_without_interested_connections_leaves_nothing(table: EventTable, event: Event) -> None:
    """An administrator who asks and leaves, again and again, while a program does not answer."""
    notified = Notified(table, event)
    for on in (True, False) * 10:
        change = switch(table, event, on)
        assert change is not None
        change.forget()
    left = weakref.ref(change)
    del change
    assert left() is None
    assert not notified.notifier.overdue


def test_what_changed_before_an_operation_is_not_its_matter(table: EventTable, event: Event) -> None:
    notified = Notified(table, event)
    table.enablers.write_state(event, True)
    table.enablers.notifiers.begin()
    assert table.enablers.notifiers.take(0) is None
    assert notified.notifier.has_news


def test_a_connection_with_thousands_goes_in_pieces(
    table: EventTable, event: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utracefsd.events.enablers.PIECE", 4)
    notified = Notified(table, event, tokens=10)
    table.enablers.close_notifier(notified.notifier, 0)
    assert (len(table.enablers), table.next_reap_ns()) == (6, 0)
    table.enablers.write_state(event, True)
    assert notified.read() is None
    for _ in range(2):
        table.reap()
    assert (len(table.enablers), event.references, table.next_reap_ns()) == (0, 1, None)


def test_a_closed_one_is_in_no_circle(table: EventTable, event: Event) -> None:
    notified = Notified(table, event)
    switch(table, event, True)
    notifier = weakref.ref(notified.notifier)
    gc.collect()
    gc.disable()
    try:
        table.enablers.close_notifier(notified.notifier, 0)
        del notified
        assert notifier() is None
    finally:
        gc.enable()


ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("switch"), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("remove"), st.integers(0, 1), st.integers(0, 8)),
        st.tuples(st.just("add"), st.integers(0, 1), st.integers(0, 8)),
        st.tuples(st.just("give_up"), st.integers(0, 3), st.booleans()),
    ),
    max_size=60,
)


@given(ACTS)
def test_all_know_the_truth_in_the_end_and_no_change_is_done_too_early(acts: list[Any]) -> None:
    """Whatever is switched, sent, registered and given up in between."""
    enablers = EnablerTable(Shares(), lambda _: None, lambda _: None)
    events = [Event.__new__(Event) for _ in range(3)]
    for event in events:
        event.tracepoint = tracepoint()
    on = dict.fromkeys(map(id, events), False)
    notifiers = [enablers.notifiers.add(PEER, lambda: None) for _ in range(2)]
    states: list[dict[int, bool]] = [{}, {}]
    unanswered: list[EnablersChanged | None] = [None, None]
    open_changes: list[Change] = []

    def read(which: int) -> None:
        message = notifiers[which].next_message()
        if message is not None:
            changed = EnablersChanged.from_params(msgpack.unpackb(message)[2])
            unanswered[which] = changed
            for token, value in changed.changes:
                if token in notifiers[which].enablers:
                    states[which][token] = value

    def answer(which: int) -> None:
        changed = unanswered[which]
        if changed is not None:
            unanswered[which] = None
            notifiers[which].written(changed.seq, 0)

    def believed(notifier: Notifier, state: dict[int, bool]) -> dict[int, bool]:
        return {token: state[token] for token in notifier.enablers}

    def truth(notifier: Notifier) -> dict[int, bool]:
        return {token: on[id(enabler.event)] for token, enabler in notifier.enablers.items()}

    for name, which, what in acts:
        if name == "switch":
            enablers.notifiers.begin()
            on[id(events[which])] = what
            enablers.write_state(events[which], what)
            change = enablers.notifiers.take(0)
            if change is not None:
                open_changes.append(change)
        elif name == "read":
            read(which)
            if what:
                answer(which)
        elif name == "remove" and what in notifiers[which].enablers:
            enablers.remove_notified(notifiers[which], what, 0)
        elif name == "add" and what not in notifiers[which].enablers:
            event = events[what % 3]
            enablers.add_notified(notifiers[which], what, event)
            states[which][what] = on[id(event)]
        elif name == "give_up" and which < len(open_changes):
            change = open_changes[which]
            change.give_up(0) if what else change.forget()
            assert change.done
        for notifier, state in zip(notifiers, states, strict=True):
            if notifier.up_to_date:
                assert believed(notifier, state) == truth(notifier)
    for _ in range(10):
        for which in (0, 1):
            answer(which)
            read(which)
    for notifier, state in zip(notifiers, states, strict=True):
        assert notifier.up_to_date
        assert believed(notifier, state) == truth(notifier)
    assert all(change.done for change in open_changes)


WAIT_NS = 2 * FREE_NS
USER, OTHER = Peer(1, 1000, 1000, privileged=False), Peer(2, 1001, 1001, privileged=False)
ADMINISTRATOR = Peer(3, 0, 0, privileged=True)


def test_what_is_short_and_administrators_are_free(log: pytest.LogCaptureFixture) -> None:
    wait_budget = WaitBudget()
    for n in range(1000):
        wait_budget.waited(USER, n * FREE_NS, (n + 1) * FREE_NS)
        wait_budget.waited(ADMINISTRATOR, n * WAIT_NS, (n + 1) * WAIT_NS)
    assert wait_budget.is_left(USER, 0)
    assert wait_budget.is_left(ADMINISTRATOR, 0)
    assert len(wait_budget) == 0
    assert not log.messages


def test_a_thousand_programs_that_are_stopped_at_once_cost_one_wait() -> None:
    wait_budget = WaitBudget()
    for _ in range(1000):
        wait_budget.waited(USER, 0, WAIT_NS)
    assert wait_budget.is_left(USER, WAIT_NS)


def test_full_budgets_are_forgotten() -> None:
    wait_budget = WaitBudget()
    for uid in range(100):
        wait_budget.waited(Peer(1, uid, uid, privileged=False), 0, WAIT_NS)
    assert len(wait_budget) == 100
    later_ns = (REFILL_DIVISOR + 1) * WAIT_NS
    wait_budget.waited(USER, later_ns, later_ns + WAIT_NS)
    assert len(wait_budget) == 1


@given(st.lists(st.tuples(st.integers(0, 300_000_000), st.integers(1, WAIT_NS)), max_size=100))
def test_whatever_comes_no_more_than_its_share_is_waited(waits: list[tuple[int, int]]) -> None:
    """(pause, wait) of operations one after the other; free waits are not included."""
    wait_budget = WaitBudget()
    now_ns = waited_ns = 0
    for pause_ns, wait_ns in waits:
        now_ns += pause_ns
        if wait_budget.is_left(USER, now_ns):
            wait_budget.waited(USER, now_ns, now_ns + wait_ns)
            now_ns += wait_ns
            waited_ns += wait_ns if wait_ns > FREE_NS else 0
    assert waited_ns <= MOST_NS + now_ns // REFILL_DIVISOR + WAIT_NS
