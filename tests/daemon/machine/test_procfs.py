"""What /proc and the machine tell: of threads, whatever their names hold, of cpus and memory."""

import os
import threading

from utracefsd.machine import procfs


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
