"""One connection as a plain function of bytes: no socket, no thread, no daemon."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from utracefs import connection
from utracefs._event import Event
from utracefs._outlets import Fifo
from utracefs.checking import check_declaration
from utracefs.connection import (
    TRANSITIONS,
    Action,
    CountRefused,
    DataConnection,
    EndFlushes,
    Follow,
    GiveUpRing,
    Input,
    MapRing,
    MapStatus,
    MoveAll,
    OfferRing,
    Refuse,
    State,
    Warn,
)
from utracefs.declaring import make_event
from utracefs.flushing import Flush
from utracefs_protocol.connection import (
    Connection,
    Request,
    encode_error,
    encode_notification,
    encode_record,
    encode_request,
    encode_response,
)
from utracefs_protocol.errors import ProtocolError
from utracefs_protocol.limits import MAX_UNANSWERED

RING = 1 << 20


def an_event(name: str, flags: int = 0) -> Event:
    return make_event(None, Fifo(4096), check_declaration(f"{name} u32 a".encode()), flags)


def asked(data: bytes) -> list[Request]:
    """The requests that these bytes are."""
    found = list(Connection(max_object=None).receive(data))
    assert all(isinstance(one, Request) for one in found)
    return found  # type: ignore[return-value]


def registered(msgid: int, status_index: int, write_index: int) -> bytes:
    result = {"status_index": status_index, "write_index": write_index, "id": 20}
    return encode_response(msgid, result)


def status_mapped(msgid: int = 0) -> bytes:
    return encode_response(msgid, {"size": 4096})


def ring_mapped(msgid: int = 1) -> bytes:
    return encode_response(msgid, {"size": RING, "version": 2})


# ---- the table


def picture() -> list[str]:
    lines = []
    for state, leads in TRANSITIONS.items():
        rows = [f"{occurred.name:<16} -> {target.name}" for occurred, target in leads.items()] or [""]
        for first, row in zip(itertools.chain([state.name], itertools.repeat("")), rows, strict=False):
            lines.append(f"    {first:<19} {row}".rstrip())
    return lines


def test_the_picture_in_the_docstring_is_drawn_from_the_table() -> None:
    assert connection.__doc__ is not None
    assert "\n\n" + "\n".join(picture()) + "\n\n" in connection.__doc__


def test_every_state_has_a_row_and_a_way_up_and_every_input_is_used() -> None:
    assert list(TRANSITIONS) == list(State)
    assert {occurred for leads in TRANSITIONS.values() for occurred in leads} == set(Input)
    up = {State.UP}
    for _ in State:
        up |= {state for state, leads in TRANSITIONS.items() if up & set(leads.values())}
    assert up == set(State)


# ---- the first connection


def all_at_once(data: bytes) -> Iterable[bytes]:
    return [data]


def byte_by_byte(data: bytes) -> Iterable[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def with_bytes_left_over(data: bytes) -> Iterable[bytes]:
    return [data[:-5], data[-5:]]


Cut = Callable[[bytes], Iterable[bytes]]
CUTS = pytest.mark.parametrize("cut", [all_at_once, byte_by_byte, with_bytes_left_over])


def feed(
    talk: DataConnection, data: bytes, fds: list[int] | None = None, cut: Cut = all_at_once
) -> list[Action]:
    """All actions; the descriptors come with the first byte."""
    actions: list[Action] = []
    for piece in cut(data):
        actions += talk.receive(piece, fds or [])
        fds = []
    return actions


def effects(actions: list[Action]) -> list[object]:
    """What becomes of the events, one by one: bytes that come in pieces make several actions of one."""
    found: list[object] = []
    for action in actions:
        if isinstance(action, MoveAll | Follow):
            found += [MoveAll] * isinstance(action, MoveAll) + list(action.places)
        else:
            found.append(action)
    return found


@CUTS
def test_without_a_ring(cut: Cut) -> None:
    one, two = an_event("one"), an_event("two", flags=2)
    talk = DataConnection([], ring_size=None)
    assert [(r.msgid, r.method, r.params) for r in asked(talk.requests([one, two]))] == [
        (0, "mmap_status", []),
        (1, "DIAG_IOCSREG", [{"name_args": "one u32 a"}]),
        (2, "DIAG_IOCSREG", [{"name_args": "two u32 a", "flags": 2}]),
    ]
    assert talk.requests([one, two]) == b""
    assert not talk.answered
    actions = feed(talk, status_mapped() + registered(1, 5, 0) + registered(2, 6, 1), [33], cut)
    assert effects(actions) == [MapStatus(33, 4096), MoveAll, (one, 5, 0), (two, 6, 1)]
    assert talk.answered
    assert talk.state is State.UP
    assert talk.is_idle([one, two])
    assert not talk.is_idle([one, two, an_event("three")])


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("given", [True, False], ids=["given", "refused"])
def test_with_a_new_ring_in_whatever_order_the_answers_come(order: tuple[int, ...], given: bool) -> None:
    one = an_event("one")
    talk = DataConnection([one], ring_size=RING)
    assert [r.method for r in asked(talk.requests([one]))] == ["mmap_status", "mmap_ring", "DIAG_IOCSREG"]
    ring = ring_mapped() if given else encode_error(1, errno.ENOSYS, "no rings here")
    answers = [(status_mapped(), [33]), (ring, [44, 45] if given else []), (registered(2, 5, 7), [])]
    actions: list[Action] = []
    for which in order:
        assert talk.state is not State.UP
        assert not talk.can_sync
        data, fds = answers[which]
        actions += feed(talk, data, fds)
    assert actions.pop() == MoveAll([(one, 5, 7)])
    assert sorted(map(str, actions)) == sorted(
        map(str, [MapStatus(33, 4096), *([MapRing(44, 45, RING)] if given else [])])
    )
    assert talk.state is State.UP


def test_what_is_declared_later_follows() -> None:
    one, two = an_event("one"), an_event("two")
    talk = DataConnection([], ring_size=None)
    talk.requests([one])
    feed(talk, status_mapped() + registered(1, 5, 0), [33])
    (request,) = asked(talk.requests([one, two]))
    assert not talk.is_idle([one, two])
    assert feed(talk, registered(request.msgid, 6, 1)) == [Follow([(two, 6, 1)])]
    assert talk.is_idle([one, two])


def test_a_refused_event_holds_nothing_up() -> None:
    one, two = an_event("one"), an_event("two")
    talk = DataConnection([one, two], ring_size=None)
    talk.requests([one, two])
    assert feed(talk, status_mapped() + registered(2, 5, 0), [33]) == [MapStatus(33, 4096)]
    refused, moved = feed(talk, encode_error(1, errno.EADDRINUSE, "other fields"))
    assert isinstance(refused, Refuse)
    assert refused.event is one
    assert (refused.error.errno, refused.error.text) == (errno.EADDRINUSE, "other fields")
    assert moved == MoveAll([(two, 5, 0)])


def test_records_move_even_when_no_event_does() -> None:
    talk = DataConnection([], ring_size=None)
    talk.requests([])
    assert feed(talk, status_mapped(), [33]) == [MapStatus(33, 4096), MoveAll([])]


# ---- a ring from before


def offered(by_old_index: list[Event | None], declared: list[Event]) -> tuple[DataConnection, Request]:
    """A connection that has offered the ring, with each event at its old index; and the offer."""
    talk = DataConnection(by_old_index, ring_size=RING, has_ring=True)
    assert [r.method for r in asked(talk.requests(declared))][:2] == ["mmap_status", "DIAG_IOCSREG"]
    answers = b"".join(registered(1 + i, 9 + i, by_old_index.index(e)) for i, e in enumerate(declared))
    actions = feed(talk, status_mapped() + answers, [33])
    assert actions[0] == MapStatus(33, 4096)
    offer = actions[1]
    assert isinstance(offer, OfferRing)
    assert talk.state is State.OFFERED
    (request,) = asked(offer.request)
    assert (request.method, request.params) == ("adopt_ring", [{}])
    return talk, request


@CUTS
def test_a_ring_is_offered_when_the_old_events_have_their_old_index(cut: Cut) -> None:
    one, two = an_event("one"), an_event("two")
    talk, offer = offered([two, None, one], [one, two])
    assert not talk.can_sync
    answer = encode_response(offer.msgid, {"size": RING, "version": 2})
    assert feed(talk, answer, cut=cut) == [MoveAll([(one, 9, 2), (two, 10, 0)])]
    assert talk.state is State.UP


def test_what_is_declared_while_a_ring_is_offered_moves_with_the_others() -> None:
    one, new = an_event("one"), an_event("new")
    talk, offer = offered([one], [one])
    (request,) = asked(talk.requests([one, new]))
    assert feed(talk, registered(request.msgid, 20, 1)) == []
    answer = encode_response(offer.msgid, {"size": RING, "version": 2})
    assert feed(talk, answer) == [MoveAll([(one, 9, 0), (new, 20, 1)])]


def test_a_ring_is_offered_while_nothing_else_is_under_way() -> None:
    one, new = an_event("one"), an_event("new")
    talk = DataConnection([one], ring_size=RING, has_ring=True)
    talk.requests([one, new])
    assert feed(talk, status_mapped() + registered(1, 9, 0), [33]) == [MapStatus(33, 4096)]
    (offer,) = feed(talk, registered(2, 10, 1))
    assert isinstance(offer, OfferRing)


def then_asks_for_a_new_ring(talk: DataConnection, declared: list[Event]) -> list[Action]:
    assert talk.state.name == "RING_TO_ASK"
    (request,) = asked(talk.requests(declared))
    assert (request.method, request.params) == ("mmap_ring", [{"size": RING}])
    assert talk.state.name == "RING"
    return feed(talk, ring_mapped(request.msgid), [44, 45])


def test_a_ring_that_is_not_adopted_is_given_up_and_another_asked_for() -> None:
    one = an_event("one")
    talk, offer = offered([one], [one])
    assert feed(talk, encode_error(offer.msgid, errno.EINVAL, "no such ring")) == [
        Warn("the data ring was not taken over: %s", "no such ring"),
        GiveUpRing(),
    ]
    assert then_asks_for_a_new_ring(talk, [one]) == [MapRing(44, 45, RING), MoveAll([(one, 9, 0)])]


def test_a_ring_whose_events_have_other_indexes_is_given_up() -> None:
    one, two = an_event("one"), an_event("two")
    talk = DataConnection([one, two], ring_size=RING, has_ring=True)
    talk.requests([one, two])
    actions = feed(talk, status_mapped() + registered(1, 9, 1) + registered(2, 10, 0), [33])
    assert actions == [MapStatus(33, 4096), GiveUpRing()]
    moved = MoveAll([(one, 9, 1), (two, 10, 0)])
    assert then_asks_for_a_new_ring(talk, [one, two]) == [MapRing(44, 45, RING), moved]


def test_a_ring_with_records_of_a_refused_event_is_given_up() -> None:
    one, two = an_event("one"), an_event("two")
    talk = DataConnection([one, two], ring_size=RING, has_ring=True)
    talk.requests([one, two])
    answers = status_mapped() + encode_error(1, errno.EMFILE, "too many") + registered(2, 10, 1)
    actions = feed(talk, answers, [33])
    assert [type(action) for action in actions] == [MapStatus, Refuse, GiveUpRing]
    assert then_asks_for_a_new_ring(talk, [one, two]) == [MapRing(44, 45, RING), MoveAll([(two, 10, 1)])]


@settings(max_examples=100)
@given(st.lists(st.integers(1, 60), max_size=20), st.booleans())
def test_however_the_bytes_are_cut_the_same_comes_of_them(sizes: list[int], ring: bool) -> None:
    events = [an_event(f"e{i}") for i in range(5)]
    data = status_mapped()
    fds = [33]
    if ring:
        data += ring_mapped()
        fds += [44, 45]
    data += b"".join(registered(1 + ring + i, 5 + i, i) for i in range(5))
    data += encode_notification("write_error", [errno.EBADF, 3, 7])

    def cut(data: bytes) -> Iterable[bytes]:
        for size in sizes:
            yield data[:size]
            data = data[size:]
        yield data

    found = []
    for way in (all_at_once, cut):
        talk = DataConnection(events, ring_size=RING if ring else None)
        talk.requests(events)
        found.append(effects(feed(talk, data, list(fds), way)))
        assert talk.state is State.UP
    refused = CountRefused("EBADF", 3, 7)
    for actions in found:
        # It may come before or behind the move, which waits for the end of what was read.
        actions.remove(refused)
    assert found[0] == found[1]


# ---- flushes


def test_a_flush_is_asked_when_records_may_be_sent() -> None:
    one = an_event("one")
    talk = DataConnection([], ring_size=None)
    assert not talk.can_sync
    talk.requests([one])
    assert not talk.can_sync
    feed(talk, status_mapped() + registered(1, 5, 0), [33])
    assert talk.can_sync
    first, second, third = Flush(1), Flush(2), Flush(3)
    (request,) = asked(talk.requests([one], [first, second]))
    (other,) = asked(talk.requests([one], [third]))
    assert (request.method, request.params) == ("sync", [])
    assert talk.unanswered_flushes == [first, second, third]
    assert feed(talk, encode_response(request.msgid, None)) == [EndFlushes((first, second), True)]
    assert talk.unanswered_flushes == [third]
    assert feed(talk, encode_error(other.msgid, errno.ENOSYS, "what?")) == [EndFlushes((third,), False)]
    assert talk.unanswered_flushes == []


def test_the_daemon_never_has_too_many_requests() -> None:
    events = [an_event(f"e{i}") for i in range(1000)]
    talk = DataConnection([], ring_size=RING)
    waiting = asked(talk.requests(events))
    assert len(waiting) == MAX_UNANSWERED - 1
    assert talk.requests(events) == b""
    feed(talk, status_mapped() + ring_mapped(), [33, 44, 45])
    waiting = waiting[2:] + asked(talk.requests(events))
    assert len(waiting) == MAX_UNANSWERED - 1
    assert talk.can_sync
    waiting += asked(talk.requests(events, [Flush(1)]))
    assert len(waiting) == MAX_UNANSWERED
    assert not talk.can_sync
    seen = 0
    while waiting:
        request = waiting.pop(0)
        if request.method == "DIAG_IOCSREG":
            feed(talk, registered(request.msgid, 1 + seen, seen))
            seen += 1
        else:
            feed(talk, encode_response(request.msgid, None))
        waiting += asked(talk.requests(events))
        assert len(waiting) <= MAX_UNANSWERED
    assert seen == 1000
    assert talk.is_idle(events)


# ---- what a daemon says unasked


def test_notifications() -> None:
    talk = DataConnection([], ring_size=None)
    talk.requests([])
    data = (
        encode_notification("error", [errno.EPROTO, "I do not like this"])
        + encode_notification("write_error", [errno.EBADF, 2, 3])
        + encode_notification("write_error", ["all", "of", "them"])
        + encode_notification("something_new", ["in", 2030])
    )
    assert feed(talk, data) == [
        Warn("the daemon ends the connection: %s", "I do not like this"),
        CountRefused("EBADF", 2, 3),
    ]


@pytest.mark.parametrize(
    ("data", "nr_fds", "text"),
    [
        (b"\xc1", 0, "0xc1"),
        (encode_record(b"\0\0\0\0"), 0, "event record"),
        (encode_request(0, "x", []), 0, "sent a Request"),
        (encode_response(99, None), 0, "msgid 99"),
        (encode_error(0, errno.EPERM, "go away"), 0, "mmap_status: go away"),
        (status_mapped(), 0, "descriptor"),
        (encode_response(0, {"size": 0}), 1, "size"),
        (encode_response(0, {"size": "much"}), 1, "size"),
        (encode_response(0, None), 1, "map"),
        (ring_mapped(), 1, "descriptor"),
        (encode_response(1, {"size": RING, "version": 3}), 2, "version"),
        (encode_response(1, {"size": -1, "version": 2}), 2, "size"),
        (encode_response(2, "yes"), 0, "DIAG_IOCSREG"),
        (registered(2, 0, 0), 0, "status_index"),
        (registered(2, 1, -1), 0, "write_index"),
    ],
)
def test_a_daemon_that_cannot_be_understood_ends_the_connection(data: bytes, nr_fds: int, text: str) -> None:
    talk = DataConnection([], ring_size=RING)
    talk.requests([an_event("one")])
    received = talk.receive(encode_notification("error", [1, "first"]) + data, range(50, 50 + nr_fds))
    # What came before is acted on.
    assert next(received) == Warn("the daemon ends the connection: %s", "first")
    with pytest.raises(ProtocolError, match=text):
        list(received)
    assert talk.state is not State.UP
