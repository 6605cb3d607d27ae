"""Streams of a real daemon: records, batches, columns, in every way of waiting; losses; restarts."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import trio

import utracefs
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import DaemonProcess
from utracefs import Session
from utracefs.tree.tracefs import Tracefs

SMALL = 256 << 10


@pytest.fixture
def session(utracefsd: DaemonProcess, new_session: Callable[..., Session]) -> Session:
    return new_session()


@pytest.fixture
def attach(utracefsd: DaemonProcess) -> Iterator[Callable[..., utracefs.Stream]]:
    """Not entered yet; closed at the end."""
    made: list[utracefs.Stream] = []

    def attach(*args: Any, **options: Any) -> utracefs.Stream:
        options = {"directory": utracefsd.directory, "timeout_s": 15, **options}
        made.append(utracefs.attach(*args, **options))
        return made[-1]

    yield attach
    for stream in made:
        stream.close()


Attach = Callable[..., utracefs.Stream]


def emit(session: Session, name: str, *numbers: int) -> None:
    event = session.event(f"{name} u32 a; __rel_loc char[] s")
    wait_for(lambda: event.registered and event)
    for number in numbers:
        event.emit(number, f"s{number}")
    assert session.flush(60)


def test_a_child_has_no_part_in_the_stream_of_its_parent(session: Session, attach: Attach) -> None:
    with attach("work") as stream:
        emit(session, "work", 1, 2)
        assert next(stream).fields["a"] == 1
        stream.timeout_s = 0.3
        child = os.fork()
        if not child:
            os._exit(7 if list(stream) == [] and stream.attached_again == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        emit(session, "work", 3)
        assert [record.fields["a"] for record in stream] == [2, 3]
        assert not stream.lost


def test_a_stream_that_is_dropped_is_closed(session: Session, directory: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        for _ in utracefs.attach("tick", directory=str(directory), timeout_s=0.01):
            break
        utracefs.attach("tick", directory=str(directory)).__enter__()
        assert len(os.listdir("/proc/self/fd")) == before, number


def test_records(session: Session, attach: Attach) -> None:
    with attach("http_*") as stream:
        before = time.monotonic_ns()
        emit(session, "http_get", 1, 2)
        emit(session, "http_put", 3)
        records = list(islice(stream, 3))
        assert [(r.system, r.name, r.fields) for r in records] == [
            ("user_events", "http_get", {"a": 1, "s": "s1"}),
            ("user_events", "http_get", {"a": 2, "s": "s2"}),
            ("user_events", "http_put", {"a": 3, "s": "s3"}),
        ]
        for record in records:
            assert before < record.time_ns < time.monotonic_ns()
            assert (record.pid, record.tid) == (os.getpid(), threading.get_native_id())
            assert record.comm == Path("/proc/thread-self/comm").read_text().strip()
            assert (record.lost, record.instance) == (0, "")
            assert 0 <= record.cpu < (os.cpu_count() or 1)
        assert list(stream.formats) == ["user_events:http_get", "user_events:http_put"]
        assert not stream.lost


def test_batches_and_columns(session: Session, attach: Attach) -> None:
    with attach(["one", "two"], watermark=500) as stream:
        emit(session, "one", *range(10))
        emit(session, "two", *range(5))
        batch = next(stream.batches())
        assert batch.counts == {"user_events:one": 10, "user_events:two": 5}
        columns = batch.columns()
        assert list(columns["user_events:one"]["a"]) == list(range(10))
        assert columns["user_events:two"]["s"] == [f"s{i}" for i in range(5)]
        assert [r.fields["a"] for r in batch] == [r.fields["a"] for r in batch] == [*range(10), *range(5)]
        emit(session, "two", *range(20))
        (again,) = next(stream.columns()).values()
        assert len(again["time_ns"]) == 20
        with pytest.raises(RuntimeError, match="over"):
            list(batch)


def test_a_batch_is_a_part_of_the_ring(session: Session, attach: Attach) -> None:
    """Only the next one frees its space, so the rest must hold what comes while it is processed."""
    with attach(["one"], ring_bytes=4 << 20) as stream:
        for begin in range(0, 40_000, 4000):
            emit(session, "one", *range(begin, begin + 4000))
        batches = stream.batches()
        numbers: list[int] = []
        while len(numbers) < 40_000:
            more = [record.fields["a"] for record in next(batches)]
            assert len(more) * 40 <= 1 << 20
            numbers += more
    assert numbers == list(range(40_000))


def test_selected_here(session: Session, attach: Attach) -> None:
    cpus = [(os.cpu_count() or 1) + 7]
    with attach(pids=[1], timeout_s=0.3) as none, attach(pids=[os.getpid()]) as ours:
        emit(session, "ev", 1)
        assert next(ours).fields["a"] == 1
        assert list(none) == []
    with attach(cpus=cpus, timeout_s=0.3) as stream:
        emit(session, "ev", 1)
        assert list(stream) == []


def test_several_and_one_that_stalls(session: Session, attach: Attach) -> None:
    """The one that stalls loses; the others do not, and each adds up."""
    count = 40_000
    with (
        attach("ev", ring_bytes=SMALL, timeout_s=2) as stalled,
        attach("ev", ring_bytes=SMALL, filter="a == 7") as one_only,
        attach("ev", ring_bytes=64 << 20) as roomy,
    ):
        event = session.event("ev u32 a; __rel_loc char[] s")
        wait_for(lambda: event.registered and event)
        for start in range(0, count, 4000):
            for number in range(start, start + 4000):
                event.emit(number, "x")
            session.flush(60)
        received = 0
        while received + sum(roomy.lost.values()) < count:
            received += sum(next(roomy.batches()).counts.values())
        assert next(one_only).fields["a"] == 7
        assert not one_only.lost
        got = [record.fields["a"] for record in stalled]
        assert got == list(range(len(got)))
        assert 0 < len(got) < count
        assert stalled.lost == {"user_events:ev": count - len(got)}
        event.emit(1, "y")
        record = next(stalled)
        assert record.fields == {"a": 1, "s": "y"}


def test_it_ends_when_nothing_comes(session: Session, attach: Attach) -> None:
    with attach(timeout_s=0.2) as stream:
        begin = time.monotonic()
        assert list(stream) == []
        assert list(stream.batches()) == []
        assert time.monotonic() - begin >= 0.39
        emit(session, "ev", 1)
        assert len(list(stream)) == 1


def test_without_with(session: Session, attach: Attach) -> None:
    stream = attach(timeout_s=0.1)
    assert list(stream) == []  # attached now
    emit(session, "ev", 1)
    assert next(stream).fields["a"] == 1
    stream.close()
    stream.close()
    assert list(stream) == []
    with pytest.raises(ValueError, match="closed"), stream:
        pass


def test_breaking_off_and_going_on(session: Session, attach: Attach) -> None:
    with attach() as stream:
        emit(session, "ev", *range(10))
        for record in stream:
            if record.fields["a"] == 3:
                break
        assert next(stream).fields["a"] == 4


def test_instances(session: Session, attach: Attach, utracefsd: DaemonProcess) -> None:
    with Tracefs(utracefsd.directory) as tree:
        tree.mkdir("instances/web")
        with attach("*", instances=["web"], timeout_s=0.3) as stream:
            tree.write_file("standing_events", b"user_events:*\n")
            emit(session, "ev", 1)
            assert list(stream) == []
            tree.write_file("instances/web/events/user_events/ev/enable", b"1\n")
            emit(session, "ev", 2)
            assert [record.fields["a"] for record in stream] == [2]


@pytest.mark.parametrize("nr_records", [3, 20_000])
def test_an_event_with_other_fields(
    attach: Attach, utracefsd: DaemonProcess, new_session: Callable[..., Session], nr_records: int
) -> None:
    """Its records and losses under both ids count."""
    enable = "instances/web/events/user_events/work/enable"
    with Tracefs(utracefsd.directory) as tree:
        tree.mkdir("instances/web")
        with attach("work", instances=["web"], timeout_s=1, ring_bytes=SMALL) as stream:
            for declaration in ("work u32 a", "work u64 a"):
                session = new_session()
                event = session.event(declaration)
                wait_for(lambda: b"work" in tree.read_file("available_events"))
                tree.write_file(enable, b"1\n")
                wait_for(event.__bool__)
                for n in range(nr_records):
                    event.emit(n)
                assert session.flush(60)
                session.close()
                tree.write_file(enable, b"0\n")
                wait_for(lambda: b"work" not in tree.read_file("available_events"))
            counts: Counter[str] = Counter()
            for batch in stream.batches():
                counts.update(batch.counts)
                counts.update(batch.lost)
    assert counts == {"user_events:work": 2 * nr_records}
    assert bool(stream.lost) == (nr_records > 3)


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"filter": "a =="}, errno.EINVAL, "filter: "),
    ({"filter": "nothing == 1"}, errno.EINVAL, "Field not found"),
    ({"instances": ["none"]}, errno.ENOENT, "no instance"),
    ({"ring_bytes": 3 << 20}, errno.EINVAL, "power of two"),
    ({"ring_bytes": 1 << 30}, errno.EINVAL, "size"),
    ({"watermark": 1 << 30}, errno.EINVAL, "watermark"),
    ({"events": "a:b:c"}, errno.EINVAL, "glob"),
    ({"events": []}, errno.EINVAL, "events"),
]


def test_refused(session: Session, attach: Attach, utracefsd: DaemonProcess) -> None:
    with Tracefs(utracefsd.directory) as tree:
        event = session.event("ev u32 a")
        wait_for(lambda: event.registered)
        before = len(os.listdir("/proc/self/fd"))
        for options, number, text in REFUSED:
            with pytest.raises(OSError, match=text) as caught, attach(**{"events": "ev", **options}):
                pass
            assert caught.value.errno == number
            assert len(os.listdir("/proc/self/fd")) == before
            assert b"Used by" not in tree.read_file("user_events_status")


def test_no_daemon(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), utracefs.attach(directory=str(tmp_path)):
        pass


def test_records_that_it_missed(session: Session, attach: Attach, utracefsd: DaemonProcess) -> None:
    with attach("ev"):
        emit(session, "ev", 1, 2)
        with attach("ev", filter="a > 5") as stream:
            emit(session, "ev", 3, 9)
            (missed,) = stream.missed().events
            assert (missed.event, missed.count) == (b"user_events:ev", 3)
            utracefsd.stop()
            with pytest.raises(ConnectionError):
                stream.missed()
            assert stream.missed_before is not None and stream.missed_before.events[0].count == 2
    with pytest.raises(ConnectionError):
        stream.missed()


def test_a_program_that_is_killed_detaches(session: Session, utracefsd: DaemonProcess) -> None:
    event = session.event("ev u32 a")
    pid = os.fork()
    if not pid:
        with utracefs.attach("ev", directory=utracefsd.directory) as stream:
            next(stream)
        os._exit(1)
    wait_for(lambda: event.registered and event)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    wait_for(lambda: not event)


# Event loops.


async def read_all(stream: utracefs.Stream, checkpoint: Callable[[], None]) -> None:
    async with stream:
        checkpoint()
        found = []
        async for record in stream:
            found.append(record.fields["a"])
            if len(found) == 3:
                break
        assert found == [1, 2, 3]
        counts: Counter[str] = Counter()  # on a busy machine two batches
        async for batch in stream.batches():
            counts.update(batch.counts)
            if counts.total() == 2:
                break
        assert counts == {"user_events:ev": 2}
        async for columns in stream.columns():
            assert list(columns["user_events:ev"]["a"]) == [6]
            break
        stream.timeout_s = 0.05
        assert [record async for record in stream] == []


class Emitting:
    """In a thread: one step per call."""

    def __init__(self, session: Session, stream: utracefs.Stream) -> None:
        self.session = session
        self.thread = threading.Thread(target=self.run)
        self.begun = threading.Event()
        self.stream = stream

    def run(self) -> None:
        assert self.begun.wait(60)
        emit(self.session, "ev", 1, 2, 3)
        time.sleep(0.2)
        event = self.session.event("ev u32 a; __rel_loc char[] s")
        event.emit(4, "")
        event.emit(5, "")
        time.sleep(0.2)
        event.emit(6, "")
        self.session.flush(60)

    def __enter__(self) -> Callable[[], None]:
        self.thread.start()
        return self.begun.set

    def __exit__(self, *exc: object) -> None:
        self.thread.join()


async def test_in_trio(session: Session, attach: Attach) -> None:
    stream = attach("ev")
    with Emitting(session, stream) as begin:
        await read_all(stream, begin)


def test_in_asyncio(session: Session, attach: Attach) -> None:
    stream = attach("ev")
    with Emitting(session, stream) as begin:
        asyncio.run(read_all(stream, begin))


async def test_cancelled_and_read_again(session: Session, attach: Attach) -> None:
    async with attach("ev") as stream:
        with trio.move_on_after(0.05) as scope:
            await anext(stream)
        assert scope.cancelled_caught
        emit(session, "ev", 5)
        assert (await anext(stream)).fields["a"] == 5


async def test_many_streams_in_one_loop(session: Session, attach: Attach) -> None:
    seen: Counter[int] = Counter()

    async def read(which: int, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        async with attach("ev", filter=f"a == {which}") as stream:
            task_status.started()
            async for record in stream:
                assert record.fields["a"] == which
                seen[which] += 1
                if seen[which] == 3:
                    return

    async with trio.open_nursery() as nursery:
        for which in range(10):
            await nursery.start(read, which)
        emit(session, "ev", *[*range(10)] * 3)
    assert seen == dict.fromkeys(range(10), 3)


# The end of the daemon.


def test_a_clean_end(session: Session, attach: Attach, utracefsd: DaemonProcess) -> None:
    with attach(reconnect=False) as stream:
        emit(session, "ev", 1, 2)
        utracefsd.stop()
        assert [record.fields["a"] for record in stream] == [1, 2]  # what it had taken in
        assert list(stream) == []
        assert stream.attached_again == 0


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart(session: Session, attach: Attach, utracefsd: DaemonProcess, kill: bool) -> None:
    with attach("ev") as stream:
        emit(session, "ev", 1)
        utracefsd.stop(kill)
        utracefsd.start()
        assert next(stream).fields["a"] == 1
        event = session.event("ev u32 a; __rel_loc char[] s")
        reader = threading.Thread(target=lambda: found.append(next(stream)))
        found: list[utracefs.Record] = []
        reader.start()
        number = 2
        while reader.is_alive():
            number += 1
            if event:
                event.emit(number, "x")
            time.sleep(0.01)
        reader.join()
        (record,) = found
        assert (record.name, record.lost) == ("ev", -1)
        assert stream.attached_again == 1
        event.emit(0, "last")
        assert next(stream).lost == 0


def test_a_daemon_that_does_not_come_back(session: Session, attach: Attach, utracefsd: DaemonProcess) -> None:
    with attach("ev", timeout_s=0.3) as stream:
        emit(session, "ev", 1)
        utracefsd.stop()
        assert [record.fields["a"] for record in stream] == [1]
        assert list(stream) == []
        utracefsd.start()
