"""Batches for plug-ins: filled, lost, handed over, and plug-ins that fail or come back."""

import pytest

from tests.daemon.record_path import ftrace, numbers, tracepoint, write
from utracefsd.consumers.ftrace._sink import FtraceProbe
from utracefsd.consumers.plugins._batch import BatchProbe


def test_batches() -> None:
    got: list[tuple[int, int, int, int, bytes]] = []
    probe = BatchProbe("count", got.extend)
    event = tracepoint()
    event.attach(probe)
    for i in range(3):
        event.write(bytes([i]) * 4, ts_ns=i, cpu=1, pid=8, tgid=7)
    assert (probe.pending, got) == (3, [])
    assert probe.flush() == 3
    assert got == [(i, 1, 8, 7, bytes([i]) * 4) for i in range(3)]
    assert (probe.flush(), probe.pending) == (0, 0)


def test_a_batch_that_is_full_loses() -> None:
    probe = BatchProbe("count", len, 2)
    event = tracepoint()
    event.attach(probe)
    for _ in range(5):
        write(event, bytes(4))
    assert numbers(probe) == (2, 0, 3)
    probe.flush()
    write(event, bytes(4))
    assert numbers(probe) == (3, 0, 3)
    with pytest.raises(ValueError):
        BatchProbe("count", len, 0)


def test_a_plug_in_that_fails_is_counted() -> None:
    def fail(batch: list[tuple[int, int, int, int, bytes]]) -> None:
        raise RuntimeError("no")

    probe = BatchProbe("bad", fail)
    event = tracepoint()
    event.attach(probe)
    for _ in range(5):
        write(event, bytes(4))
    assert probe.flush() == 5
    assert (numbers(probe), probe.failures, str(probe.last_error)) == ((0, 0, 5), 1, "no")


def test_detaching_delivers_the_rest() -> None:
    got: list[tuple[int, int, int, int, bytes]] = []
    probe = BatchProbe("count", got.extend)
    event = tracepoint()
    event.attach(probe)
    write(event, bytes(4))
    event.detach(probe)
    assert len(got) == 1
    assert event.past == [("count", 1, 0, 0)]


def test_a_plug_in_may_detach_itself() -> None:
    event = tracepoint()
    probe = BatchProbe("once", lambda batch: event.detach(probe))
    event.attach(probe)
    write(event, bytes(4))
    event.detach(probe)
    assert (event.probes, event.past) == ((), [("once", 1, 0, 0)])


def test_a_plug_in_may_emit_and_attach_while_it_is_handed_a_batch() -> None:
    event = tracepoint()

    def again(batch: list[tuple[int, int, int, int, bytes]]) -> None:
        if len(event.probes) == 1:
            event.attach(FtraceProbe(ftrace()))
        write(event, bytes(4))

    probe = BatchProbe("again", again)
    event.attach(probe)
    write(event, bytes(4))
    assert probe.flush() == 1
    assert (probe.pending, event.emitted) == (1, 2)
