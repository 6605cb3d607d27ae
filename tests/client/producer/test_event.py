"""Where events look, and what they say of themselves."""

from __future__ import annotations

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.workbench import Workbench
from utracefs.producer._event import Event


def test_a_disabled_event_looks_at_nothing(bench: Workbench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    assert not event
    assert not event.enabled
    event.emit("nonsense")
    assert event.emitted == 0
    bench.set_status(event, 0x82)
    assert event
    assert event.enabled
    bench.session.close()
    assert not event


def test_every_bit_of_the_status_byte_counts(bench: Workbench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    for bit in range(8):
        if bit != 6:  # alone it is the library's own: the answer is not known yet
            bench.set_status(event, 1 << bit)
            assert event


def test_what_an_event_says_of_itself(bench: Workbench) -> None:
    bench.status = 0
    event, other = bench.event(b"t u8 a"), bench.event(b"other u8 a")
    assert (event.registered, event.index, other.index) == (True, 0, 1)
    assert repr(event) == "<utracefs.Event 't u8 a', off>"
    bench.set_status(event, 1)
    assert repr(event) == "<utracefs.Event 't u8 a', on>"
    bench.daemon.refuse[b"bad u8 a"] = (16, "no")
    bad = bench.session.event(b"bad u8 a")
    wait_for(lambda: bad.error)
    assert repr(bad) == "<utracefs.Event 'bad u8 a', refused: no>"
    assert (bad.registered, bad.index) == (False, -1)
    bench.session.close()
    assert (event.registered, event.index) == (False, -1)


def test_an_emit_whose_session_is_closed_meanwhile(bench: Workbench) -> None:
    """By an argument that is converted."""
    event = bench.event(b"t u8 a")

    class Closing:
        def __index__(self) -> int:
            bench.session.close()
            return 2

    event.emit(Closing())
    event.emit(3)
    assert bench.daemon.last.records == []
    assert not event


def test_an_event_that_is_dropped_is_not_followed_any_more(bench: Workbench) -> None:
    """The library looks at its memory no more; another of this declaration has the same registration."""
    for _ in range(100):
        event = Event(None, b"t", b"t u8 a", b"t u8 a", 0, [], 100)
        bench.session._native.declare(event)
        del event
    assert bench.event(b"t u8 a").index == 0
    bench.daemon.drop(bench.daemon.last)
    wait_for(lambda: len(bench.daemon.clients) == 2)


def test_an_event_without_an_owner() -> None:
    event = Event(None, b"t", b"t u8 a", b"t u8 a", 0, [], 100)
    assert not event
    event.emit()
    assert (event.registered, event.index, event.lost, event.emitted) == (False, -1, 0, 0)
    assert (event.error, event.refused) == (None, {})
    with pytest.raises(TypeError, match=r"made by utracefs\.event"):
        Event()  # type: ignore[call-arg]
