"""Records lost while the forwarder or the daemon is away, between real processes: another consumer
records, and emitted = arrived + lost for each event, or the number is unknown for exactly the events of a
killed daemon."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.otlp_server import Collector, attributes, collecting, items
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from tests.integration.forward.conftest import WAIT_S, Start, stop
from utracefs.tree.tracefs import Tracefs

Emit: TypeAlias = Callable[[str, int], None]

PROGRAM = """
import sys, time, utracefs
event = utracefs.event(sys.argv[1] + " u32 n")
while not (event.registered and event):
    time.sleep(0.001)
for n in range(int(sys.argv[2])):
    event.emit(n)
    if n % 100 == 0:
        time.sleep(0.0005)
while not utracefs.flush(10):
    pass
print(utracefs.stats().emitted)
"""


@pytest.fixture
def collector() -> Collector:
    return Collector()


@pytest.fixture
def start(forward: Start, collector: Collector) -> Iterator[Start]:
    with collecting(collector) as port:
        yield lambda *words: forward(f"otlp://127.0.0.1:{port}", *words)


def record_all(daemon: DaemonProcess) -> None:
    """Another consumer, which is there all the time: so the events are on."""
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"user_events:*")


@pytest.fixture
def emit(daemon: DaemonProcess, monkeypatch: pytest.MonkeyPatch) -> Emit:
    """By a program that ends: an event that no other registers may be removed."""
    monkeypatch.setenv("UTRACEFS_DIR", daemon.directory)

    def emit(name: str, count: int) -> None:
        told, _ = begin(name, count).communicate(timeout=WAIT_S)
        assert int(told) == count

    return emit


def begin(name: str, count: int) -> subprocess.Popen[bytes]:
    return Popen([sys.executable, "-c", PROGRAM, name, str(count)], stdout=subprocess.PIPE)


def emitted(tree: Tracefs) -> int:
    found = re.match(rb"emitted: (\d+)\n", tree.read_file("events/user_events/work/stats"))
    assert found is not None
    return int(found[1])


def numbers(collector: Collector) -> dict[str, int | None]:
    """For each event the records that arrived and were reported as lost; None: unknown."""
    found: dict[str, int | None] = dict(
        Counter(f"user_events:{name}" for name in collector.arrived.elements())
    )
    for path, _, message in collector.requests:
        for _, one in items(message) if path == "/v1/logs" else ():
            if one.event_name == "utracefs.lost":
                told = attributes(one)
                before, more = found.get(told["event"], 0), told.get("count")
                found[told["event"]] = None if before is None or more is None else before + more
    return found


@pytest.mark.parametrize("is_removed", [False, True])
def test_it_was_stopped(
    daemon: DaemonProcess,
    collector: Collector,
    emit: Emit,
    start: Start,
    is_removed: bool,
) -> None:
    """Events of programs that ran before the first one, with it, without it, and of one that is registered
    later; is_removed: the other consumer ends, and the events are removed and registered again."""
    record_all(daemon)
    emit("before", 50)
    emit("work", 10)
    first = start()
    emit("work", 100)
    stop(first)
    emit("work", 1000)
    emit("later", 7)
    if is_removed:
        with daemon.tree() as tree:
            tree.write_file("standing_events", b"")
            tree.write_file("events/enable", b"0")
            tree.write_file("trace", b"")
            wait_for(lambda: b"work" not in tree.read_file("available_events"), WAIT_S)
        record_all(daemon)
        emit("work", 200)
    second = start()
    emit("work", 10_000)
    emit("before", 1)
    stop(second)
    work = 11_100 + 200 * is_removed
    assert numbers(collector) == {"user_events:work": work, "user_events:later": 7, "user_events:before": 1}
    assert collector.lost["user_events:work", "away"] == 1000 + 200 * is_removed


@pytest.mark.parametrize("has_forwarder", [False, True])
def test_the_daemon_restarts(
    daemon: DaemonProcess,
    collector: Collector,
    emit: Emit,
    start: Start,
    has_forwarder: bool,
) -> None:
    """In order, with a forwarder and while none runs. Records are emitted while no daemon is there."""
    record_all(daemon)
    first = start()
    emit("work", 100)
    emit("other", 5)
    if not has_forwarder:
        stop(first)
    process = begin("work", 20_000)
    with daemon.tree() as tree:
        wait_for(lambda: emitted(tree) > 200, WAIT_S)
    daemon.stop()
    daemon.start()
    told, _ = process.communicate(timeout=WAIT_S)
    second = first if has_forwarder else start()
    emit("work", 3)
    stop(second)
    assert numbers(collector) == {"user_events:work": 103 + int(told), "user_events:other": 5}


@pytest.mark.parametrize("has_forwarder", [False, True])
def test_the_daemon_is_killed(
    daemon: DaemonProcess,
    collector: Collector,
    emit: Emit,
    start: Start,
    has_forwarder: bool,
) -> None:
    """Its events are unknown, but not the ones that were removed before it, or registered after it."""
    record_all(daemon)
    emit("gone", 20)
    with daemon.tree() as tree:
        tree.write_file("standing_events", b"")
        tree.write_file("events/enable", b"0")
        tree.write_file("trace", b"")
        wait_for(lambda: b"gone" not in tree.read_file("available_events"), WAIT_S)
    record_all(daemon)
    first = start()
    emit("work", 100)
    if not has_forwarder:
        stop(first)
    daemon.stop(kill=True)
    daemon.start()
    second = first if has_forwarder else start()
    emit("new", 9)
    emit("gone", 2)
    emit("work", 3)
    stop(second)
    assert numbers(collector) == {"user_events:work": None, "user_events:new": 9, "user_events:gone": 2}


def test_a_filter(daemon: DaemonProcess, collector: Collector, emit: Emit, start: Start) -> None:
    """How many of the others it would have selected is unknown, but not for an event without records."""
    record_all(daemon)
    first = start("--filter", "n >= 10")
    emit("work", 100)
    emit("quiet", 30)
    stop(first)
    emit("work", 40)
    second = start("--filter", "n >= 10")
    stop(second)
    assert numbers(collector) == {"user_events:work": None, "user_events:quiet": 20}
