"""Where events lead, and how they move; judged by what the far end receives."""

from __future__ import annotations

import os

import pytest

from tests.client.workbench import FarRing, Workbench
from utracefs import _event
from utracefs_protocol.connection import Connection, encode_request


def test_a_disabled_event_looks_at_nothing(bench: Workbench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    assert not event
    assert not event.enabled
    event.emit("nonsense")
    assert event.emitted == 0
    os.pwrite(bench.status_fd, b"\x82", 1)
    assert event
    assert event.enabled
    _event.set_all_off([event])
    assert not event


def test_every_bit_of_the_status_byte_counts_even_one_that_looks_like_the_sentinel(bench: Workbench) -> None:
    bench.status = 0
    event = bench.event(b"t u8 a")
    for bit in range(8):
        if bit != 6:
            os.pwrite(bench.status_fd, bytes([1 << bit]), 1)
            assert event


def test_numbers_of_the_daemon_are_checked_before_anything_follows_them(bench: Workbench) -> None:
    event = bench.event(b"t u8 a")
    for place, write_index in ((0, 1), (4096, 1), (1, -1), (1, 1 << 31)):
        with pytest.raises(ValueError, match="out of range"):
            _event.follow(bench.map, bench.fifo, [(event, place, write_index)])
        with pytest.raises(ValueError, match="out of range"):
            _event.move(bench.map, bench.fifo, [(event, place, write_index)], bench.fifo, [])
    assert event.index == 1


# ---- moving to another connection


def test_a_new_connection_sends_whole_records_with_their_new_index() -> None:
    bench = Workbench(8192)
    try:
        bench.narrow()
        kept = bench.event(b"kept u32 n; char[200] x", 0)
        gone = bench.event(b"gone u32 n; char[200] x", 1)
        for i in range(15):
            kept.emit(i, "")
            gone.emit(i, "")
        bench.pump_once()  # some are on their way, one of them in part
        assert 0 < bench.fifo.pending() < 30
        before = bench.receive()
        bench.near.close()
        bench.far.close()

        _event.set_all_off([kept, gone])
        bench.connect()
        bench.messages = Connection(max_object=None, allow_records=True)
        bench.fifo.begin_stream()
        kept.emit(99, "")  # off
        bench.fifo.set_control(encode_request(1, "hello", []), 0)
        bench.pump_once()
        bench.pump_once()
        assert bench.receive() == ["hello"]
        waiting = bench.fifo.pending()
        _event.move(bench.map, bench.fifo, [(kept, 1, 7)], bench.fifo, [kept, gone])
        after = bench.send()
        assert {index for index, _ in after} == {7}
        numbers = [int.from_bytes(payload[:4], "little") for index, payload in before if index == 0]
        numbers += [int.from_bytes(payload[:4], "little") for _, payload in after]
        # whole records that the old socket held and nobody read are what a dead daemon costs
        assert numbers[-len(after) :] == list(range(15 - len(after), 15))
        assert kept.lost == 0
        assert gone.lost == bench.fifo.counts.lost == waiting - len(after)
        assert kept.emitted == 15
        kept.emit(15, "")
        assert [index for index, _ in bench.send()] == [7]
    finally:
        bench.close()


def test_giving_up_counts_all_that_is_left(bench: Workbench) -> None:
    event = bench.event(b"t u32 a", 0)
    for i in range(10):
        event.emit(i)
    _event.give_up_fifo(bench.fifo, [event])
    assert event.lost == 10
    assert bench.fifo.pending() == 0


# ---- with a data ring


def one_byte(number: int) -> bytes:
    return bytes([number])


def test_events_that_move_to_a_ring_write_there_and_what_is_pending_moves_too(
    bench: Workbench, far_ring: FarRing
) -> None:
    event = bench.event(b"t u8 a", 0)
    event.emit(1)
    _event.set_all_off([event])
    bench.fifo.begin_stream()
    ring = far_ring.outlet(bench.fifo)
    _event.move(bench.map, ring, [(event, 1, 4)], bench.fifo, [event])
    event.emit(2)
    later = bench.event(b"later u8 a")
    _event.follow(bench.map, ring, [(later, 2, 5)])
    later.emit(3)
    assert bench.send() == []
    assert far_ring.records() == [(4, one_byte(1)), (4, one_byte(2)), (5, one_byte(3))]
    assert bench.fifo.totals() == (3, 3, 0, 0)


def test_what_is_pending_and_has_no_room_in_the_ring_stays(bench: Workbench, far_ring: FarRing) -> None:
    event = bench.event(b"t __rel_loc u8[] a", 0)
    for _ in range(3):
        event.emit(bytes(30000))
    _event.set_all_off([event])
    bench.fifo.begin_stream()
    _event.move(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)], bench.fifo, [event])
    assert [index for index, _ in far_ring.records()] == [4, 4]
    assert [index for index, _ in bench.send()] == [4]
    assert bench.fifo.totals() == (3, 3, 0, 0)
    assert event.lost == 0


def test_a_ring_is_mapped_as_long_as_an_event_leads_there(bench: Workbench, far_ring: FarRing) -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:ring" in line for line in maps)

    event = bench.event(b"t u8 a")
    before = mapped()
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])
    assert mapped() == before + 2
    event.emit(1)
    _event.set_all_off([event])
    assert mapped() == before
    assert far_ring.records() == [(4, one_byte(1))]


def test_an_emit_that_finds_its_ring_gone_goes_to_the_fifo(bench: Workbench, far_ring: FarRing) -> None:
    """The session thread may turn everything off while an argument is converted."""
    event = bench.event(b"t u8 a")
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])

    class Disconnecting:
        def __index__(self) -> int:
            _event.set_all_off([event])
            return 2

    event.emit(Disconnecting())
    assert far_ring.records() == []
    assert bench.send() == [(4, one_byte(2))]


def test_what_a_ring_held_that_is_given_up_is_lost(bench: Workbench, far_ring: FarRing) -> None:
    one, two = bench.event(b"one u8 a"), bench.event(b"two u8 a")
    ring = far_ring.outlet(bench.fifo)
    _event.follow(bench.map, ring, [(one, 1, 0), (two, 2, 3)])
    for i in range(5):
        one.emit(i)
        two.emit(i)
    _event.set_all_off([one, two])
    _event.give_up_ring(ring, [one])
    assert (one.lost, two.lost) == (5, 0)
    assert bench.fifo.totals() == (10, 0, 0, 10)


def test_in_a_forked_child_events_leave_the_parents_ring_and_follow_its_byte(
    bench: Workbench, far_ring: FarRing
) -> None:
    event = bench.event(b"t u8 a")
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])
    event.emit(1)
    bench.fifo.start_child()
    _event.start_child([event])
    assert bench.fifo.totals() == (0, 0, 0, 0)
    assert (event.emitted, repr(event).endswith(", on>")) == (0, True)
    _event.give_up_waiting([event])
    bench.fifo.open_bell()
    assert event
    event.emit(2)
    assert far_ring.records() == [(4, one_byte(1))]
    assert bench.send() == [(4, one_byte(2))]
    os.pwrite(bench.status_fd, b"\0", 1)
    assert not event
