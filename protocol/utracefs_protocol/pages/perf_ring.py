"""The perf ring: a metadata page, then 2^n data pages of records, as the kernel lays them out.

        0        1024      1032      1040          1048
    +---+--------+---------+---------+-------------+-----------+--------------------------------+
    |   | time_* |data_head|data_tail| data_offset | data_size | records, wrapping at data_size |
    +---+--------+---------+---------+-------------+-----------+--------------------------------+
                  daemon    reader                              from data_offset

Both counters only grow; the place in the ring is counter % data_size. The daemon stores a record, then
data_head; the reader copies a record out, then stores data_tail, and the daemon never overwrites what lies
between. A record that does not fit is lost, and a LOST record in front of the next one that fits says how
many were.

Layouts: include/uapi/linux/perf_event.h, struct perf_event_mmap_page and the comments at enum
perf_event_type.

The counters are loaded and stored as one aligned word of 8 bytes, an item of a memoryview of format Q. The
struct module cannot be used for a word that another process reads: pack_into() clears its target before it
fills it, and "<Q" copies byte by byte. A daemon that loads a data_tail of 0 takes the ring for full and
counts a sample as lost that had room. Plain Python has no memory barriers; the interpreter's work between the
load of data_head and that of the record is enough in practice. A reader in C uses acquire and release.
"""

import enum
import mmap
import struct
from collections.abc import Callable, Iterator
from typing import Final, Self

import attrs

PERF_RECORD_LOST: Final = 2
PERF_RECORD_SAMPLE: Final = 9

PAGE_SIZE: Final = 4096

_DATA_HEAD, _DATA_TAIL, _DATA_OFFSET, _DATA_SIZE = range(1024, 1056, 8)
"""Offsets in struct perf_event_mmap_page."""


class SampleType(enum.IntFlag):
    """PERF_SAMPLE_*: the supported parts of a sample, in the order of their bits (the record has another)."""

    IP = 0x1
    TID = 0x2
    TIME = 0x4
    CPU = 0x80
    PERIOD = 0x100
    RAW = 0x400
    IDENTIFIER = 0x10000


DEFAULT_SAMPLE_TYPE: Final = SampleType(0x10587)
"""All of them."""


class ReadFormat(enum.IntFlag):
    """PERF_FORMAT_*: the u64 values behind the count in a `read` of a perf event, in the order of the
    bits."""

    TOTAL_TIME_ENABLED = 0x1
    """Nanoseconds in which it was enabled."""
    TOTAL_TIME_RUNNING = 0x2
    """Nanoseconds in which it counted: the same, since nothing is multiplexed here."""
    ID = 0x4
    LOST = 0x10
    """Lost samples: the ring was full."""


ALL_READ_FORMAT: Final = ReadFormat(0x17)
"""All of them."""

COUNT_ALONE: Final = ReadFormat(0)
"""None of them."""

MAX_SAMPLE_FREQ: Final = 100_000
"""Largest sample_freq, in samples per second: the default of kernel.perf_event_max_sample_rate."""


@attrs.frozen
class Counts:
    """The result of `read` of a perf event. Parts that read_format leaves out are 0."""

    count: int
    time_enabled_ns: int = 0
    time_running_ns: int = 0
    id: int = 0
    lost: int = 0

    @classmethod
    def from_bytes(cls, data: bytes, wanted: ReadFormat) -> Self:
        """ValueError: the length does not agree with `wanted`."""
        values = [value for (value,) in struct.iter_unpack("<Q", data[: len(data) & ~7])]
        parts = [part for part in ReadFormat if wanted & part]
        if len(values) != 1 + len(parts):
            raise ValueError(f"{len(data)} bytes from a perf event that was opened with {wanted!r}")
        found = dict(zip(parts, values[1:], strict=True))
        return cls(values[0], *(found.get(part, 0) for part in ReadFormat))


@attrs.frozen
class Sample:
    """PERF_RECORD_SAMPLE. Parts that sample_type leaves out are 0."""

    id: int
    """Identifier: which perf event this belongs to."""
    ip: int
    pid: int
    tid: int
    time: int
    """CLOCK_MONOTONIC, nanoseconds."""
    cpu: int
    period: int
    raw: bytes
    """The entry: common fields, payload, and zeros up to a length of 8n+4."""


class PerfRingReader:
    """Takes the records of a perf ring, and frees their space by moving data_tail. The mapping must be shared
    and writable; the caller closes it. ValueError when the memory is no valid perf ring."""

    def __init__(self, mapping: mmap.mmap | bytearray | memoryview) -> None:
        self._mapping = mapping
        if len(mapping) < PAGE_SIZE:
            raise ValueError(f"perf ring of {len(mapping)} bytes; a page at least")
        self._data_offset, self._data_size = self._load(_DATA_OFFSET), self._load(_DATA_SIZE)
        if self._data_size & (self._data_size - 1) or self._data_offset + self._data_size > len(mapping):
            raise ValueError(
                f"perf ring says data_offset {self._data_offset}, data_size {self._data_size} "
                f"in a mapping of {len(mapping)} bytes"
            )

    def _load(self, offset: int) -> int:
        with memoryview(self._mapping) as whole, whole[offset : offset + 8] as word, word.cast("Q") as words:
            return words[0]

    def _store_tail(self, tail: int) -> None:
        # Release all views: with an open one the caller could not close the mapping.
        with (
            memoryview(self._mapping) as whole,
            whole[_DATA_TAIL : _DATA_TAIL + 8] as word,
            word.cast("Q") as words,
        ):
            words[0] = tail

    def take(self, whole: Callable[[bytearray], int] = len, size: int | None = None) -> Iterator[bytearray]:
        """Copy and free the records that are in the ring now, `size` bytes at a time (None: all at once).
        whole: returns how many bytes of a piece are whole records; the rest is in the next one."""
        head, tail = self._counters()
        while tail < head:
            data = bytearray(self._copy(tail, min(size or head, head - tail)))
            del data[whole(data) :]
            tail += len(data)
            self._store_tail(tail)
            yield data

    @property
    def filled(self) -> float:
        """Unread part of the ring: 0 to 1."""
        head, tail = self._counters()
        return (head - tail) / self._data_size if self._data_size else 0.0

    def _counters(self) -> tuple[int, int]:
        head = self._load(_DATA_HEAD)
        tail = self._load(_DATA_TAIL)
        if head - tail > self._data_size or head < tail:
            raise ValueError(f"perf ring with data_head {head}, data_tail {tail} of {self._data_size} bytes")
        return head, tail

    def _copy(self, position: int, size: int) -> bytes:
        start = position & (self._data_size - 1)
        first = min(size, self._data_size - start)
        at = self._data_offset + start
        data = bytes(self._mapping[at : at + first])
        if first < size:
            data += bytes(self._mapping[self._data_offset : self._data_offset + size - first])
        return data
