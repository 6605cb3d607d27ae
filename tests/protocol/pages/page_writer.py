"""Pages written record by record, slow and plain, and read at once: the judge of the compiled writers."""

import struct

import attrs

from utracefs_protocol.pages._subbuf import iter_records, missed_events, page_header

MISSED_UNKNOWN = -1
HEADER_SIZE = 16


@attrs.frozen
class PageRecord:
    ts: int
    """In units of the trace clock; nanoseconds but for `counter` and `x86-tsc`."""
    data: bytes
    """The entry and its padding: positions come from the format, never from the length."""


@attrs.frozen
class Page:
    timestamp: int
    """Base of the time deltas."""
    commit: int
    """Bytes of records."""
    missed_events: int
    """Number of records lost in front of it, or MISSED_UNKNOWN."""
    records: list[PageRecord]


def decode_page(page: bytes | bytearray | memoryview) -> Page:
    """All of a page at once."""
    timestamp, word = page_header(page)
    records = [PageRecord(ts, bytes(page[at : at + length])) for ts, at, length in iter_records(page)]
    return Page(timestamp, word & (1 << 27) - 1, missed_events(page), records)


class PageWriter:
    """Writes a page. Its time stamp is the first record's time, unless `timestamp` is given."""

    def __init__(self, size: int = 4096, *, timestamp: int | None = None) -> None:
        self._size = size
        self._timestamp = timestamp
        self._ts = timestamp
        self._records = b""
        self.count = 0

    @property
    def commit(self) -> int:
        """Bytes of records so far."""
        return len(self._records)

    @property
    def room(self) -> int:
        """Bytes left for records."""
        return self._size - HEADER_SIZE - self.commit

    def add(self, ts: int, data: bytes) -> bool:
        """Append an entry. False, and nothing changes, if the page has no room for it. ValueError when it
        would not fit an empty page (the kernel's bound: 8 bytes are kept for a time extend)."""
        if len(data) > self._size - HEADER_SIZE - 8:
            raise ValueError(f"entry of {len(data)} bytes is too large for a page of {self._size}")
        delta = 0 if self._ts is None else ts - self._ts
        stamp = b""
        if delta < 0 or delta >= 1 << 59:
            # Backwards, or more than the 59 bits of a time extend: an absolute time, no delta.
            delta, stamp = 0, _time(31, ts % (1 << 59))
        elif delta >= 1 << 27:
            delta, stamp = 0, _time(30, delta)
        record = stamp + _record(delta, data)
        if len(record) > self.room:
            return False
        if self._timestamp is None:
            self._timestamp = ts
        self._ts = ts
        self._records += record
        self.count += 1
        return True

    def page(self, missed_events: int = 0) -> bytes:
        """The whole page, filled up with zeros. missed_events: records lost in front of it, or
        MISSED_UNKNOWN."""
        word, count = self.commit, b""
        if missed_events:
            word |= 1 << 31
            if missed_events > 0 and self.room >= 8:
                word |= 1 << 30
                count = struct.pack("<Q", missed_events)
        head = struct.pack("<QQ", self._timestamp or 0, word)
        return (head + self._records + count).ljust(self._size, b"\0")


def broken(page: bytes) -> bytes:
    """With a record behind the others that reaches past their end."""
    (commit,) = struct.unpack_from("<I", page, 8)
    made = bytearray(page)
    struct.pack_into("<I", made, 8, commit + 4)
    struct.pack_into("<I", made, 16 + commit, 28)
    return bytes(made)


def _record(delta: int, data: bytes) -> bytes:
    """Header and data, sized as by rb_calculate_event_length()."""
    padded = max(4, -(-len(data) // 4) * 4)
    if padded > 112:
        return struct.pack("<II", delta << 5, padded + 4) + data.ljust(padded, b"\0")
    if padded == 8:
        padded = 12  # a record must be able to become a time extend and padding of 8 bytes each
    return struct.pack("<I", delta << 5 | padded // 4) + data.ljust(padded, b"\0")


def _time(type_len: int, value: int) -> bytes:
    return struct.pack("<II", value % (1 << 27) << 5 | type_len, value >> 27)
