"""Plug-ins: found by entry point, loaded late, given batches, and isolated from everything else.

The example distribution examples/count_plugin is loaded here as a real one would be, through its entry point.
"""

import errno
import logging
import struct
import sys
import threading
import time
import tomllib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.daemon.record_path import tracepoint
from tests.daemon.record_path import write as write_record
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MIN_STREAM_RING
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefsd.consumers import ENTRY_POINT_GROUP, Consumer, ConsumerError, RawBatch, Record
from utracefsd.consumers.plugins import plugins as module
from utracefsd.consumers.plugins.plugins import SLOW_S, Installed, Plugins, Worker
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink
from utracefsd.events.event import CommandString, Event
from utracefsd.events.event_table import EventTable

EXAMPLE = Path(__file__).parents[4] / "examples" / "count_plugin"
SECOND_NS = 1_000_000_000


class Collector:
    """A plug-in that keeps its records."""

    made: ClassVar[list["Collector"]] = []

    def __init__(self) -> None:
        self.batches: list[Sequence[Record]] = []
        self.log: list[tuple[str, bytes, bytes]] = []
        self.made.append(self)

    def take(self, batch: Sequence[Record]) -> None:
        self.batches.append(batch)

    def attached(self, event: bytes, system: bytes) -> None:
        self.log.append(("attached", event, system))

    def detached(self, event: bytes, system: bytes) -> None:
        self.log.append(("detached", event, system))

    def report(self) -> str:
        return f"{sum(map(len, self.batches))} records\n"


class Least:
    """The minimum of a plug-in."""

    def take(self, batch: Sequence[Record]) -> None:
        pass


class Broken:
    """Raises in every method."""

    def take(self, batch: Sequence[Record]) -> None:
        raise RuntimeError("no")

    def attached(self, event: bytes, system: bytes) -> None:
        raise RuntimeError("no")

    detached = attached

    def report(self) -> str:
        raise RuntimeError("no")


class Raw:
    """Counts without an object for each record."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        Raw.made = self

    made: ClassVar["Raw"]

    def start(self, options: Mapping[str, str]) -> None:
        self.log.append(dict(options))
        if "bad" in options:
            raise ValueError("bad option")

    def take_raw(self, batch: RawBatch) -> None:
        self.log.append((batch.counts, len(batch), [bytes(piece) for piece in batch.pieces], list(batch)))

    def close(self) -> None:
        self.log.append("close")


class Slow:
    """Does not return before it is released."""

    let: ClassVar[threading.Event]
    got: ClassVar[list[int]]

    def take(self, batch: Sequence[Record]) -> None:
        Slow.got += [record.payload[0] for record in batch]
        assert Slow.let.wait(60)

    def report(self) -> str:
        return "slow"


class Exits:
    """Tries to end the interpreter in every method."""

    def take(self, batch: Sequence[Record]) -> None:
        sys.exit("no")

    def attached(self, event: bytes, system: bytes) -> None:
        sys.exit("no")

    def report(self) -> str:
        sys.exit("no")


class NoPlugin:
    pass


def cannot_be_made() -> Consumer:
    raise OSError("no licence")


def ends() -> Consumer:
    sys.exit("no")


def point(name: str, target: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, target, ENTRY_POINT_GROUP)


def points() -> list[metadata.EntryPoint]:
    there = [
        point(name, f"the_plugins:{target}")
        for name, target in (
            ("collect", "Collector"),
            ("least", "Least"),
            ("raw", "Raw"),
            ("slow", "Slow"),
            ("broken", "Broken"),
            ("none", "NoPlugin"),
            ("exits", "Exits"),
            ("unmade", "cannot_be_made"),
            ("ends", "ends"),
            ("missing", "Missing"),
            ("a/b", "Collector"),
            ("ftrace", "Collector"),
            ("perf:1", "Collector"),
        )
    ]
    return [*there, point("gone", "no_such_module_anywhere:Class")]


@pytest.fixture
def plugins(table: EventTable, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugins]:
    monkeypatch.setitem(sys.modules, "the_plugins", sys.modules[__name__])
    Collector.made.clear()
    monkeypatch.setattr("utracefsd.consumers.plugins.plugins.STREAM_RING_SIZE", MIN_STREAM_RING)
    made = Plugins(table, time.monotonic_ns, entry_points=points)
    yield made
    made.close()


def drain(plugins: Plugins) -> None:
    """All records are with the plug-ins."""
    plugins.flush()
    assert all(plugins.get(name).drain(20) for name in plugins.names())


def write(event: Event, *values: int, ts_ns: int = 1) -> None:
    for value in values:
        assert write_record(event.tracepoint, struct.pack("<I", value), ts_ns=ts_ns, cpu=3, pid=77) == 0


def stats(event: Event, name: str) -> str:
    lines = event.tracepoint.stats_text().decode().splitlines()
    return next(line for line in lines if line.startswith(name + ":"))


def test_names_load_nothing(plugins: Plugins) -> None:
    assert plugins.names() == [
        "broken",
        "collect",
        "ends",
        "exits",
        "gone",
        "least",
        "missing",
        "none",
        "raw",
        "slow",
        "unmade",
    ]
    assert plugins.get("gone").events() == []
    assert not Collector.made


def test_records_arrive_in_batches(plugins: Plugins, table: EventTable, event: Event) -> None:
    plugins.get("collect").attach(event)
    plugins.get("collect").attach(event)
    (collector,) = Collector.made
    assert table.status_text() == b"test # Used by other\n\nActive: 1\nBusy: 1\n"
    write(event, 5, 6, ts_ns=123)
    assert collector.batches == []
    drain(plugins)
    drain(plugins)
    (batch,) = collector.batches
    first = batch[0]
    assert (first.event, first.system) == (b"test", b"user_events")
    assert (first.ts_ns, first.cpu, first.pid) == (123, 3, 77)
    assert first.payload == struct.pack("<I", 5)
    assert [record.fields() for record in batch] == [{"a": 5}, {"a": 6}]
    assert plugins.get("collect").report() == "2 records\n"
    write(event, 7)
    assert plugins.get("collect").report() == "3 records\n", "a report is of all that was taken in"
    assert stats(event, "collect") == "collect: recorded 3 filtered 0 lost 0"


def test_detaching_hands_over_the_rest(plugins: Plugins, table: EventTable, event: Event) -> None:
    plugins.get("collect").attach(event)
    (collector,) = Collector.made
    assert plugins.get("collect").events() == [event]
    write(event, 1)
    plugins.get("collect").detach(event)
    plugins.get("collect").detach(event)
    drain(plugins)
    assert [len(batch) for batch in collector.batches] == [1]
    assert collector.log == [("attached", b"test", b"user_events"), ("detached", b"test", b"user_events")]
    assert event.status == 0
    assert event.references == 1
    assert plugins.get("collect").events() == []


def test_a_plugin_that_raises_loses_its_records_and_nothing_else(
    plugins: Plugins, event: Event, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        plugins.get("broken").attach(event)
        plugins.get("collect").attach(event)
        for _ in range(20):
            write(event, 1)
            drain(plugins)
        with pytest.raises(ConsumerError) as caught:
            plugins.get("broken").report()
    assert caught.value.errno == errno.EIO
    assert stats(event, "broken") == "broken: recorded 0 filtered 0 lost 20"
    assert stats(event, "collect") == "collect: recorded 20 filtered 0 lost 0"
    assert plugins.get("broken").events() == [event]
    assert plugins.get("broken").failures == 22
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3, messages  # take, attached and report, once each
    assert all("broken" in message and "\n" not in message for message in messages)
    plugins.get("broken").detach(event)
    assert stats(event, "broken") == "broken: recorded 0 filtered 0 lost 20"


@pytest.mark.parametrize("name", ["none", "unmade", "ends", "missing", "gone"])
def test_a_plugin_that_cannot_be_loaded(plugins: Plugins, event: Event, name: str) -> None:
    for call in (lambda: plugins.get(name).attach(event), lambda: plugins.get(name).report()):
        with pytest.raises(ConsumerError) as caught:
            call()
        assert caught.value.errno == errno.EIO
        assert name in caught.value.text
    assert event.references == 1
    assert event.status == 0
    assert plugins.get(name).events() == []


@pytest.mark.parametrize("name", ["nobody", "a/b", "ftrace", "perf:1", "", ".."])
def test_a_plugin_that_there_is_not(plugins: Plugins, event: Event, name: str) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: plugins.get(name).attach(event),
        lambda: plugins.get(name).detach(event),
        lambda: plugins.get(name).events(),
        lambda: plugins.get(name).report(),
    ]
    for call in calls:
        with pytest.raises(TraceError) as caught:
            call()
        assert caught.value.errno == errno.ENOENT
        assert "collect" in caught.value.text


# The example, as a distribution


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install examples/count_plugin as pip would: its module and its metadata in a folder of sys.path."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["py-modules"]
    (tmp_path / f"{module}.py").write_text((EXAMPLE / f"{module}.py").read_text())
    info = tmp_path / "utracefs_count-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: utracefs-count\nVersion: 1.0\n")
    points = project["project"]["entry-points"][ENTRY_POINT_GROUP]
    (info / "entry_points.txt").write_text(
        f"[{ENTRY_POINT_GROUP}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.mark.usefixtures("example")
def test_the_example_counts(table: EventTable, event: Event) -> None:
    plugins = Plugins(table, time.monotonic_ns, Installed())
    assert "count" in plugins.names()
    silent = table.register(CommandString.parse(b"silent"), privileged=True)
    table.acquire(silent)
    for one in (event, silent):
        plugins.get("count").attach(one)
    for second in range(5):
        write(event, second, ts_ns=second * SECOND_NS)
    plugins.get("count").detach(silent)
    assert plugins.get("count").report().splitlines() == [
        "  event                   records          bytes   per second",
        "  user_events:test              5             20          1.0",
        "- user_events:silent            0              0          0.0",
    ]
    plugins.close()


def test_what_is_installed_later_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    installed = Installed()
    assert not [found for found in installed() if found.name == "later"]
    info = tmp_path / "later-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\nlater = later:Class\n")
    assert [found for found in installed() if found.name == "later"]


# Raw batches, options, and plug-ins that do not come back


def test_raw_batches(plugins: Plugins, table: EventTable, event: Event) -> None:
    other = table.register(CommandString.parse(b"other u32 a"), privileged=True)
    table.acquire(other)
    plugins.get("raw").attach(event)
    plugins.get("raw").attach(other)
    write(event, 5, 6)
    write(other, 7)
    drain(plugins)
    options, (counts, length, pieces, records) = Raw.made.log
    assert options == {}
    assert counts == {(b"user_events", b"test"): 2, (b"user_events", b"other"): 1}
    assert length == 3
    assert [(record.event, record.fields()["a"]) for record in records] == [
        (b"test", 5),
        (b"test", 6),
        (b"other", 7),
    ]
    (piece,) = pieces
    raw = struct.pack("<IHHQiIHHiI", 40, 0, 3, 1, 77, 12, other.id, 0, 77, 7) + bytes(4)
    assert piece.endswith(raw)
    plugins.close()
    assert Raw.made.log[-1] == "close"


def test_options(table: EventTable, plugins: Plugins, event: Event) -> None:
    given = {"raw": {"window": "5"}, "least": {"x": "1"}}
    with_options = Plugins(table, time.monotonic_ns, entry_points=points, options=given)
    with_options.get("raw").attach(event)
    assert Raw.made.log == [{"window": "5"}]
    with pytest.raises(ConsumerError, match="takes no options"):
        with_options.get("least").attach(event)
    with_options.close()
    bad = Plugins(table, time.monotonic_ns, entry_points=points, options={"raw": {"bad": ""}})
    with pytest.raises(ConsumerError, match="bad option"):
        bad.get("raw").attach(event)
    assert event.status == 0


def test_a_plugin_that_does_not_return_loses_and_is_reported(
    plugins: Plugins, event: Event, log: pytest.LogCaptureFixture
) -> None:
    Slow.let, Slow.got = threading.Event(), []
    plugins.get("slow").attach(event)
    plugins.get("collect").attach(event)
    write(event, 1)
    plugins.flush()
    begin = time.monotonic()
    while not log.records:
        assert time.monotonic() - begin < 60
        plugins.flush()  # as each step of the daemon does
    (told,) = log.messages
    assert "plug-in slow: a batch takes" in told
    emitted = 1
    while "lost 5" not in stats(event, "slow"):
        write(event, 2)
        emitted += 1
        if emitted % 1000 == 0:
            drain_one(plugins, "collect")
    with pytest.raises(ConsumerError) as caught:
        plugins.get("slow").report()
    assert caught.value.errno == errno.EBUSY
    assert stats(event, "collect") == f"collect: recorded {emitted} filtered 0 lost 0"
    Slow.let.set()
    drain(plugins)
    assert len(Slow.got) == emitted - 5
    assert stats(event, "slow") == f"slow: recorded {emitted - 5} filtered 0 lost 5"
    assert plugins.get("slow").report() == "slow"
    assert len(log.messages) == 1


def drain_one(plugins: Plugins, name: str) -> None:
    plugins.flush()
    assert plugins.get(name).drain(20)


def test_a_plugin_that_does_not_end_is_left_behind(
    plugins: Plugins, event: Event, log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.05)
    Slow.let, Slow.got = threading.Event(), []
    plugins.get("slow").attach(event)
    write(event, 1)
    plugins.close()
    assert "plug-in slow does not end; it is left behind" in log.messages
    Slow.let.set()


def test_a_plugin_that_loads_slowly(plugins: Plugins, event: Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOAD_S", 0.01)
    let = threading.Event()
    monkeypatch.setattr(Collector, "start", lambda self, options: let.wait(60), raising=False)
    for _ in range(2):
        with pytest.raises(ConsumerError, match="being loaded") as caught:
            plugins.get("collect").attach(event)
        assert caught.value.errno == errno.EBUSY
    let.set()
    monkeypatch.setattr(module, "LOAD_S", 20)
    plugins.get("collect").attach(event)
    assert len(Collector.made) == 1


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
            write_record(self.event, struct.pack("<I", number))


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


class _Late(deque[Any]):
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
    assert not job.done()
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
        bench.worker.post(lambda: None).result(60)
    bench.worker.look()
    assert len(bench.slow) == 2
    assert all(took > SLOW_S for took in bench.slow)


def test_the_rest_is_taken_at_the_end() -> None:
    bench = Bench()
    bench.emit(1, 2)
    bench.worker.post(lambda: bench.log.append("last"))
    assert bench.worker.close(20)
    assert bench.log == [1, 2, "last"]
