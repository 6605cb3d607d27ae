"""The session behind the functions of utracefs."""

from __future__ import annotations

import copy
import pickle

import pytest

import utracefs
from tests.client.daemons.fake_daemon import FakeDaemon
from utracefs import Session
from utracefs.producer._event import Event
from utracefs.producer.process_session import _ProcessSession, process_session

ONE = b"one u32 number"


class OfThisTest(_ProcessSession):
    """With a connection of its own, since that of the process can be closed only once."""

    _open = Session._open


def test_pickled_events_are_declared_again(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utracefs.producer.process_session._sessions", {"session": OfThisTest()})
    try:
        event = utracefs.event("one u32 number", multi_format=True)
        assert pickle.loads(pickle.dumps(event)) is event
        for span in (utracefs.span("step u32 n", "u8 status"), utracefs.span("step", n=1)):
            again = pickle.loads(pickle.dumps(span))
            assert (again.end, again.fields, again.values) == (span.end, span.fields, span.values)
            assert copy.copy(span) is copy.deepcopy(span) is span
        assert utracefs.events([ONE]) == [utracefs.event(ONE)]
        assert utracefs.flush(60)
        assert utracefs.stats().emitted == 0
        assert utracefs.default_session() is process_session()
    finally:
        utracefs.close()
    assert isinstance(event, Event)


def test_events_of_other_sessions_cannot_be_pickled(daemon: FakeDaemon) -> None:
    with (
        Session() as other,
        pytest.raises(TypeError, match="cannot be pickled; declare it in the other process"),
    ):
        assert copy.deepcopy(other.event(ONE)) is other.event(ONE)
        pickle.dumps(other.event(ONE))
