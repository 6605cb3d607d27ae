"""The ring buffer against a slow model of it, and against observations of a kernel.

Hypothesis plays random appends, reads, resizes and clears against both, with cursors that stay open all the
time. After any of them the process may "die": the model continues, the buffer is adopted from copied files.
"""

import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator

import attrs
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.daemon.consumers.ftrace.buffer.ring_model import HEADER, ModelCpu, entry, fill
from tests.protocol.pages.page_writer import decode_page
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.buffer.stats import BufferStats

NR_CPUS = 2


@attrs.define
class OpenCursor:
    cursor: Iterator[tuple[int, int, bytes, int]]
    cpus: tuple[int, ...]
    last: dict[int, int] = attrs.field(factory=lambda: dict.fromkeys(range(NR_CPUS), -1))
    """Serial of the last record of each cpu that it returned."""


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

    @rule(cpu=st.integers(0, NR_CPUS - 1), n=st.integers(1, 1 << 40))
    def mark_lost(self, cpu: int, n: int) -> None:
        self.buffer.mark_lost(cpu, n)
        self.cpus[cpu].mark_lost(n)

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

    @rule(cpu=st.integers(0, NR_CPUS - 1))
    def copy_pages(self, cpu: int) -> None:
        """The result of a walk over the records, page by page."""
        walk = [(ts, data, lost) for _, ts, data, lost in self.buffer.cursor(cpu)]
        cursor = self.buffer.cursor(cpu)
        found: list[tuple[int, bytes, int]] = []
        while got := cursor.page():
            assert len(got) == self.subbuf_size
            page = decode_page(got)
            assert page.records
            for at, record in enumerate(page.records):
                missed = 0 if at else page.missed_events
                uncounted = missed == -1 and self.subbuf_size - 16 - page.commit < 8
                found.append((record.ts, record.data, walk[len(found)][2] if uncounted else missed))
        assert found == walk

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
        """A cursor returns the first unread record after its last one; the oldest over its cpus."""
        opened = self.cursors[which % len(self.cursors)]
        for _ in range(count):
            heads = []
            for c in opened.cpus:
                record = next((r for r in self.cpus[c].unread if r.serial > opened.last[c]), None)
                if record:
                    heads.append((record.ts, c, record, self.cpus[c].mark_before(record)))
            got = next(opened.cursor, None)
            if not heads:
                assert got is None
                break
            ts, c, record, lost = min(heads, key=lambda head: head[:2])
            assert got == (c, ts, record.data, lost)
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
        if self.serial % 2:  # and continue with it
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
    max_examples=150, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


# ---- observations of a kernel ----


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


def test_the_extend_that_a_kernel_wrote_in_bytes() -> None:
    buffer = RingBuffer(1, 8)
    buffer.append(0, 0, entry(1, 24))
    buffer.append(0, 311775975, entry(2, 24))
    page = buffer.read_page(0, 4096)
    assert page is not None
    assert struct.unpack_from("<III", page, 16 + 28) == (43340519 << 5 | 30, 2, 6)


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


def test_pages_of_a_walk_end_where_it_began_and_say_what_was_overwritten() -> None:
    buffer = reference()
    cursor = buffer.cursor(0)
    first = cursor.page()
    assert first is not None and len(decode_page(first).records) == 63
    for i in range(63 * 3):
        buffer.append(0, 2000 + i, entry(600 + i, 60))
    pages = []
    while page := cursor.page():
        pages.append(decode_page(page))
    assert [page.missed_events for page in pages] == []  # what there was is overwritten, the rest is newer
    with pytest.raises(ValueError, match="only a walk over one cpu"):
        buffer.cursor(0, consume=True).page()
    cursor = buffer.cursor(0)
    assert cursor.page()
    for i in range(63 * 2):
        buffer.append(0, 3000 + i, entry(800 + i, 60))
    page = cursor.page()
    assert page is not None and decode_page(page).missed_events == -1


def add(buffer: RingBuffer, sizes: Iterable[int]) -> None:
    for size in sizes:
        assert buffer.append(0, 1, entry(0, size))


def pages_of(buffer: RingBuffer) -> list[tuple[int, int]]:
    """Losses and records of each page; takes them."""
    pages = map(decode_page, iter(lambda: buffer.read_page(0, 4096) or b"", b""))
    return [(page.missed_events, len(page.records)) for page in pages]


def test_marks_of_overwritten_sub_buffers_are_with_the_next() -> None:
    buffer = RingBuffer(1, 8)
    for n in (7, 8, 9):  # two of them are overwritten
        buffer.mark_lost(0, n)
        add(buffer, [60] * 63)
    add(buffer, [60] * 64)
    assert pages_of(buffer) == [(126 + 7 + 8 + 9, 63), (0, 63), (0, 1)]


def test_marks_while_it_is_full_wait_for_the_next_record() -> None:
    buffer = RingBuffer(1, 8)
    buffer.overwrite = False
    add(buffer, [60] * 63 * 3)
    buffer.mark_lost(0, 3)
    buffer.mark_lost(0, 4)
    assert buffer.read_page(0, 4096)
    add(buffer, [60])
    assert pages_of(buffer) == [(0, 63), (0, 63), (7, 1)]


def test_the_number_of_lost_records_fits_into_the_last_8_bytes() -> None:
    buffer = RingBuffer(1, 8)
    buffer.mark_lost(0, 5)
    add(buffer, [60] * 63 + [36])
    assert pages_of(buffer) == [(5, 64)]


def test_a_cursor_keeps_its_buffer() -> None:
    cursor = reference().cursor()
    assert len(list(cursor)) == 158


# ---- arguments ----


@pytest.mark.parametrize(
    "make",
    [
        lambda: RingBuffer(1, 0),
        lambda: RingBuffer(1, -5),
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
