"""Names by thread id: at print time, after the end of a task, and when a number is reused."""

import errno

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.machine.comms import CommTable, Task


class Machine:
    """A /proc of its own."""

    def __init__(self) -> None:
        self.tasks: dict[int, Task] = {}
        self.tgids: dict[int, int] = {}
        self.comms = CommTable(self.tasks.get, self.tgids.get)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_names_are_looked_up_when_printed(machine: Machine) -> None:
    machine.tasks[7] = Task(b"old", 1)
    assert machine.comms.comm(7) == b"old"
    machine.tasks[7] = Task(b"new", 1)
    assert machine.comms.comm(7) == b"new"


def test_a_name_outlives_its_task(machine: Machine) -> None:
    machine.tasks[7] = Task(b"gone", 1)
    machine.comms.remember(7)
    del machine.tasks[7]
    assert machine.comms.comm(7) == b"gone"
    assert machine.comms.saved_cmdlines_text() == b"7 gone\n"


def test_a_stranger_has_no_name(machine: Machine) -> None:
    assert machine.comms.comm(7) == b"<...>"
    machine.comms.remember(7)
    machine.comms.remember(0)
    assert machine.comms.saved_cmdlines_text() == b""


def test_a_thread_is_met(machine: Machine) -> None:
    machine.tasks[7] = Task(b"writer", 1, cpu=3)
    machine.tgids[7] = 5
    assert machine.comms.meet(7) == (5, 3)
    machine.tasks[7] = Task(b"renamed", 1, cpu=2)
    assert machine.comms.meet(7) == (5, 2)
    machine.tasks[7], machine.tgids[7] = Task(b"other", 2), 6  # another thread has its number
    assert machine.comms.meet(7) == (6, 0)
    machine.tasks[7] = Task(b"writer", 2)
    assert machine.comms.meet(7) == (6, 0)
    del machine.tasks[7], machine.tgids[7]
    assert machine.comms.comm(7) == b"writer"
    assert machine.comms.meet(8) == (None, None)


def test_a_number_used_again_does_not_rename_old_records(machine: Machine) -> None:
    machine.tasks[7] = Task(b"traced", 1)
    machine.comms.remember(7)
    machine.tasks[7] = Task(b"other", 2)
    assert machine.comms.comm(7) == b"traced"
    machine.comms.remember(7)  # it is a producer itself now
    assert machine.comms.comm(7) == b"other"


def test_thread_groups_are_learned_while_the_option_is_on(machine: Machine) -> None:
    machine.tgids.update({7: 5, 8: 5})
    machine.comms.wrote(7)
    assert machine.comms.tgid(7) == 0
    machine.comms.record_tgid = True
    machine.comms.wrote(8)
    machine.comms.wrote(7)
    machine.comms.wrote(99)
    assert machine.comms.tgid(7) == 5
    assert machine.comms.saved_tgids_text() == b"7 5\n8 5\n"


def test_a_known_thread_group_is_not_looked_up_and_not_all_are_kept(machine: Machine) -> None:
    machine.comms.record_tgid = True
    for tid in range(1, 40_000):
        machine.comms.wrote(tid, 5)
    assert machine.comms.tgid(39_999) == 5
    assert len(machine.comms.saved_tgids_text().splitlines()) == 32768


def test_capacity_is_rounded_as_in_the_kernel(machine: Machine) -> None:
    assert machine.comms.capacity == 6552
    machine.comms.set_capacity(1)
    assert machine.comms.capacity == 6552
    machine.comms.set_capacity(6553)
    assert machine.comms.capacity == 19659
    for number in (0, 32769):
        with pytest.raises(TraceError) as caught:
            machine.comms.set_capacity(number)
        assert caught.value.errno == errno.EINVAL


def test_the_oldest_names_go_first(machine: Machine) -> None:
    machine.comms.capacity = 2
    for pid in (1, 2, 3):
        machine.tasks[pid] = Task(b"p%d" % pid, pid)
        machine.comms.remember(pid)
    assert machine.comms.saved_cmdlines_text() == b"2 p2\n3 p3\n"


def test_a_user_with_many_ended_threads_makes_none_of_others_forgotten(machine: Machine) -> None:
    table = machine.comms
    assert table.has_ended(100, 10, 1, share=1, comm=b"ended")
    machine.tasks[100] = Task(b"other", 5)  # a process of another user gets the number
    table.remember(100, 100)
    del machine.tasks[100]
    for tid in range(1000, 1000 + table.capacity // 2):
        assert table.has_ended(tid, 10, 1, share=1, comm=b"ended")
    assert table.comm(100) == b"other"
    assert table.has_ended(7, 10, 1, share=1, comm=b"ended")
    assert table.comm(1000) == b"<...>"


def test_the_process_of_a_thread_that_has_ended(machine: Machine) -> None:
    assert machine.comms.has_ended(100, 10, 1, share=1, comm=b"ended")
    assert list(machine.comms.ancestors(100)) == [10]
    assert list(machine.comms.ancestors(101)) == []
