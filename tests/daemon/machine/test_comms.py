"""Names by thread id: at print time, after the end of a task, and when a number is used again."""

import errno
import os
import threading

import pytest

from utracefs_protocol.errors import TraceError
from utracefsd.machine import procfs
from utracefsd.machine.comms import CommTable, Task, saved_cmdlines_text, saved_tgids_text


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


def test_proc_tells_of_this_thread() -> None:
    task = procfs.read_task(os.getpid())
    assert task is not None
    with open("/proc/self/comm", "rb") as file:
        assert task.comm == file.read().rstrip(b"\n")
    assert task.start_time > 0
    assert procfs.read_tgid(threading.get_native_id()) == os.getpid()


def test_proc_names_may_hold_anything() -> None:
    with open("/proc/self/comm", "rb") as file:
        before = file.read().rstrip(b"\n")
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(b"a) (b\\n 1 \xff")
        task = procfs.read_task(os.getpid())
        assert task is not None
        assert task.comm == b"a) (b\\n 1 \xff"
    finally:
        with open("/proc/self/comm", "wb") as file:
            file.write(before)


def test_proc_knows_no_such_thread() -> None:
    assert procfs.read_task(1 << 30) is None
    assert procfs.read_tgid(1 << 30) is None


def test_the_machine() -> None:
    assert 1 <= procfs.possible_cpus() <= 8192
    assert procfs.free_memory_kb() > 0
    assert 0 <= procfs.current_cpu() < procfs.possible_cpus()
    assert procfs.make_comm_table().comm(os.getpid()) != b"<...>"


def test_saved_names() -> None:
    assert saved_cmdlines_text([(54, b"python3"), (7, b"a b")]) == b"54 python3\n7 a b\n"
    assert saved_tgids_text([(54, 50), (7, 7)]) == b"7 7\n54 50\n"
