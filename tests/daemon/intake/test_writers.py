"""The thread and the name that a record counts for, by its claims."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from tests.daemon.intake.producing import NAMED, NAMES, World, number
from utracefsd.intake._writers import AllWriters
from utracefsd.machine.comms import CommTable, Task
from utracefsd.machine.procfs import make_comm_table, read_task

GONE = 4_194_301
"""No thread has this number: it is about the largest there can be."""

ME = os.getpid()


class Named(World):
    """Rings whose threads have names."""

    def __init__(self, rings: int = 1) -> None:
        super().__init__(rings)
        self.comms = make_comm_table()
        self.writers = AllWriters(self.comms)
        me = read_task(ME)
        assert me is not None
        self.start_time = me.start_time
        self.comms.remember(ME, ME)
        for ring in self.rings:
            ring.writers = self.writers.of(ME, self.start_time)

    def say(self, tid: int, comm: bytes = b"", ring: int = 0) -> int:
        """The thread that a record counts for."""
        payload, flags = number(7), 0
        if comm:
            payload, flags = payload + comm.ljust(16, b"\0"), NAMED
        self.producers[ring].emit(0, payload, 1, tid=tid, flags=flags)
        self.intake.take_in()
        self.seen.probe.flush()
        _, _, pid, tgid, entry = self.seen.records.pop()
        assert tgid == ME
        assert entry[:8] == number(7)
        assert not entry[8:].strip(b"\0"), "the name is no part of the payload"
        return pid


@pytest.fixture
def named() -> Iterator[Named]:
    made = Named()
    yield made
    for producer in made.producers:
        producer.close()


def test_a_thread_that_has_ended_has_its_own_name(named: Named) -> None:
    assert named.say(GONE, b"short") == GONE
    assert named.comms.comm(GONE) == b"short"
    assert named.say(GONE) == GONE, "its further records are its, too"
    assert named.say(GONE, b"renamed") == GONE
    assert named.comms.comm(GONE) == b"renamed"


def test_of_a_thread_that_lives_proc_says_the_name(named: Named) -> None:
    own = named.comms.comm(ME)
    assert named.say(ME, b"claimed") == ME
    assert named.comms.comm(ME) == own


def test_a_thread_that_ended_after_it_was_seen_has_its_last_name(named: Named) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id
    tid = thread.native_id
    assert named.say(tid) == tid
    done.set()
    thread.join()
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{tid}"):  # for a moment behind the end of join
        assert time.monotonic() < deadline
    assert named.say(tid, b"the-last") == tid
    assert named.comms.comm(tid) == b"the-last"


def test_a_record_without_a_name_gets_no_thread_that_does_not_exist(named: Named) -> None:
    assert named.say(GONE) == ME
    assert named.comms.comm(GONE) == b"<...>"


def test_no_name_for_a_thread_of_another_process(named: Named) -> None:
    assert named.say(os.getppid(), b"mine") == ME
    assert named.comms.comm(os.getppid()) != b"mine"
    assert named.comms.comm(ME) != b"mine"


def test_no_name_for_a_thread_of_another_process_that_has_ended(named: Named) -> None:
    named.comms.restore({GONE: Task(b"theirs", 5, os.getppid()), GONE - 1: Task(b"whose", 5)})
    for tid in (GONE, GONE - 1):
        assert named.say(tid, b"mine") == ME
    assert named.comms.comm(GONE) == b"theirs"
    assert named.comms.comm(GONE - 1) == b"whose"


def test_a_number_is_looked_at_again_in_the_next_round(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been given to a process that has just begun."""
    assert named.say(GONE, b"early") == GONE
    exists = os.path.exists
    monkeypatch.setattr("os.path.exists", lambda path: path == f"/proc/{GONE}" or exists(path))
    assert named.say(GONE) == ME
    assert named.say(GONE, b"early") == ME


def test_a_process_in_a_namespace_of_its_own_has_numbers_of_its_own(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utracefsd.machine.procfs._read_status", lambda pid, name: 17)
    named.rings[0].writers = named.writers.of(ME, named.start_time)
    assert named.say(GONE, b"inside") == ME


@pytest.mark.parametrize("start_time", [None, 1])
def test_a_process_that_has_ended_itself(monkeypatch: pytest.MonkeyPatch, start_time: int | None) -> None:
    """Its number stays its own, unless another process has it by now."""
    named = Named()
    if start_time is not None:
        named.comms.restore({ME: Task(b"a stranger", start_time, ME)})
    monkeypatch.setattr("os.path.exists", lambda path: False)
    named.comms._read_task = lambda pid: None
    assert named.say(ME, b"at-its-end") == ME
    assert named.comms.comm(ME) == (b"at-its-end" if start_time is None else b"a stranger")
    named.producers[0].close()


@pytest.mark.parametrize(
    ("comm", "shown"),
    [
        (b"sixteen-bytes-xx", b"sixteen-bytes-x"),
        (b"a\0b", b"a"),
        (b"\n\x1b[2J\xff", b"\n\x1b[2J\xff"),  # as from /proc; printing code escapes it
    ],
)
def test_any_bytes_are_a_name(named: Named, comm: bytes, shown: bytes) -> None:
    assert named.say(GONE, comm) == GONE
    assert named.comms.comm(GONE) == shown


@pytest.mark.parametrize("payload", [b"", bytes(15)])
def test_a_record_too_short_for_a_name_has_none(named: Named, payload: bytes) -> None:
    named.producers[0].emit(0, payload, 1, tid=GONE, flags=NAMED)
    named.intake.take_in()
    assert not named.rings[0].corrupt
    assert named.comms.comm(GONE) == b"<...>"
    assert named.say(ME) == ME


def test_a_flood_of_names_costs_a_bounded_time_and_room(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def exists(path: str) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr("os.path.exists", exists)
    for n in range(1000):
        named.producers[0].emit(0, number(n) + b"n%d".ljust(16, b"\0") % n, 1, tid=GONE - n, flags=NAMED)
    named.intake.take_in()
    assert len(asked) <= 2 * (512 + 100)
    monkeypatch.undo()
    comms = CommTable(lambda pid: None, lambda pid: None)
    comms.remember(1, 1, b"of-others")
    for tid in range(2, 40_000):
        assert comms.has_ended(tid, 1, 0, 1000, b"flood")
    assert len(comms) == comms.capacity // 2 + 1
    assert comms.comm(1) == b"of-others"


def test_a_flood_of_names_of_one_thread_costs_a_bounded_time(
    named: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(named.comms, "last_comm", asked.append)
    for n in range(1000):
        named.producers[0].emit(0, number(n) + b"n%d".ljust(16, b"\0") % n, 1, tid=ME, flags=NAMED)
    named.intake.take_in()
    assert len(asked) <= 512 + 100


def test_names_are_requested_again(named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """By numbers that no other ring has, and again while a ring is in use."""
    others = Named(rings=3)
    words = [
        struct.unpack_from("<I", made.memory, NAMES)[0] for made in (*others.producers, *named.producers)
    ]
    assert len({*words, 0, (1 << 32) - 1}) == 6
    deadline = time.monotonic() + 60
    while struct.unpack_from("<I", named.producers[0].memory, NAMES)[0] == words[-1]:  # for a second
        assert time.monotonic() < deadline
        named.say(ME)
    for producer in others.producers:
        producer.close()


def test_a_name_that_is_not_sent_again_is_stored_first() -> None:
    said: list[str] = []
    comms = CommTable(lambda pid: None, lambda pid: None)
    comms.on_kept = lambda pid, task: said.append(f"kept {pid}")
    comms.on_ended = lambda: said.append("saved")
    assert comms.has_ended(GONE, ME, 1, 0, b"short")
    assert said == [f"kept {GONE}", "saved"]
