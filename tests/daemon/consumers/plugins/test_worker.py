"""The thread of a plug-in: batches and jobs in the order of positions, and its end."""

import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.daemon.record_path import tracepoint, write
from utracefs_protocol.limits import MIN_STREAM_RING
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefsd.consumers.plugins.worker import SLOW_S, Job, Worker
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink


class Bench:
    def __init__(self) -> None:
        self.sink = StreamSink(MIN_STREAM_RING)
        self.event = tracepoint(event_id=1000)
        self.event.attach(StreamProbe(self.sink, "plug", 1000, bytes))
        self.log: list[object] = []
        self.slow: list[float] = []
        self.sleep_s = 0.0
        self.worker = Worker("test", self.sink, self.take, self.slow.append, time.monotonic_ns)

    def take(self, ring: StreamRing) -> None:
        self.log += [struct.unpack("<I", data)[0] for *_, data in ring.tuples()]
        time.sleep(self.sleep_s)

    def emit(self, *numbers: int) -> None:
        for number in numbers:
            write(self.event, struct.pack("<I", number))


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    assert bench.worker.close(20)


def test_jobs_are_between_records(bench: Bench) -> None:
    bench.emit(1, 2)
    bench.worker.post(lambda: bench.log.append("job"))
    bench.emit(3)
    assert bench.worker.post(lambda: "done").result(20) == "done"
    assert bench.log == [1, 2, "job", 3]


class _Late(deque[Job[None]]):
    """Jobs, of which one is posted just after the thread found none."""

    def __init__(self, post: Callable[[], None]) -> None:
        self._post: Callable[[], None] | None = post

    def __bool__(self) -> bool:
        found = len(self) > 0
        if not found and self._post is not None:
            post, self._post = self._post, None
            post()
        return found


def test_a_job_that_is_posted_while_the_thread_looks(bench: Bench) -> None:
    """Records behind it are not taken before it is done: it may change how they are read."""

    def post() -> None:
        bench.worker.post(lambda: bench.log.append("job"))
        bench.emit(1)
        bench.sink.publish()

    bench.worker._jobs = _Late(post)
    bench.emit(0)
    bench.sink.publish()
    while len(bench.log) < 3:
        time.sleep(0.001)
    assert bench.log == [0, "job", 1]


def test_a_job_that_exits(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match=r"SystemExit"):
        bench.worker.post(sys.exit).result(20)
    assert bench.worker.post(lambda: 1).result(20) == 1


def test_a_job_that_fails(bench: Bench) -> None:
    job = bench.worker.post(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        job.result(20)
    assert bench.worker.post(threading.get_ident).result(20) != threading.get_ident()


def test_a_result_that_is_not_there_yet(bench: Bench) -> None:
    let = threading.Event()
    job = bench.worker.post(lambda: let.wait(60))
    with pytest.raises(TimeoutError):
        job.result(0.01)
    assert not job.wait(0)
    let.set()
    assert job.result(20)


def test_slow_batches_are_reported_once_each(bench: Bench) -> None:
    bench.sleep_s = 1.5 * SLOW_S
    for number in range(2):
        bench.emit(number)
        bench.sink.publish()
        while number not in bench.log:
            time.sleep(0.001)
        while len(bench.slow) == number:
            bench.worker.look()
        bench.worker.look()
        bench.worker.post(lambda: None).wait(60)
    bench.worker.look()
    assert len(bench.slow) == 2
    assert all(took > SLOW_S for took in bench.slow)


def test_the_rest_is_taken_at_the_end() -> None:
    bench = Bench()
    bench.emit(1, 2)
    bench.worker.post(lambda: bench.log.append("last"))
    assert bench.worker.close(20)
    assert bench.log == [1, 2, "last"]
