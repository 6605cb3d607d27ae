"""A slow model of the ring buffer, and entries with a serial number.

`ModelCpu` is made of lists: pages of records, not compact, and without shared code.
"""

import struct

import attrs

from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.buffer.stats import BufferStats

HEADER = struct.Struct("<Q")


def entry(serial: int, size: int) -> bytes:
    """`size` bytes whose first 8, the common fields for the buffer, have the serial number."""
    return HEADER.pack(serial) + bytes((serial + i) & 0xFF for i in range(size - 8))


def stored_size(size: int) -> int:
    """Bytes of a record on a page without time extend, as in rb_calculate_event_length()."""
    total = 4 + size + (4 if size > 112 else 0)
    total += -total % 4
    return 16 if total == 12 else total


def as_stored(data: bytes) -> bytes:
    """An entry as readers get it: padded with zeros."""
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
    lost: int = 0
    """Mark before the first record."""


@attrs.define
class ModelCpu:
    nr: int
    payload: int = 4080
    overwrite: bool = True
    reader: ModelPage = attrs.field(factory=ModelPage)
    ring: list[ModelPage] = attrs.field(factory=lambda: [ModelPage()])
    """Oldest first; the last is being written. Empty: the reader page is."""
    last_ts: int = 0
    late: int = 0
    late_by: int = 0
    overrun: int = 0
    untold: int = 0
    """Overwritten since the reader page was swapped in."""
    lost: int = 0
    """Overwritten before the reader page's next record."""
    dropped: int = 0
    read: int = 0
    unmarked: int = 0
    """Lost, not yet in a page's mark."""

    def mark_lost(self, n: int) -> None:
        page = self.ring[-1] if self.ring else self.reader
        if not page.records:
            page.lost += n
            return
        self.unmarked += n
        if self.overwrite or len(self.ring) < self.nr:
            if self.payload - page.used >= 8:
                page.used = page.payload_if_padded = self.payload
            if len(self.ring) == self.nr:
                self._drop_oldest()
            self._new_page()
            self.ring[-1].ts = self.last_ts

    def mark_before(self, record: ModelRecord) -> int:
        """The loss that a non-consuming walk reports before it."""
        first = [page for page in [self.reader, *self.ring] if page.records and page.records[0] is record]
        return first[0].lost if first else 0

    def _new_page(self) -> None:
        self.ring.append(ModelPage(lost=self.unmarked))
        self.unmarked = 0

    def append(self, serial: int, ts: int, data: bytes) -> bool:
        late_by = max(0, self.last_ts - ts)
        ts += late_by
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
            self._new_page()
        if not page.records:
            page.ts = ts
        page.records.append(ModelRecord(serial, ts, as_stored(data), size))
        page.used += size
        self.last_ts = ts
        self.late += late_by > 0
        self.late_by = max(self.late_by, late_by)
        return True

    def _drop_oldest(self) -> None:
        page = self.ring.pop(0)
        self.overrun += len(page.records)
        self.untold += len(page.records) + page.lost

    def load_reader(self) -> ModelPage | None:
        if self.reader.unread:
            return self.reader
        if not self.ring or not self.ring[0].records:
            return None
        self.reader = self.ring.pop(0)
        self.lost += self.untold + self.reader.lost
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
        room = size - 16
        while page.unread and sum(r.size for r in taken) + page.unread[0].size <= room:
            taken.append(page.take())
            room = min(size - 16, self.payload - 8) if lost else size - 16
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
        self.last_ts = self.overrun = self.untold = self.lost = self.dropped = self.read = self.unmarked = 0
        self.late = self.late_by = 0

    @property
    def oldest_ts(self) -> int:
        return (self.ring[0] if self.ring else self.reader).ts

    @property
    def unread(self) -> list[ModelRecord]:
        return self.reader.unread + [record for page in self.ring for record in page.records]

    def stats(self) -> BufferStats:
        used = self.reader.used - self.reader.read_bytes + sum(page.used for page in self.ring)
        return BufferStats(
            *(len(self.unread), self.overrun, 0, used, self.oldest_ts, self.dropped, self.read),
            *(self.late, self.late_by),
        )


def fill(buffer: RingBuffer, count: int, size: int = 60, cpu: int = 0) -> int:
    """Entries of `size` bytes with the time stamps 1000, 1001, ...; how many were stored."""
    return sum(buffer.append(cpu, 1000 + i, entry(i, size)) for i in range(count))
