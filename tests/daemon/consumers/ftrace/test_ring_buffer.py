"""The ring buffer against a slow model of it, and against what a kernel showed.

`ModelCpu` is a ring buffer made of lists: pages of records, nothing compact about it, and no code shared.
Hypothesis plays random appends, reads, resizes and clears against both, with cursors that stay open all the
while. After any of them the process may "die": the model goes on, the buffer is adopted from copied files.
"""

import ctypes
import itertools
import mmap
import os
import shutil
import signal
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from utracefs_protocol.subbuf import decode_page
from utracefsd.consumers.ftrace._ring_buffer import BufferStats, RingBuffer

NR_CPUS = 2
HEADER = struct.Struct("<Q")


def entry(serial: int, size: int) -> bytes:
    """`size` bytes whose first 8, the common fields to the buffer, say which record it is."""
    return HEADER.pack(serial) + bytes((serial + i) & 0xFF for i in range(size - 8))


def stored_size(size: int) -> int:
    """Bytes of a record on a page without time extend, as rb_calculate_event_length() has it."""
    total = 4 + size + (4 if size > 112 else 0)
    total += -total % 4
    return 16 if total == 12 else total


def as_stored(data: bytes) -> bytes:
    """An entry as it is handed out again: padded with zeros."""
    return data.ljust(stored_size(len(data)) - (8 if len(data) > 112 else 4), b"\0")


@attrs.define
class ModelRecord:
    serial: int
    ts: int
    data: bytes
    size: int
    """On the page, with its time extend."""


@attrs.define
class ModelPage:
    ts: int = 0
    records: list[ModelRecord] = attrs.field(factory=list)
    used: int = 0
    read: int = 0
    """How many of the records were consumed."""
    read_bytes: int = 0

    @property
    def unread(self) -> list[ModelRecord]:
        return self.records[self.read :]

    @property
    def read_ts(self) -> int:
        return self.records[self.read - 1].ts if self.read else self.ts

    def take(self) -> ModelRecord:
        record = self.records[self.read]
        self.read += 1
        self.read_bytes += record.size
        if self.read == len(self.records) and self.used == self.payload_if_padded:
            self.read_bytes = self.used
        return record

    payload_if_padded: int = -1


@attrs.define
class ModelCpu:
    nr: int
    payload: int = 4080
    overwrite: bool = True
    reader: ModelPage = attrs.field(factory=ModelPage)
    ring: list[ModelPage] = attrs.field(factory=lambda: [ModelPage()])
    """Oldest first; the last is written to. Empty: the reader page is."""
    last_ts: int = 0
    overrun: int = 0
    untold: int = 0
    """Overwritten since the reader page was swapped in."""
    lost: int = 0
    """Overwritten before the reader page's next record."""
    dropped: int = 0
    read: int = 0

    def append(self, serial: int, ts: int, data: bytes) -> bool:
        ts = max(ts, self.last_ts)
        while True:
            page = self.ring[-1] if self.ring else self.reader
            extend = 8 if page.records and ts - self.last_ts >= 1 << 27 else 0
            size = stored_size(len(data)) + extend
            if page.used + size <= self.payload:
                break
            if self.payload - page.used >= 8:
                page.used = page.payload_if_padded = self.payload
            if len(self.ring) == self.nr:
                if not self.overwrite:
                    self.dropped += 1
                    return False
                self._drop_oldest()
            self.ring.append(ModelPage())
        if not page.records:
            page.ts = ts
        page.records.append(ModelRecord(serial, ts, as_stored(data), size))
        page.used += size
        self.last_ts = ts
        return True

    def _drop_oldest(self) -> None:
        count = len(self.ring.pop(0).records)
        self.overrun += count
        self.untold += count

    def load_reader(self) -> ModelPage | None:
        if self.reader.unread:
            return self.reader
        if not self.ring or not self.ring[0].records:
            return None
        self.reader = self.ring.pop(0)
        self.lost += self.untold
        self.untold = 0
        return self.reader

    def peek(self) -> ModelRecord | None:
        page = self.load_reader()
        return page.unread[0] if page else None

    def consume(self) -> tuple[ModelRecord, int]:
        page = self.load_reader()
        assert page
        lost, self.lost = self.lost, 0
        self.read += 1
        return page.take(), lost

    def read_page(self, size: int) -> tuple[int, list[ModelRecord], int] | bytes | None:
        page = self.load_reader()
        if page is None:
            return None
        if size <= 16:
            return b""
        timestamp = page.read_ts
        taken: list[ModelRecord] = []
        lost = self.lost
        while page.unread and sum(r.size for r in taken) + page.unread[0].size <= size - 16:
            taken.append(page.take())
        if not taken:
            return b""
        self.lost = 0
        self.read += len(taken)
        return timestamp, taken, lost

    def resize(self, nr: int) -> None:
        self.nr = nr
        while len(self.ring) > nr:
            self._drop_oldest()

    def clear(self) -> None:
        oldest = self.oldest_ts
        self.reader = ModelPage()
        self.ring = [ModelPage(ts=oldest)]
        self.last_ts = self.overrun = self.untold = self.lost = self.dropped = self.read = 0

    @property
    def oldest_ts(self) -> int:
        return (self.ring[0] if self.ring else self.reader).ts

    @property
    def unread(self) -> list[ModelRecord]:
        return self.reader.unread + [record for page in self.ring for record in page.records]

    def stats(self) -> BufferStats:
        used = self.reader.used - self.reader.read_bytes + sum(page.used for page in self.ring)
        return BufferStats(len(self.unread), self.overrun, 0, used, self.oldest_ts, self.dropped, self.read)


@attrs.define
class OpenCursor:
    cursor: Iterator[tuple[int, int, bytes, int]]
    cpus: tuple[int, ...]
    last: dict[int, int] = attrs.field(factory=lambda: dict.fromkeys(range(NR_CPUS), -1))
    """Serial of the last record it handed out of each cpu."""


class RingBufferMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="utracefs-test-")
        self.serial = 0
        self.now = 1_000_000
        self.cursors: list[OpenCursor] = []

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(
        size_kb=st.integers(1, 24), in_files=st.booleans(), subbuf_order=st.sampled_from([0, 0, 0, 1])
    )
    def make(self, size_kb: int, in_files: bool, subbuf_order: int) -> None:
        self.in_files = in_files
        self.subbuf_size = 4096 << subbuf_order
        self.buffer = RingBuffer(
            NR_CPUS, size_kb, subbuf_size=self.subbuf_size, folder=self.folder if in_files else None
        )
        payload = self.subbuf_size - 16
        nr = max(2, -(-size_kb * 1024 // payload))
        self.cpus = [ModelCpu(nr, payload) for _ in range(NR_CPUS)]

    @rule(
        cpu=st.integers(0, NR_CPUS - 1),
        count=st.integers(1, 40),
        size=st.integers(8, 200) | st.integers(8, 4072),
        step=st.sampled_from([0, 1, 1000, -5, (1 << 27) - 1, 1 << 27, 1 << 40]),
    )
    def append(self, cpu: int, count: int, size: int, step: int) -> None:
        for _ in range(count):
            self.now += step
            data = entry(self.serial, size)
            stored = self.cpus[cpu].append(self.serial, self.now, data)
            assert self.buffer.append(cpu, self.now, data) == stored
            self.serial += 1

    @rule(count=st.integers(1, 60), cpu=st.integers(-1, NR_CPUS - 1))
    def consume(self, count: int, cpu: int) -> None:
        cursor = self.buffer.cursor(cpu, consume=True)
        cpus = range(NR_CPUS) if cpu < 0 else [cpu]
        for _ in range(count):
            heads = [(r.ts, c) for c in cpus if (r := self.cpus[c].peek())]
            got = next(cursor, None)
            if not heads:
                assert got is None
                break
            record, lost = self.cpus[min(heads)[1]].consume()
            assert got == (min(heads)[1], record.ts, record.data, lost)

    @rule(
        cpu=st.integers(0, NR_CPUS - 1),
        size=st.sampled_from([4096, 8192]) | st.integers(0, 5000),
    )
    def read_page(self, cpu: int, size: int) -> None:
        expected = self.cpus[cpu].read_page(size)
        got = self.buffer.read_page(cpu, size)
        if not isinstance(expected, tuple):
            assert got == expected
            return
        assert got is not None
        assert len(got) == self.subbuf_size
        timestamp, records, lost = expected
        page = decode_page(got)
        assert page.timestamp == timestamp
        assert [(r.ts, r.data) for r in page.records] == [(r.ts, r.data) for r in records]
        assert page.commit == sum(r.size for r in records)
        room = self.subbuf_size - 16 - page.commit >= 8
        assert page.missed_events == (lost if room or not lost else -1)
        assert not any(got[16 + page.commit + (8 if lost and room else 0) :])

    @rule(size_kb=st.integers(1, 24), cpu=st.integers(-1, NR_CPUS - 1))
    def resize(self, size_kb: int, cpu: int) -> None:
        self.buffer.resize(size_kb, cpu)
        nr = max(2, -(-size_kb * 1024 // (self.subbuf_size - 16)))
        for c in range(NR_CPUS) if cpu < 0 else [cpu]:
            self.cpus[c].resize(nr)
            assert self.buffer.nr_subbufs(c) == nr
            assert self.buffer.size_kb(c) == nr * (self.subbuf_size - 16) // 1024

    @precondition(lambda self: self.in_files)
    @rule(size_kb=st.integers(1, 24), cpu=st.integers(-1, NR_CPUS - 1))
    def resize_into_memory(self, size_kb: int, cpu: int) -> None:
        nr = max(2, -(-size_kb * 1024 // (self.subbuf_size - 16)))
        self.buffer.resize(size_kb, cpu, in_memory=True)
        self.in_files = False
        for c in range(NR_CPUS) if cpu < 0 else [cpu]:
            self.cpus[c].resize(nr)
        assert [self.buffer.nr_subbufs(c) for c in range(NR_CPUS)] == [model.nr for model in self.cpus]

    @rule(cpu=st.integers(-1, NR_CPUS - 1))
    def clear(self, cpu: int) -> None:
        self.buffer.clear(cpu)
        for c in range(NR_CPUS) if cpu < 0 else [cpu]:
            self.cpus[c].clear()

    @rule(on=st.booleans())
    def set_overwrite(self, on: bool) -> None:
        self.buffer.overwrite = on
        assert self.buffer.overwrite == on
        for cpu in self.cpus:
            cpu.overwrite = on

    @rule(cpu=st.integers(-1, NR_CPUS - 1))
    def open_cursor(self, cpu: int) -> None:
        cpus = tuple(range(NR_CPUS)) if cpu < 0 else (cpu,)
        self.cursors.append(OpenCursor(self.buffer.cursor(cpu), cpus))

    @precondition(lambda self: self.cursors)
    @rule(which=st.integers(0, 1000), count=st.integers(1, 100))
    def step_cursor(self, which: int, count: int) -> None:
        """A cursor gives the first unread record behind the last that it gave; the oldest over its cpus."""
        opened = self.cursors[which % len(self.cursors)]
        for _ in range(count):
            heads = []
            for c in opened.cpus:
                record = next((r for r in self.cpus[c].unread if r.serial > opened.last[c]), None)
                if record:
                    heads.append((record.ts, c, record))
            got = next(opened.cursor, None)
            if not heads:
                assert got is None
                break
            ts, c, record = min(heads, key=lambda head: head[:2])
            assert got == (c, ts, record.data, 0)
            opened.last[c] = record.serial

    @precondition(lambda self: self.in_files)
    @rule()
    def die(self) -> None:
        with tempfile.TemporaryDirectory() as copy:
            for cpu in range(NR_CPUS):
                shutil.copy(f"{self.folder}/cpu{cpu}", copy)
            adopted = RingBuffer.adopt(copy)
        assert adopted.nr_cpus == NR_CPUS
        for cpu, model in enumerate(self.cpus):
            assert adopted.stats(cpu) == model.stats()
            assert adopted.nr_subbufs(cpu) == model.nr
        assert adopted.overwrite == self.buffer.overwrite
        if self.serial % 2:  # and go on with it
            self.buffer = RingBuffer.adopt(self.folder)
            self.cursors.clear()

    @invariant()
    def same_numbers(self) -> None:
        if not hasattr(self, "cpus"):
            return
        for cpu, model in enumerate(self.cpus):
            assert self.buffer.stats(cpu) == model.stats()
            assert self.buffer.entries(cpu) == len(model.unread)
            assert self.buffer.is_empty(cpu) == (not model.unread)
            full = 100 * len(model.ring) // model.nr if model.unread else 0
            assert self.buffer.percent_full(cpu) == full
        assert self.buffer.entries() == sum(len(model.unread) for model in self.cpus)
        assert self.buffer.overruns() == sum(model.overrun for model in self.cpus)
        assert self.buffer.is_empty() == (not any(model.unread for model in self.cpus))


TestRingBufferMachine = RingBufferMachine.TestCase
TestRingBufferMachine.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


# ---- what a kernel showed ----


def fill(buffer: RingBuffer, count: int, size: int = 60, cpu: int = 0) -> int:
    """Entries of `size` bytes with the time stamps 1000, 1001, ...; how many were stored."""
    return sum(buffer.append(cpu, 1000 + i, entry(i, size)) for i in range(count))


def reference() -> RingBuffer:
    """600 records of 64 bytes, the first ten of one word less, in three sub-buffers."""
    buffer = RingBuffer(1, 8)
    assert buffer.nr_subbufs(0) == 3
    for i in range(600):
        buffer.append(0, 1000 + i, entry(i, 56 if i < 10 else 60))
    return buffer


def test_overwrite_drops_the_oldest_sub_buffer_whole() -> None:
    buffer = reference()
    assert buffer.stats(0) == BufferStats(158, 442, 0, 10208, 1442, 0, 0)
    pages = []
    while page := buffer.read_page(0, 65536):
        pages.append(page)
    assert [len(decode_page(page).records) for page in pages] == [63, 63, 32]
    assert [decode_page(page).missed_events for page in pages] == [442, 0, 0]
    commit = struct.unpack_from("<Q", pages[0], 8)[0]
    assert commit == 0xC0000FC0
    assert buffer.read_page(0, 4096) is None
    assert buffer.stats(0) == BufferStats(0, 442, 0, 0, 1568, 0, 158)


def test_a_consuming_cursor_tells_what_was_lost_once() -> None:
    records = list(reference().cursor(consume=True))
    assert [lost for *_, lost in records] == [442] + [0] * 157
    assert [HEADER.unpack_from(data)[0] for _, _, data, _ in records] == list(range(442, 600))


def test_overwrite_off_keeps_the_old_records() -> None:
    buffer = RingBuffer(1, 8)
    buffer.overwrite = False
    assert fill(buffer, 600) == 189
    assert buffer.stats(0).dropped_events == 411
    assert buffer.stats(0).overrun == 0
    assert HEADER.unpack_from(next(buffer.cursor(consume=True))[2])[0] == 0
    # reading took a page off the ring: recording goes on, and nothing is told as lost
    assert buffer.append(0, 5000, entry(1, 60))
    *_, last = buffer.cursor(consume=True)
    assert last[1:] == (5000, as_stored(entry(1, 60)), 0)


def test_overwrite_off_lets_no_smaller_record_slip_in() -> None:
    buffer = RingBuffer(1, 1)
    buffer.overwrite = False
    assert fill(buffer, 5, 2000) == 4
    assert not buffer.append(0, 2000, entry(9, 8))
    assert buffer.stats(0).bytes == 2 * 4080


def test_a_slow_reader_first_sees_the_rest_of_its_page() -> None:
    buffer = RingBuffer(1, 8)
    fill(buffer, 100)
    cursor = buffer.cursor(consume=True)
    first = [next(cursor) for _ in range(10)]
    fill(buffer, 1000)
    rest = list(cursor)
    numbers = [HEADER.unpack_from(data)[0] for _, _, data, _ in first + rest]
    assert numbers[:63] == list(range(63))
    assert [lost for *_, lost in rest[:53]] == [0] * 53
    assert rest[53][3] == buffer.overruns(0) > 0


def test_the_smallest_record_takes_16_bytes() -> None:
    buffer = RingBuffer(1, 8)
    buffer.append(0, 5, entry(1, 8))
    page = buffer.read_page(0, 4096)
    assert page is not None
    assert page[8:32] == struct.pack("<QI8sI", 16, 3, HEADER.pack(1), 0)


def test_the_header_and_payload_of_the_specification() -> None:
    data = bytes.fromhex("2304000036000000 00000000 10000800 68656c6c6f203000")
    buffer = RingBuffer(1, 8)
    buffer.append(0, 5, data)
    page = buffer.read_page(0, 4096)
    assert page is not None
    assert page[16:44] == bytes.fromhex("06000000") + data


@pytest.mark.parametrize(
    ("delta", "size"), [((1 << 27) - 1, 28), (1 << 27, 36), (311775975, 36), (1 << 50, 36)]
)
def test_a_long_delta_gets_a_time_extend(delta: int, size: int) -> None:
    buffer = RingBuffer(1, 8)
    buffer.append(0, 100, entry(1, 24))
    buffer.append(0, 100 + delta, entry(2, 24))
    assert buffer.stats(0).bytes == 28 + size
    assert [ts for _, ts, _, _ in buffer.cursor()] == [100, 100 + delta]
    # Read in the smallest pieces: the extend stays with its record, the page has the time of the one before.
    pages = [buffer.read_page(0, 16 + length) for length in (28, 27, size - 1, size)]
    assert pages[1:3] == [b"", b""]
    assert pages[0] is not None and pages[3] is not None
    assert decode_page(pages[3]).timestamp == 100
    assert [r.ts for r in decode_page(pages[3]).records] == [100 + delta]


def test_the_extend_that_a_kernel_wrote_in_bytes() -> None:
    buffer = RingBuffer(1, 8)
    buffer.append(0, 0, entry(1, 24))
    buffer.append(0, 311775975, entry(2, 24))
    page = buffer.read_page(0, 4096)
    assert page is not None
    assert struct.unpack_from("<III", page, 16 + 28) == (43340519 << 5 | 30, 2, 6)


def test_an_extend_never_parts_from_its_record() -> None:
    """Room for the record alone, but not for both: both go to the next page, where no extend is needed."""
    buffer = RingBuffer(1, 8)
    buffer.append(0, 10, entry(1, 4080 - 8 - 32))
    buffer.append(0, 10 + (1 << 27), entry(2, 24))
    pages = [buffer.read_page(0, 4096) for _ in range(2)]
    assert [decode_page(page).timestamp for page in pages if page] == [10, 10 + (1 << 27)]
    assert pages[1] is not None and struct.unpack_from("<I", pages[1], 16)[0] == 6


def test_padding_at_the_page_end_lies_behind_commit() -> None:
    buffer = RingBuffer(1, 8)
    fill(buffer, 64)
    page = buffer.read_page(0, 4096)
    assert page is not None
    assert struct.unpack_from("<Q", page, 8)[0] == 4032
    assert not any(page[16 + 4032 :])


def test_time_does_not_go_backwards() -> None:
    buffer = RingBuffer(1, 8)
    for ts in (100, 50, 101):
        buffer.append(0, ts, entry(ts, 8))
    assert [ts for _, ts, _, _ in buffer.cursor()] == [100, 100, 101]
    buffer.clear()
    buffer.append(0, 7, entry(7, 8))  # after a clear the clock may be another
    assert [ts for _, ts, _, _ in buffer.cursor()] == [7]


def test_cpus_are_merged_by_time_and_then_by_number() -> None:
    buffer = RingBuffer(3, 8)
    for cpu, ts in [(2, 5), (0, 5), (1, 5), (1, 9), (0, 7)]:
        buffer.append(cpu, ts, entry(0, 8))
    expected = [(0, 5), (1, 5), (2, 5), (0, 7), (1, 9)]
    assert [record[:2] for record in buffer.cursor()] == expected
    assert [record[:2] for record in buffer.cursor(consume=True)] == expected


@pytest.mark.parametrize("size_kb, shown", [(1, 7), (8, 11), (16, 19), (64, 67), (100, 103), (1408, 1410)])
def test_sizes(size_kb: int, shown: int) -> None:
    buffer = RingBuffer(2, 1)
    assert [buffer.size_kb(cpu) for cpu in range(2)] == [7, 7]
    buffer.resize(size_kb)
    assert [buffer.size_kb(cpu) for cpu in range(2)] == [shown, shown]
    buffer.resize(1)
    assert buffer.size_kb(1) == 7


@pytest.mark.parametrize("order", range(8))
def test_sub_buffers_up_to_512_kib(order: int) -> None:
    size = 4096 << order
    buffer = RingBuffer(1, 1, subbuf_size=size)
    assert buffer.max_entry_size == size - 24
    largest = bytes(8) + b"x" * (size - 32)
    assert buffer.append(0, 1, largest)
    with pytest.raises(ValueError, match="at most"):
        buffer.append(0, 1, largest + b"x")
    page = buffer.read_page(0, size)
    assert page is not None
    assert [r.data for r in decode_page(page).records] == [largest]


def test_the_watermark_of_nine_pages() -> None:
    buffer = RingBuffer(1, 32)
    assert buffer.nr_subbufs(0) == 9
    assert buffer.percent_full(0) == 0
    for count, percent in ((1, 11), (62, 11), (1, 22), (63 * 3, 55), (63 * 9, 100)):
        fill(buffer, count)
        assert buffer.percent_full(0) == percent
    buffer.clear()
    fill(buffer, 1)
    next(buffer.cursor(consume=True))
    fill(buffer, 1)
    assert buffer.percent_full(0) == 0  # the writer is on the reader page


def test_lost_without_room_for_the_number() -> None:
    buffer = RingBuffer(1, 1)
    for i in range(4):
        buffer.append(0, i, entry(i, 4072))  # each fills a page to its last byte
    page = buffer.read_page(0, 4096)
    assert page is not None
    assert struct.unpack_from("<Q", page, 8)[0] == 0x80000000 | 4080
    assert decode_page(page).missed_events == -1


def test_a_cursor_says_when_it_was_overtaken() -> None:
    buffer = RingBuffer(1, 8)
    fill(buffer, 100)
    cursor = buffer.cursor()
    next(cursor)
    assert not cursor.overrun
    fill(buffer, 200)
    next(cursor)
    assert cursor.overrun
    next(cursor)
    assert not cursor.overrun
    fresh = buffer.cursor()  # what was overwritten before it began does not count for it
    next(fresh)
    assert not fresh.overrun


def test_a_cursor_waits_at_the_end() -> None:
    buffer = RingBuffer(1, 8)
    cursor = buffer.cursor()
    assert list(cursor) == []
    for i in range(200):
        buffer.append(0, i, entry(i, 60))
        assert [ts for _, ts, _, _ in cursor] == [i]


def test_a_cursor_keeps_its_buffer() -> None:
    cursor = reference().cursor()
    assert len(list(cursor)) == 158


# ---- arguments ----


@pytest.mark.parametrize(
    "make",
    [
        lambda: RingBuffer(0, 8),
        lambda: RingBuffer(1, 0),
        lambda: RingBuffer(1, -5),
        lambda: RingBuffer(1, 8, subbuf_size=4095),
        lambda: RingBuffer(1, 8, subbuf_size=2048),
        lambda: RingBuffer(1, 8, subbuf_size=-4096),
        lambda: RingBuffer(1, 8, subbuf_size=1 << 20),
        lambda: RingBuffer(1, 8).append(0, 0, b"1234567"),
        lambda: RingBuffer(1, 8).append(0, 0, bytes(4073)),
        lambda: RingBuffer(1, 8).resize(0),
        lambda: RingBuffer(1, 8).read_page(0, -1),
    ],
)
def test_refused_values(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        make()


@pytest.mark.parametrize("cpu", [-2, 2, 1 << 20])
def test_refused_cpus(cpu: int) -> None:
    buffer = RingBuffer(2, 8)
    for call in (
        lambda: buffer.append(cpu, 0, bytes(8)),
        lambda: buffer.stats(cpu),
        lambda: buffer.clear(cpu),
        lambda: buffer.resize(8, cpu),
        lambda: buffer.entries(cpu),
        lambda: buffer.read_page(cpu, 4096),
        lambda: buffer.cursor(cpu),
        lambda: buffer.size_kb(cpu),
    ):
        with pytest.raises(IndexError):
            call()


def test_no_memory_leaves_the_ring_as_it_was() -> None:
    buffer = RingBuffer(2, 8)
    fill(buffer, 100)
    with pytest.raises(MemoryError):
        buffer.resize(1 << 40)
    with pytest.raises(MemoryError):
        buffer.resize(1 << 62, 1)
    assert buffer.entries() == 100
    assert buffer.size_kb(0) == 11


# ---- the files, and taking over ----


def test_files_have_mode_0600(tmp_path: Path) -> None:
    buffer = RingBuffer(2, 8, folder=str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "cpu1"]
    assert all((tmp_path / name).stat().st_mode & 0o7777 == 0o600 for name in ("cpu0", "cpu1"))
    buffer.resize(100)
    assert sorted(os.listdir(tmp_path)) == ["cpu0", "cpu1"]


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RingBuffer(2, 8, folder=str(tmp_path / "missing"))
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 10)
    (tmp_path / "cpu0.new").mkdir()
    with pytest.raises(OSError):
        buffer.resize(100)
    assert buffer.entries() == 10
    assert buffer.size_kb(0) == 11


def run_child(work: Callable[[], None]) -> int:
    """Fork; the child does its work and is gone, whatever happens in it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_adopting_a_killed_writer_loses_nothing(tmp_path: Path) -> None:
    """A child appends and reads at full speed until it is killed at no particular place."""
    for attempt in range(5):
        RingBuffer(1, 8, folder=str(tmp_path))
        read_end, write_end = os.pipe()

        def work(to: int = write_end) -> None:
            buffer = RingBuffer.adopt(str(tmp_path))
            cursor = buffer.cursor(consume=True)
            for serial in itertools.count():
                buffer.append(0, serial, entry(serial, 8 + serial % 200))
                if serial % 8 == 0:
                    next(cursor)
                if serial % 100 == 0:
                    os.write(to, b".")

        pid = run_child(work)
        try:
            os.close(write_end)
            for _ in range(10 + attempt):
                assert os.read(read_end, 1)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(read_end)
        buffer = RingBuffer.adopt(str(tmp_path))
        stats = buffer.stats(0)
        records = [(ts, data) for _, ts, data, _ in buffer.cursor()]
        assert len(records) == stats.entries
        last = records[-1][0]
        # one after the other up to the last that was committed; all others were read or overwritten
        assert all(data == as_stored(entry(ts, 8 + ts % 200)) for ts, data in records)
        assert stats.entries + stats.overrun + stats.read_events == last + 1
        assert buffer.append(0, last + 1, entry(last + 1, 8))


PTRACE_TRACEME, PTRACE_SINGLESTEP = 0, 9


def test_a_writer_can_be_killed_between_any_two_instructions(tmp_path: Path) -> None:
    """Step a child through page turns, overwriting, swaps and a clear; adopt what each store would leave."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    RingBuffer(1, 1, folder=str(tmp_path))
    copy = tmp_path / "copy"
    copy.mkdir()

    def work() -> None:
        buffer = RingBuffer.adopt(str(tmp_path))
        cursor = buffer.cursor(consume=True)
        data = [entry(serial, 1300) for serial in range(20)]
        if libc.ptrace(PTRACE_TRACEME, 0, None, None):
            os._exit(77)
        os.kill(os.getpid(), signal.SIGSTOP)
        for serial in range(11):  # three to a page: fills two pages, and overwrites
            buffer.append(0, serial << 27, data[serial])
        next(cursor)
        next(cursor)
        buffer.read_page(0, 4096)
        next(cursor)
        for serial in range(11, 16):
            buffer.append(0, serial << 27, data[serial])
        buffer.clear()
        buffer.append(0, 16 << 27, data[16])

    pid = run_child(work)
    try:
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            pytest.skip("ptrace is not allowed here")
        file = os.open(tmp_path / "cpu0", os.O_RDONLY)
        with mmap.mmap(file, 0, prot=mmap.PROT_READ) as shared:
            os.close(file)
            seen = []
            before = b""
            while os.WIFSTOPPED(status):
                content = shared[:]
                if content != before:
                    before = content
                    (copy / "cpu0").unlink(missing_ok=True)
                    (copy / "cpu0").write_bytes(content)
                    adopted = RingBuffer.adopt(str(copy))
                    stats = adopted.stats(0)
                    records = list(adopted.cursor())
                    assert len(records) == stats.entries
                    serials = [HEADER.unpack_from(data)[0] for _, _, data, _ in records]
                    assert [data for _, _, data, _ in records] == [as_stored(entry(n, 1300)) for n in serials]
                    assert [ts for _, ts, _, _ in records] == [n << 27 for n in serials]
                    assert serials == sorted(serials)
                    written = stats.entries + stats.overrun + stats.read_events
                    seen.append((written, stats.overrun, stats.read_events, serials))
                assert libc.ptrace(PTRACE_SINGLESTEP, pid, None, None) == 0
                _, status = os.waitpid(pid, 0)
        pid = 0
    finally:
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    assert seen[-1] == (1, 0, 0, [16])
    cleared = next(i for i, state in enumerate(seen) if i and state[0] < seen[i - 1][0])
    for first, second in itertools.pairwise(seen[:cleared]):
        # record by record, page by page: nothing unwritten, unread or un-overwritten again
        assert 0 <= second[0] - first[0] <= 1
        assert second[1] - first[1] in (0, 3)
        assert second[2] - first[2] in (0, 1, 3)
        # and what is missing was counted
        assert len(second[3]) == second[0] - second[1] - second[2]
    assert seen[cleared - 1][:3] == (16, 6, 4)
    assert all(state in ((0, 0, 0, []), seen[-1]) for state in seen[cleared:])


CONTROL_STATE = 40
STATE_SIZE = 80
ORIGIN_SIZE = 24


def adopt_changed(folder: Path, offset: int, data: bytes) -> RingBuffer:
    """Adopt a copy of the buffer of one cpu, with other bytes at an offset."""
    content = bytearray((folder / "cpu0").read_bytes())
    content[offset : offset + len(data)] = data
    copy = folder / "copy"
    copy.mkdir(exist_ok=True)
    (copy / "cpu0").unlink(missing_ok=True)
    (copy / "cpu0").write_bytes(content)
    return RingBuffer.adopt(str(copy))


def test_an_interrupted_swap_is_finished(tmp_path: Path) -> None:
    """Killed after the reader page was swapped in, before the page it replaced got its slot."""
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 100)
    before = (tmp_path / "cpu0").read_bytes()
    ring_at = CONTROL_STATE + 2 * STATE_SIZE + ORIGIN_SIZE + 4 * 8
    assert struct.unpack_from("<3I", before, ring_at) == (0, 1, 2)
    next(buffer.cursor(consume=True))  # slot 2 % 3 gives its page to the reader
    assert struct.unpack_from("<3I", (tmp_path / "cpu0").read_bytes(), ring_at) == (0, 1, 3)
    adopted = adopt_changed(tmp_path, ring_at + 8, struct.pack("<I", 2))
    assert adopted.stats(0) == buffer.stats(0)
    fill(adopted, 600)
    assert sum(len(decode_page(p).records) for p in iter(lambda: adopted.read_page(0, 4096), None)) > 150


def test_an_interrupted_clear_is_finished(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 600)
    active = struct.unpack_from("<I", (tmp_path / "cpu0").read_bytes(), 32)[0]
    adopted = adopt_changed(tmp_path, CONTROL_STATE + active * STATE_SIZE + 72, struct.pack("<I", 1))
    assert adopted.stats(0) == attrs.evolve(
        BufferStats(0, 0, 0, 0, 0, 0, 0), oldest_ts=adopted.stats(0).oldest_ts
    )


def test_a_record_without_its_commit_does_not_exist(tmp_path: Path) -> None:
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 3)
    page = 4096 + 2 * 4096  # position 2 is page 2
    assert struct.unpack_from("<QQ", (tmp_path / "cpu0").read_bytes(), page) == (1000, 3 * 64)
    adopted = adopt_changed(tmp_path, page + 8, struct.pack("<Q", 2 * 64))
    assert adopted.entries() == 2
    assert [ts for _, ts, _, _ in adopted.cursor()] == [1000, 1001]


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (0, b"x"),  # magic
        (8, b"\1"),  # version
        (12, struct.pack("<I", 8192)),
        (12, struct.pack("<I", 0)),
        (16, struct.pack("<I", 4)),  # nr_subbufs that the file's length does not allow
        (16, struct.pack("<I", 0)),
        (16, struct.pack("<I", 0xFFFFFFFF)),
        (20, struct.pack("<I", 1)),  # cpu
        (24, struct.pack("<I", 0)),  # nr_cpus
        (28, struct.pack("<I", 2)),  # overwrite
        (32, struct.pack("<I", 2)),  # active
    ],
)
def test_nonsense_in_the_control_page_is_refused(tmp_path: Path, offset: int, data: bytes) -> None:
    fill(RingBuffer(1, 8, folder=str(tmp_path)), 600)
    with pytest.raises(ValueError, match="cpu0"):
        adopt_changed(tmp_path, offset, data)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        (0, 0),  # head
        (0, 1 << 63),
        (0, 50),
        (8, 0),  # tail
        (8, 1 << 62),
        (16, 99),  # reader_pos
        (24, 9),  # reader_id
        (24, 0xFFFFFFFF),
        (24, 0x100000000),  # read_off past commit
        (40, 1 << 40),  # last_overrun
        (72, 2),  # clearing
    ],
)
def test_nonsense_in_the_state_is_refused(tmp_path: Path, member: int, value: int) -> None:
    fill(RingBuffer(1, 8, folder=str(tmp_path)), 600)
    active = struct.unpack_from("<I", (tmp_path / "cpu0").read_bytes(), 32)[0]
    with pytest.raises(ValueError, match="cpu0"):
        adopt_changed(tmp_path, CONTROL_STATE + active * STATE_SIZE + member, struct.pack("<Q", value))


def test_nonsense_in_ring_and_pages_is_refused(tmp_path: Path) -> None:
    fill(RingBuffer(1, 8, folder=str(tmp_path)), 600)
    content = (tmp_path / "cpu0").read_bytes()
    ring_at = CONTROL_STATE + 2 * STATE_SIZE + ORIGIN_SIZE + 4 * 8
    for page_id in (99, 3, 2):  # no such page, the reader page, twice the same
        with pytest.raises(ValueError, match="page"):
            adopt_changed(tmp_path, ring_at, struct.pack("<I", page_id))
    pages = [at for at in range(4096, len(content), 4096) if struct.unpack_from("<Q", content, at + 8)[0]]
    assert len(pages) == 3
    for at in pages:
        if struct.unpack_from("<Q", content, at + 8)[0] == 4080:  # an empty page that is not the last
            with pytest.raises(ValueError, match="records"):
                adopt_changed(tmp_path, at + 8, bytes(8))
        for offset, data in [
            (8, struct.pack("<Q", 4084)),  # commit past the page
            (8, struct.pack("<Q", 63)),
            (8, struct.pack("<Q", 1 << 32)),
            (16, struct.pack("<II", 0, 0xFFFFFFFF)),
            (16, struct.pack("<II", 0, 3)),
            (16, struct.pack("<II", 0, 5000)),
            (16, struct.pack("<II", 1 << 5 | 29, 4076)),  # nothing but padding
            (16, struct.pack("<I", 1)),  # 4 bytes are no entry
        ]:
            with pytest.raises(ValueError, match="records"):
                adopt_changed(tmp_path, at + offset, data)


def test_every_byte_changed_is_refused_or_readable(tmp_path: Path) -> None:
    """Whatever a file says: ValueError, or a buffer that can be read to its end and written."""
    buffer = RingBuffer(1, 8, folder=str(tmp_path))
    fill(buffer, 600)
    for _ in range(10):
        next(buffer.cursor(consume=True))
    for offset in [*range(CONTROL_STATE + 2 * STATE_SIZE + ORIGIN_SIZE + 48), *range(8192, 8192 + 100)]:
        for value in (0xFF, 0x7F, 1, 30, 31):
            try:
                adopted = adopt_changed(tmp_path, offset, bytes([value]))
            except (ValueError, FileNotFoundError):  # the latter: it names more cpus than there are
                continue
            assert len(list(adopted.cursor())) == adopted.entries()
            for i in range(100):
                adopted.append(0, 10000 + i, entry(i, 60))
            while adopted.read_page(0, 500):
                pass
            assert adopted.is_empty()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RingBuffer.adopt(str(tmp_path))
    path = tmp_path / "cpu0"
    for content in (b"", b"x" * 100, b"x" * 100000):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cpu0"):
            RingBuffer.adopt(str(tmp_path))
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(OSError):
        RingBuffer.adopt(str(tmp_path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match="cpu0"):
        RingBuffer.adopt(str(tmp_path))


def test_files_of_different_buffers_do_not_go_together(tmp_path: Path) -> None:
    for name, cpus, subbuf_size in (("two", 2, 4096), ("three", 3, 4096), ("large", 2, 8192)):
        (tmp_path / name).mkdir()
        RingBuffer(cpus, 8, folder=str(tmp_path / name), subbuf_size=subbuf_size)
    for other in ("three", "large"):
        shutil.copy(tmp_path / other / "cpu1", tmp_path / "two" / "cpu1")
        with pytest.raises(ValueError, match="cpu1"):
            RingBuffer.adopt(str(tmp_path / "two"))
    (tmp_path / "two" / "cpu1").unlink()
    with pytest.raises(FileNotFoundError):
        RingBuffer.adopt(str(tmp_path / "two"))
    shutil.copy(tmp_path / "two" / "cpu0", tmp_path / "two" / "cpu1")
    with pytest.raises(ValueError, match="cpu1"):
        RingBuffer.adopt(str(tmp_path / "two"))


def test_the_bench_door() -> None:
    assert 0 < RingBuffer(1, 64)._bench_append(10000, 16) < 10000
