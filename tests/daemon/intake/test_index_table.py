"""write_index tables: acknowledged writes, runs of bin objects, refusals, and hostile bytes."""

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.record_path import PID, Collecting, ftrace, tracepoint
from utracefs_protocol.limits import MAX_DATA_OBJECT
from utracefsd.consumers.ftrace.event._sink import FtraceProbe
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._writers import AllWriters
from utracefsd.machine.comms import CommTable
from utracefsd.machine.procfs import make_comm_table, possible_cpus

NOW_NS = 5_000_000_000


def table_of(*commands: bytes) -> tuple[IndexTable, list[Tracepoint]]:
    table = IndexTable()
    events = [tracepoint(command) for command in commands]
    for index, event in enumerate(events):
        assert table.append(event) == index
        event.attach(FtraceProbe(ftrace()))
    return table, events


def test_the_acknowledged_write() -> None:
    table, (event, _) = table_of(b"one u32 a", b"two u32 a; u32 b")
    assert len(table) == 2
    assert table[0] is event
    for record, result in (
        (b"", -errno.EFAULT),
        (b"\0\0\0", -errno.EFAULT),
        (struct.pack("<i", -1), -errno.EINVAL),
        (struct.pack("<i", -(1 << 31)), -errno.EINVAL),
        (struct.pack("<i", 2), -errno.ENOENT),
        (struct.pack("<i", (1 << 31) - 1), -errno.ENOENT),
        (struct.pack("<ii", 1, 5), -errno.EINVAL),
        (struct.pack("<ii", 0, 5), 8),
        (struct.pack("<iii", 1, 5, 6), 12),
        (struct.pack("<iii", 0, 5, 6), 12),
    ):
        assert table.write(record, PID, NOW_NS) == result
    assert table.refused == {}  # the caller gets the error
    table.write(struct.pack("<ii", 0, 5), PID, NOW_NS)
    probe = event.probes[0]
    assert isinstance(probe, FtraceProbe)
    *_, (_, ts, data, _) = probe.sink.ring_buffer.cursor()
    assert ts == NOW_NS
    assert data == struct.pack("<HBBiI", 1039, 0, 0, PID, 5)
    event.detach(probe)
    assert table.write(struct.pack("<ii", 0, 5), PID, NOW_NS) == -errno.EBADF


def test_a_thread_of_another_process_writes() -> None:
    table, (event,) = table_of(b"one u32 a")
    taken: list[tuple[Any, ...]] = []
    probe = Collecting("test", taken.extend)
    event.attach(probe)
    assert table.write(struct.pack("<ii", 0, 5), 301, NOW_NS, 300) == 8
    assert table.write(struct.pack("<ii", 0, 6), 300, NOW_NS) == 8
    probe.flush()
    assert [record[2] for record in taken] == [301, 300]


def bin_object(data: bytes, width: int = 0) -> bytes:
    if not width:
        packed = msgpack.packb(data)
        assert isinstance(packed, bytes)
        return packed
    return {1: b"\xc4", 2: b"\xc5", 4: b"\xc6"}[width] + len(data).to_bytes(width, "big") + data


def test_taking_in_all_three_sizes() -> None:
    table, (event,) = table_of(b"one u32 a")
    records = [struct.pack("<i", 0) + bytes(n) for n in (4, 251, 252, 300, 4060)]
    stream = b"".join(map(bin_object, records)) + bin_object(records[0], 2) + bin_object(records[0], 4)
    for buffer in (stream, bytearray(stream), memoryview(b"xx" + stream)[2:]):
        before = event.emitted
        assert table.take_in(buffer, 0, PID, NOW_NS) == len(stream)
        assert event.emitted - before == 7
    assert table.refused == {}


def test_an_incomplete_object_stays() -> None:
    table, (event,) = table_of(b"one u32 a")
    for width in (1, 2, 4):
        record = bin_object(struct.pack("<ii", 0, 5), width)
        stream = record * 2
        for cut in range(len(stream)):
            before = event.emitted
            assert table.take_in(stream[:cut], 0, PID, NOW_NS) == cut // len(record) * len(record)
            assert event.emitted - before == cut // len(record)
        assert table.take_in(stream, len(record), PID, NOW_NS) == len(stream)


@pytest.mark.parametrize("other", [b"\x94\0\1\2\3", b"\xc0", b"\xc7\1\1x", b"\xc3", b"\xd9\1x", b"\0"])
def test_anything_else_stays(other: bytes) -> None:
    table, (event,) = table_of(b"one u32 a")
    record = bin_object(struct.pack("<ii", 0, 5))
    assert table.take_in(record + other + record, 0, PID, NOW_NS) == len(record)
    assert table.take_in(record + other + record, len(record), PID, NOW_NS) == len(record)
    assert event.emitted == 1


def test_an_object_that_is_too_large_stays() -> None:
    table, (event,) = table_of(b"one u32 a")
    largest = bin_object(bytes(MAX_DATA_OBJECT - 3))
    assert len(largest) == MAX_DATA_OBJECT
    assert table.take_in(largest, 0, PID, NOW_NS) == len(largest)
    assert event.emitted == 1
    for data in (
        bin_object(bytes(MAX_DATA_OBJECT - 2)),
        bin_object(bytes(MAX_DATA_OBJECT)),
        bin_object(bytes(MAX_DATA_OBJECT - 4), 4),
        b"\xc6\xff\xff\xff\xff" + bytes(100),
        b"\xc6\x7f\xff\xff\xff" + bytes(100000),
    ):
        assert table.take_in(data, 0, PID, NOW_NS) == 0
    assert event.emitted == 1


def test_what_is_refused_is_counted_by_reason() -> None:
    table, (event,) = table_of(b"one u32 a; __rel_loc char[] s")
    records = [
        b"",
        b"\0\0\0",
        struct.pack("<i", -5),
        struct.pack("<i", 7),
        struct.pack("<i", 7),
        struct.pack("<ii", 0, 1),
        struct.pack("<iihh", 0, 1, 0, 1),
        struct.pack("<iihh", 0, 1, 0, 0),
    ]
    stream = b"".join(map(bin_object, records))
    assert table.take_in(stream, 0, PID, NOW_NS) == len(stream)
    event.detach(event.probes[0])
    table.take_in(bin_object(records[-1]), 0, PID, NOW_NS)
    expected = {
        (errno.EFAULT, -1): 2,
        (errno.EINVAL, -5): 1,
        (errno.ENOENT, 7): 2,
        (errno.EINVAL, 0): 1,
        (errno.EFAULT, 0): 1,
        (errno.EBADF, 0): 1,
    }
    assert table.refused == expected
    assert event.emitted == 1


def test_refusals_are_remembered_within_bounds() -> None:
    table, _ = table_of(b"one u32 a")
    stream = b"".join(bin_object(struct.pack("<i", index)) for index in range(1, 2001))
    table.take_in(stream, 0, PID, NOW_NS)
    assert sum(table.refused.values()) == 2000
    assert len(table.refused) <= 65
    assert table.refused[errno.ENOENT, -1] == 2000 - 64


def test_the_clients_own_refusals_are_counted_by_event() -> None:
    table, (event,) = table_of(b"one u32 a")
    flag = 0x4000_0000
    records = [
        struct.pack("<I", flag) + b"a was float",
        struct.pack("<I", flag) + b"a was float",
        struct.pack("<I", flag | 1) + b"of no event",
        struct.pack("<I", flag << 1 | flag) + b"negative",
        struct.pack("<I", flag),
    ]
    stream = b"".join(map(bin_object, records))
    assert table.take_in(stream, 0, PID, NOW_NS) == len(stream)
    assert table.refused == {(errno.ENOENT, flag | 1): 1, (errno.EINVAL, -flag): 1}
    assert event.refused == {b"a was float": 2, b"": 1}
    assert table.write(records[0], PID, NOW_NS) == -errno.ENOENT, "as the kernel, whose write this is"
    assert event.emitted == 0


def test_the_clients_own_losses_are_counted_by_event() -> None:
    table, (event,) = table_of(b"one u32 a")
    flag = 0x2000_0000
    records = [
        struct.pack("<II", flag, 3),
        struct.pack("<II", flag | 1, 4),
        struct.pack("<IH", flag, 5),
        struct.pack("<IQ", flag, 6),
    ]
    stream = b"".join(map(bin_object, records))
    assert table.take_in(stream, 0, PID, NOW_NS) == len(stream)
    assert event.stats_text() == b"emitted: 3\nlost in data rings: 3\nftrace: recorded 0 filtered 0 lost 3\n"
    assert table.refused == {(errno.ENOENT, flag | 1): 1, (errno.ENOENT, flag): 2}
    assert table.write(records[0], PID, NOW_NS) == -errno.ENOENT
    [probe] = event.probes
    event.detach(probe)
    assert table.take_in(stream, 0, PID, NOW_NS) == len(stream)
    assert event.emitted == 3, "nobody wants them"


@pytest.mark.parametrize("offset", [-1, 11, 1 << 40])
def test_an_offset_outside(offset: int) -> None:
    with pytest.raises(ValueError, match="offset"):
        IndexTable().take_in(bytes(10), offset, PID, NOW_NS)


@given(stream=st.binary(max_size=300), offset=st.integers(0, 300))
def test_any_bytes_are_survived(stream: bytes, offset: int) -> None:
    table, _ = table_of(b"one u32 a; __rel_loc char[] s; __data_loc char[] t")
    if offset <= len(stream):
        assert offset <= table.take_in(stream, offset, PID, NOW_NS) <= len(stream)


# ---- records with their thread


def signature(tid: int, cpu: int = 0, flags: int = 0) -> bytes:
    return struct.pack("<iIHH", -1, tid, cpu, flags)


@pytest.fixture
def signed() -> tuple[IndexTable, Callable[..., list[tuple[int, int, bytes]]], CommTable]:
    """A table of this process, and a function that takes records in: cpu, thread and payload of each."""
    table, (event,) = table_of(b"one u32 a")
    comms = make_comm_table()
    comms.remember(os.getpid(), os.getpid())
    table.make_writers = lambda: AllWriters(comms).of(os.getpid(), 1)
    taken: list[tuple[Any, ...]] = []
    probe = Collecting("test", taken.extend)
    event.attach(probe)

    def take_in(*records: bytes) -> list[tuple[int, int, bytes]]:
        taken.clear()
        stream = b"".join(map(bin_object, records))
        assert table.take_in(stream, 0, os.getpid(), NOW_NS) == len(stream)
        probe.flush()
        assert [record[0] for record in taken] == sorted(record[0] for record in taken)
        return [(record[1], record[2], record[4]) for record in taken]

    return table, take_in, comms


def test_records_of_several_cpus_keep_their_order() -> None:
    """`trace` sorts by time, then by cpu."""
    table, (event,) = table_of(b"one u32 a")
    comms = make_comm_table()
    table.make_writers = lambda: AllWriters(comms).of(os.getpid(), 1)
    taken: list[tuple[Any, ...]] = []
    probe = Collecting("test", taken.extend)
    event.attach(probe)
    cpus = [possible_cpus() - 1, 0, 0, possible_cpus() - 1, 0]
    records = [signature(os.getpid(), cpu) + struct.pack("<ii", 0, n) for n, cpu in enumerate(cpus)]
    table.take_in(b"".join(map(bin_object, records)), 0, os.getpid(), NOW_NS)
    probe.flush()
    in_trace = sorted(taken, key=lambda record: (record[0], record[1]))
    assert [struct.unpack("<I", record[4])[0] for record in in_trace] == [0, 1, 2, 3, 4]
    assert taken[0][0] == NOW_NS


def test_a_record_that_names_its_writer(signed: Any) -> None:
    table, take_in, comms = signed
    plain, gone, last_cpu = struct.pack("<ii", 0, 5), 4_194_301, possible_cpus() - 1
    short = struct.pack("<iI", 0, 6) + b"short".ljust(16, b"\0")
    (first, second, third) = take_in(
        signature(gone, last_cpu, 2) + short, plain, signature(gone, last_cpu) + plain
    )
    assert first == (last_cpu, gone, struct.pack("<I", 6))
    assert second[1:] == (os.getpid(), struct.pack("<I", 5))
    assert third == (last_cpu, gone, struct.pack("<I", 5))
    assert comms.comm(gone) == b"short"
    assert table.writers.threads() == [gone]
    assert table.refused == {}


def test_what_a_signature_cannot_say(signed: Any) -> None:
    table, take_in, comms = signed
    record, here = struct.pack("<ii", 0, 5), os.getpid()
    for tid in (os.getppid(), 0, 4_194_301, 1 << 31, (1 << 32) - 1):
        assert [thread for _, thread, _ in take_in(signature(tid, 65535, 0) + record)] == [here]
    ((cpu, _, data),) = take_in(signature(here, 65535, 0xFFFF) + record)
    assert cpu < possible_cpus()
    assert data == record[4:], "too short for a name"
    assert (
        take_in(signature(here), signature(here) + b"\0\0\0", signature(here) + signature(here) + record)
        == []
    )
    assert table.refused == {(errno.EINVAL, -1): 3}
    assert comms.comm(here) == Path("/proc/self/comm").read_bytes().removesuffix(b"\n")


def test_without_writers_it_has_no_such_index() -> None:
    table, _ = table_of(b"one u32 a")
    table.take_in(bin_object(signature(1) + struct.pack("<ii", 0, 5)), 0, PID, NOW_NS)
    assert table.refused == {(errno.EINVAL, -1): 1}
