"""Names of writing threads: when they are looked up, and how often at most."""

from __future__ import annotations

import time

import pytest

from utracefsd.machine._writer_names import WriterNames

SECOND_NS = 1_000_000_000


class Tasks:
    """A /proc that the test sets."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.by_pid: dict[int, bytes] = {}
        self.names = WriterNames(self.read)

    def read(self, pid: int) -> bytes:
        self.asked.append(pid)
        return self.by_pid[pid]

    def name(self, pid: int, *, tgid: int | None = None, ts_ns: int = 0) -> bytes:
        return self.names.name(pid, tgid=pid if tgid is None else tgid, ts_ns=ts_ns)


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


def later() -> int:
    """A time of a record that is younger than any present answer."""
    return time.monotonic_ns() + 10 * SECOND_NS


def test_a_name_is_looked_up_once(tasks: Tasks) -> None:
    tasks.by_pid[5] = b"five"
    now = time.monotonic_ns()
    assert [tasks.name(5, ts_ns=now + i) for i in range(3)] == [b"five"] * 3
    assert tasks.asked == [5]
    assert tasks.names.lookups == 1


def test_a_record_that_is_younger_than_the_answer_wants_a_new_one(tasks: Tasks) -> None:
    tasks.by_pid[5] = b"before"
    assert tasks.name(5) == b"before"
    tasks.by_pid[5] = b"behind"
    assert tasks.name(5, ts_ns=time.monotonic_ns()) == b"before"
    assert tasks.name(5, ts_ns=later()) == b"behind"
    assert tasks.name(5, ts_ns=0) == b"behind"
    assert tasks.asked == [5, 5]


def test_two_threads_in_one_place(tasks: Tasks) -> None:
    """Their numbers are 256 apart; neither is looked up again."""
    tasks.by_pid = {3: b"three", 259: b"other"}
    assert [tasks.name(pid) for pid in (3, 259, 3, 259)] == [b"three", b"other"] * 2
    assert tasks.asked == [3, 259]


def test_long_names_and_odd_thread_ids(tasks: Tasks) -> None:
    tasks.by_pid = {1: b"x" * 40, 0: b"swapper", -7: b"minus", 2: b""}
    assert [tasks.name(pid) for pid in (1, 0, -7, 2)] == [b"x" * 15, b"swapper", b"minus", b""]


def test_without_budget_the_last_known_name_is_used(tasks: Tasks) -> None:
    """A thread that has ended sent its name with its record: no lookup is needed."""
    tasks.by_pid = {pid: b"t%d" % pid for pid in range(1, 2000)}
    tasks.names = WriterNames(tasks.read, {pid: b"heard%d" % pid for pid in range(60)}.get)
    found = [tasks.name(pid, tgid=1) for pid in range(1, 101)]
    assert found[:32] == [b"t%d" % pid for pid in range(1, 33)]
    assert found[32:] == [b"heard%d" % pid for pid in range(33, 60)] + [b"<...>"] * 41


def test_one_process_cannot_ask_for_ever(tasks: Tasks) -> None:
    tasks.by_pid = {pid: b"t%d" % pid for pid in range(1, 2000)}
    found = [tasks.name(pid, tgid=1) for pid in range(1, 101)]
    assert found == [b"t%d" % pid for pid in range(1, 33)] + [b"<...>"] * 68
    assert tasks.name(1000, tgid=1000) == b"t1000"
    # Known ones keep their name, also while it could be another by now.
    assert tasks.name(7, tgid=1, ts_ns=later()) == b"t7"
    assert len(tasks.asked) == 33


def test_all_processes_together_cannot_either(tasks: Tasks) -> None:
    tasks.by_pid = {pid: b"t%d" % pid for pid in range(1, 2000)}
    found = [tasks.name(pid) for pid in range(1, 2000)]
    assert found.count(b"<...>") == 2000 - 1 - 1024


def test_what_was_learned_first_is_forgotten_first(tasks: Tasks) -> None:
    """4,096 names are kept. Each is looked up in another tenth of a second, so the test simulates that by
    processes of their own, a thousand at a time."""
    tasks.by_pid = {pid: b"t%d" % pid for pid in range(1, 6000)}
    deadline = time.monotonic() + 60
    for pid in range(1, 4099):
        while tasks.name(pid) == b"<...>":
            assert time.monotonic() < deadline
    asked = len(tasks.asked)
    assert tasks.name(4098) == b"t4098"
    assert len(tasks.asked) == asked
    while tasks.name(1) == b"<...>":
        assert time.monotonic() < deadline
    assert tasks.asked[asked:] == [1]


def test_a_mistake_costs_the_name(tasks: Tasks) -> None:
    assert tasks.name(9) == b"<...>"
    assert tasks.names.faults == 1
    tasks.by_pid[9] = b"nine"
    assert tasks.name(9) == b"nine"
