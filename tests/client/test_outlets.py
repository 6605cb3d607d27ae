"""The FIFO is judged by a list of records, the ring by its memory."""

from __future__ import annotations

import pickle
import signal
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.client.fake_daemon import wait_for
from tests.client.workbench import FarRing, Workbench
from utracefs import _event
from utracefs._outlets import BROKEN, WANTED, Fifo, RingOutlet
from utracefs_protocol.connection import encode_request

# ---- the FIFO


def test_records_that_say_who_wrote_them() -> None:
    """Thread, cpu, and once the name; also when they move to another connection."""
    bench = Workbench(4096)
    try:
        event = bench.event(b"t u32 a", 0)
        bench.fifo.sign(True)
        event.emit(1)
        event.emit(2)
        _event.move(bench.map, bench.fifo, [(event, 1, 7)], bench.fifo, [event])
        event.emit(3)
        bench.fifo.sign(False)
        event.emit(4)
        *signed, plain = bench.send()
        name = (
            Path(f"/proc/self/task/{threading.get_native_id()}/comm")
            .read_bytes()
            .rstrip(b"\n")
            .ljust(16, b"\0")
        )
        for n, (index, data) in enumerate(signed, 1):
            tid, _, flags, write_index = struct.unpack_from("<IHHI", data)
            assert (index, tid, write_index) == (0xFFFFFFFF, threading.get_native_id(), 7)
            assert (flags, data[12:]) == (
                (2, struct.pack("<I", n) + name) if n == 1 else (0, struct.pack("<I", n))
            )
        assert plain == (7, struct.pack("<I", 4))
        bench.fifo.sign(True)
        event.emit(5)
        assert bench.send()[0][1].endswith(name), "once on each connection"
    finally:
        bench.close()


def test_a_thread_that_writes_by_turns_says_its_name_once_on_each_connection() -> None:
    benches = [Workbench(4096) for _ in range(3)]
    try:
        events = []
        for bench in benches:
            bench.fifo.sign(True)
            events.append(bench.event(b"t u32 a", 0))
        for _ in range(3):
            for event in events:
                event.emit(1)
        for bench in benches:
            assert [len(data) for _, data in bench.send()] == [4 + 12 + 16, 4 + 12, 4 + 12]
    finally:
        for bench in benches:
            bench.close()


@pytest.mark.parametrize(
    ("size", "signs", "names"),
    [
        (65535 - 24 - 12 - 20, True, True),
        (65500, True, False),
        (65515, True, False),
        (65516, False, False),
        (65525, False, False),
    ],
)
def test_a_record_without_room_says_less(size: int, signs: bool, names: bool) -> None:
    bench = Workbench(1 << 20)
    try:
        event = bench.event(b"t __rel_loc u8[] a", 3)
        bench.fifo.sign(True)
        event.emit(bytes(size - 4))
        ((index, data),) = bench.send()
        assert event.lost == 0
        assert index == (0xFFFFFFFF if signs else 3)
        assert len(data) == size + 12 * signs + 16 * names
    finally:
        bench.close()


def test_what_does_not_fit_is_lost_and_counted_and_the_rest_arrives_in_order() -> None:
    bench = Workbench(4096)
    try:
        event = bench.event(b"t u32 a; char[50] b")
        for i in range(500):
            event.emit(i, "x")
        kept = 4096 // (2 + 4 + 54)
        assert event.emitted == 500
        assert event.lost == bench.fifo.counts.lost == 500 - kept
        assert bench.fifo.counts.records_in == bench.fifo.pending() == kept
        got = bench.send()
        assert [int.from_bytes(payload[:4], "little") for _, payload in got] == list(range(kept))
        event.emit(1000, "y")
        assert len(bench.send()) == 1
    finally:
        bench.close()


def test_a_record_larger_than_the_fifo_is_lost() -> None:
    bench = Workbench(4096)
    try:
        event = bench.event(b"t __rel_loc u8[] a")
        event.emit(b"x" * 5000)
        event.emit(b"y")
        assert event.lost == 1
        assert len(bench.send()) == 1
    finally:
        bench.close()


@settings(max_examples=60)
@given(st.data())
def test_any_mix_of_records_control_messages_and_sends_comes_out_in_order(data: st.DataObject) -> None:
    """Small buffers everywhere, so that records wrap and sends are partial."""
    bench = Workbench(4096)
    try:
        bench.narrow()
        event = bench.event(b"t u32 number; __rel_loc u8[] data")
        records: list[Any] = []
        got: list[Any] = []
        controls = 0
        number = 0
        for _ in range(data.draw(st.integers(1, 25))):
            match data.draw(st.sampled_from(["emit", "emit", "send", "receive", "control"])):
                case "emit":
                    for size in data.draw(st.lists(st.integers(0, 600), max_size=10)):
                        lost = event.lost
                        number += 1
                        event.emit(number, b"x" * size)
                        if event.lost == lost:
                            records.append(number)
                case "send":
                    bench.pump_once()
                case "receive":
                    got += bench.receive()
                case "control":
                    if not bench.fifo.control_pending:
                        after = data.draw(st.booleans())
                        controls += 1
                        request = encode_request(controls, f"c{controls}", ["x" * 300])
                        bench.fifo.set_control(request, bench.fifo.position if after else 0)
                        if after:
                            records.append(f"c{controls}")
            assert bench.fifo.pending() <= len(records)
        got += bench.send()
        plain = [one if isinstance(one, str) else int.from_bytes(one[1][:4], "little") for one in got]
        assert [one for one in plain if isinstance(one, int)] == [
            one for one in records if isinstance(one, int)
        ]
        assert len([one for one in plain if isinstance(one, str)]) == controls
        for place, one in enumerate(records):
            if isinstance(one, str):  # all records before it are before it
                before = {r for r in records[:place] if isinstance(r, int)}
                assert before <= set(plain[: plain.index(one)])
        assert event.emitted == number
        assert event.lost == number - len([one for one in records if isinstance(one, int)])
    finally:
        bench.close()


def test_control_messages_are_sent_one_batch_at_a_time(bench: Workbench) -> None:
    bench.fifo.set_control(b"\x93\x02\xa1x\x90", 0)
    with pytest.raises(RuntimeError, match="still being sent"):
        bench.fifo.set_control(b"\x93\x02\xa1x\x90", 0)


def test_the_sender_sleeps_without_timers_and_the_first_record_wakes_it(bench: Workbench) -> None:
    event = bench.event(b"t u32 a")
    stopped = threading.Event()

    def run() -> None:
        while not bench.fifo.pump(bench.near) & (WANTED | BROKEN):
            pass
        stopped.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        # asleep: in poll(2) with no time limit, and it stays there
        status = Path(f"/proc/self/task/{thread.native_id}/status")
        last = [""]

        def still() -> bool:
            before, last[0] = last[0], status.read_text().partition("voluntary_ctxt_switches:")[2]
            return before == last[0]

        wait_for(still)
        for i in range(3):
            event.emit(i)
            wait_for(lambda: not bench.fifo.pending_bytes)
        assert len(bench.receive()) == 3
    finally:
        bench.fifo.wake()
        thread.join(5)
    assert stopped.is_set()


def test_signals_do_not_make_a_wait_longer() -> None:
    fifo = Fifo(4096)
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    enough = threading.Timer(2, signal.setitimer, (signal.ITIMER_REAL, 0))
    enough.start()
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    begin = time.monotonic()
    try:
        assert fifo.pump(None, 50) == 0
        took = time.monotonic() - begin
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        enough.cancel()
        signal.signal(signal.SIGALRM, before)
    assert 0.05 <= took < 1.5


def test_a_full_socket_blocks_nobody(bench: Workbench) -> None:
    event = bench.event(b"t u32 a; char[1000] b")
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            bench.fifo.pump(bench.near)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for i in range(3000):
            event.emit(i, "")
        assert event.lost > 0
        got: list[Any] = []

        def all_there() -> bool:
            got.extend(bench.receive())
            return len(got) == 3000 - event.lost

        wait_for(all_there)
    finally:
        stop.set()
        bench.fifo.wake()
        thread.join(5)


@pytest.mark.parametrize("capacity", [0, 4095, 5000])
def test_a_capacity_is_a_power_of_two(capacity: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Fifo(capacity)


# ---- the data ring


def test_the_doorbell_is_rung_when_the_daemon_sleeps_and_when_the_ring_is_half_full(
    bench: Workbench, far_ring: FarRing
) -> None:
    event = bench.event(b"t u64 a")
    _event.follow(bench.map, far_ring.outlet(bench.fifo), [(event, 1, 4)])
    event.emit(0)
    assert far_ring.bells() == 0
    far_ring.want_wakeup()
    event.emit(0)
    event.emit(0)
    assert far_ring.bells() == 1
    for _ in range(far_ring.SIZE // 32 // 2 - 3):
        event.emit(0)
    assert far_ring.bells() == 0
    event.emit(0)
    assert far_ring.bells() == 1
    assert bench.fifo.counts.records_in == far_ring.SIZE // 64 + 1


def test_what_does_not_fit_the_ring_is_lost_and_counted(bench: Workbench, far_ring: FarRing) -> None:
    event = bench.event(b"t u64 a")
    ring = far_ring.outlet(bench.fifo)
    assert ring.size == far_ring.SIZE
    _event.follow(bench.map, ring, [(event, 1, 4)])
    room = far_ring.SIZE // 32
    for i in range(room + 3):
        event.emit(i)
    assert event.lost == bench.fifo.counts.lost == 3
    assert [int.from_bytes(payload, "little") for _, payload in far_ring.records()] == list(range(room))


def test_a_ring_that_cannot_be_mapped(bench: Workbench, far_ring: FarRing) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        RingOutlet(bench.fifo, far_ring.fd, far_ring.doorbell, 5000)
    far_ring.fd.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        RingOutlet(bench.fifo, far_ring.fd, far_ring.doorbell, 64 << 10)


def test_outlets_belong_to_one_process(bench: Workbench, far_ring: FarRing) -> None:
    for one in (bench.fifo, bench.fifo.counts, far_ring.outlet(bench.fifo)):
        with pytest.raises(TypeError, match="one process"):
            pickle.dumps(one)
