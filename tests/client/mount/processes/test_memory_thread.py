"""Jobs in a thread of their own, results in the loop."""

from __future__ import annotations

import errno
import functools
import logging
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from utracefs.mount.operation import Operation, Steps
from utracefs.mount.processes.memory_thread import HANG_S, MemoryThread


@pytest.fixture
def memory() -> Iterator[MemoryThread]:
    one = MemoryThread()
    yield one
    one.close(20)


def turn_until(memory: MemoryThread, condition: Callable[[], object]) -> None:
    while not condition():
        assert select.select([memory.fileno()], [], [], 20)[0]
        memory.on_ready()


def test_jobs_in_their_order_and_results_in_the_loop(memory: MemoryThread) -> None:
    seen: list[Any] = []
    threads = set()

    def job(number: int) -> int:
        threads.add(threading.get_ident())
        memory.post(lambda: seen.append(f"from {number}"))
        return number

    for number in range(3):
        memory.submit(functools.partial(job, number), lambda *result: seen.append(result))
    turn_until(memory, lambda: len(seen) == 6)
    assert seen == ["from 0", (0, None), "from 1", (1, None), "from 2", (2, None)]
    assert len(threads) == 1 and threading.get_ident() not in threads


def test_urgent_jobs_come_first(memory: MemoryThread) -> None:
    seen: list[str] = []
    goes_on = threading.Event()
    memory.submit(lambda: goes_on.wait(60), lambda *_: None)
    memory.submit(lambda: seen.append("other"), lambda *_: None)
    memory.submit(lambda: seen.append("urgent"), lambda *_: None, is_urgent=True)
    memory.submit(lambda: seen.append("urgent, too"), lambda *_: None, is_urgent=True)
    goes_on.set()
    turn_until(memory, lambda: len(seen) == 3)
    assert seen == ["urgent", "urgent, too", "other"]


def test_a_long_job_lets_urgent_ones_in(memory: MemoryThread) -> None:
    seen: list[str] = []
    began, goes_on = threading.Event(), threading.Event()

    def long() -> None:
        began.set()
        goes_on.wait(60)
        seen.append("first half")
        memory.run_urgent()
        seen.append("second half")

    def resume(_result: Any, error: OSError | None) -> None:
        seen.append("told" if error is None else str(error.errno))

    memory.submit(long, resume)
    assert began.wait(60)
    memory.submit(lambda: seen.append("urgent"), resume, is_urgent=True)
    memory.submit(lambda: 1 // 0, resume, is_urgent=True)
    memory.submit(lambda: seen.append("other"), resume)
    goes_on.set()
    turn_until(memory, lambda: sum(one in ("told", str(errno.EIO)) for one in seen) == 4)
    assert [one for one in seen if one not in ("told", str(errno.EIO))] == [
        "first half",
        "urgent",
        "second half",
        "other",
    ]


def test_errors(memory: MemoryThread, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def fault() -> None:
        raise OSError(errno.EFAULT, "no memory there")

    def resume(_result: Any, error: OSError | None) -> None:
        assert error is not None
        seen.append(error.errno or 0)

    memory.submit(fault, resume)
    memory.submit(lambda: 1 // 0, resume)
    turn_until(memory, lambda: len(seen) == 2)
    assert seen == [errno.EFAULT, errno.EIO]
    assert "unexpected exception" in caplog.text


def test_steps_wait_for_a_job(memory: MemoryThread) -> None:
    ended: list[tuple[bytes, int]] = []

    def steps() -> Steps:
        total = yield memory(sum, [1, 2, 3])
        return b"%d" % total

    operation = Operation(steps(), lambda reply, error: ended.append((reply, error)))
    operation.start()
    operation.interrupt()
    turn_until(memory, lambda: ended)
    assert ended == [(b"6", 0)]


def test_a_job_that_hangs_is_reported_once_and_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    memory = MemoryThread(lambda: now)
    began, goes_on = threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        goes_on.wait(60)

    with caplog.at_level(logging.WARNING):
        memory.submit(job, lambda *_: None)
        began.wait(60)
        memory.submit(int, lambda *_: None)
        assert caplog.text == ""
        now = HANG_S + 1
        memory.submit(int, lambda *_: None)
        memory.submit(int, lambda *_: None)
    assert caplog.text.count("has not answered") == 1
    memory.close(0.01)
    goes_on.set()
    thread = memory.thread
    assert thread is not None
    thread.join(60)
    os.close(memory.fileno())
    memory.close()


def test_without_a_job_there_is_no_thread() -> None:
    memory = MemoryThread()
    assert memory.thread is None
    memory.on_ready()
    memory.close()
    memory.close()
