"""The perf ring, read from memory that a small writer here fills by the layout's description alone."""

import json
import mmap
import os
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs_protocol.pages.perf_ring import (
    ALL_READ_FORMAT,
    COUNT_ALONE,
    Counts,
    PerfRingReader,
    ReadFormat,
)

# A record that perf script was seen to read.
RPC_RAW = bytes.fromhex("d2070000 0c000000 0c000400 dc05000000000000 feffffff 47657400")
RPC = (
    bytes.fromhex(
        "09000000 0200 5800 0300000000000000 0000000000000000 0b000000 0c000000"
        "5fe9764817000000 00000000 00000000 0100000000000000 1c000000"
    )
    + RPC_RAW
)


class Ring:
    """A daemon's side without a daemon."""

    def __init__(self, data_size: int = 4096) -> None:
        self.memory = bytearray(4096 + data_size)
        self.data_size = data_size
        struct.pack_into("<QQ", self.memory, 1040, 4096, data_size)

    @property
    def head(self) -> int:
        return self.word(1024)

    @property
    def tail(self) -> int:
        return self.word(1032)

    def word(self, offset: int) -> int:
        value: int = struct.unpack_from("<Q", self.memory, offset)[0]
        return value

    def start_at(self, position: int) -> None:
        struct.pack_into("<QQ", self.memory, 1024, position, position)

    def write(self, record: bytes) -> bool:
        head = self.head
        if head + len(record) - self.tail > self.data_size:
            return False
        for i, byte in enumerate(record):
            self.memory[4096 + (head + i) % self.data_size] = byte
        struct.pack_into("<Q", self.memory, 1024, head + len(record))
        return True


def test_a_shared_mapping() -> None:
    ring = Ring()
    ring.write(RPC)
    with mmap.mmap(-1, len(ring.memory)) as mapping:
        mapping[:] = bytes(ring.memory)
        assert list(PerfRingReader(mapping).take()) == [RPC]
        assert mapping[1032] == len(RPC)


# Loads data_tail until data_head is 0 again, and says how often, and what it saw outside of what was stored.
WATCHER = """
import json, mmap, os, sys
fd, size, low, high = map(int, sys.argv[1:])
words = memoryview(mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)).cast("Q")
loads, wrong = 0, []
while words[128]:
    tail = words[129]
    loads += 1
    if loads == 100:
        print("ready", flush=True)
    if not low <= tail <= high and len(wrong) < 10:
        wrong.append(tail)
print(json.dumps([loads, wrong]), flush=True)
os._exit(0)
"""


def test_another_process_never_sees_half_a_tail() -> None:
    """struct.pack_into() fails here: some hundreds of these stores are seen as 0."""
    record = struct.pack("<IHHQ", 68, 0, 16, 0)
    data_size = 1 << 20
    fd = os.memfd_create("perf_ring")
    try:
        os.ftruncate(fd, 4096 + data_size)
        with mmap.mmap(fd, 4096 + data_size) as mapping:
            mapping[4096:] = record * (data_size // len(record))
            with memoryview(mapping) as view, view[:4096] as page, page.cast("Q") as words:
                words[130:132] = memoryview(struct.pack("QQ", 4096, data_size)).cast("Q")
                start = 0x0123_4567_89AB << 12  # every byte of it shows when it is missing
                words[128] = words[129] = start
                watcher = subprocess.Popen(
                    [
                        *(sys.executable, "-c", WATCHER),
                        *map(str, (fd, 4096 + data_size, start, start + 3 * data_size)),
                    ],
                    pass_fds=[fd],
                    stdout=subprocess.PIPE,
                )
                try:
                    assert watcher.stdout is not None
                    assert watcher.stdout.readline() == b"ready\n"
                    reader = PerfRingReader(mapping)
                    for _ in range(3):
                        words[128] += data_size
                        assert sum(map(len, reader.take())) == data_size
                        assert words[129] == words[128]
                finally:
                    words[128] = 0
                    said = watcher.communicate()[0]
        loads, wrong = json.loads(said)
        assert loads >= 100
        assert wrong == []
    finally:
        os.close(fd)


def test_the_mapping_can_be_closed_while_a_reader_is_there() -> None:
    ring = Ring()
    ring.write(RPC)
    mapping = mmap.mmap(-1, len(ring.memory))
    mapping[:] = bytes(ring.memory)
    records = PerfRingReader(mapping).take()
    next(records)
    mapping.close()


@given(
    st.integers(0, 511).map(lambda n: n * 8),
    st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=40),
)
def test_records_wrap(start: int, steps: list[tuple[int, bool]]) -> None:
    ring = Ring(1024)
    ring.start_at(start)
    reader = PerfRingReader(ring.memory)
    sent = bytearray()
    got = bytearray()
    for number, (words, read) in enumerate(steps):
        record = struct.pack("<IHH", 9, 2, 8 * words + 8) + bytes([number]) * 8 * words
        if ring.write(record):
            sent += record
        if read:
            got += b"".join(reader.take())
    assert got + b"".join(reader.take()) == sent


@pytest.mark.parametrize(("head", "tail"), [(0, 8), (4104, 0), (2**64 - 8, 0)])
def test_broken_counters(head: int, tail: int) -> None:
    ring = Ring()
    struct.pack_into("<QQ", ring.memory, 1024, head, tail)
    with pytest.raises(ValueError, match=f"data_head {head}"):
        list(PerfRingReader(ring.memory).take())


@pytest.mark.parametrize(("offset", "size"), [(4096, 4095), (4096, 8192), (2**63, 4096), (8192, 4096)])
def test_not_a_ring(offset: int, size: int) -> None:
    memory = bytearray(8192)
    struct.pack_into("<QQ", memory, 1040, offset, size)
    with pytest.raises(ValueError, match="data_offset"):
        PerfRingReader(memory)


def test_too_short_to_be_a_ring() -> None:
    with pytest.raises(ValueError, match="a page at least"):
        PerfRingReader(bytearray(4095))


def test_counting_only() -> None:
    ring = Ring(0)
    assert list(PerfRingReader(ring.memory).take()) == []


def test_counts_are_in_the_order_of_the_bits() -> None:
    assert Counts.from_bytes(struct.pack("<Q", 5), COUNT_ALONE) == Counts(5)
    assert Counts.from_bytes(struct.pack("<5Q", 5, 4, 3, 2, 1), ALL_READ_FORMAT) == Counts(5, 4, 3, 2, 1)
    assert Counts.from_bytes(struct.pack("<2Q", 5, 9), ReadFormat.ID) == Counts(5, id=9)


@pytest.mark.parametrize("data", [b"", bytes(7), bytes(16)])
def test_counts_of_another_length_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="bytes from a perf event"):
        Counts.from_bytes(data, COUNT_ALONE)


def test_all_that_is_there_is_taken_at_once() -> None:
    ring = Ring()
    ring.start_at(4096 * 3 - 100)  # wraps
    reader = PerfRingReader(ring.memory)
    assert not list(reader.take())
    assert reader.filled == 0.0
    for _ in range(3):
        ring.write(RPC)
    assert reader.filled == 3 * len(RPC) / 4096
    assert list(reader.take()) == [RPC * 3]
    assert ring.tail == ring.head
    assert not list(reader.take())
    for _ in range(3):
        ring.write(RPC)
    in_pieces = reader.take(lambda data: len(data) // len(RPC) * len(RPC), 2 * len(RPC) + 1)
    assert list(in_pieces) == [RPC * 2, RPC]
    assert ring.tail == ring.head
    ring.start_at(5)
    struct.pack_into("<Q", ring.memory, 1032, 9)
    with pytest.raises(ValueError, match="data_head 5"):
        next(reader.take())
