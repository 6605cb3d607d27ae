"""Reads a perf.data of ours: the samples in the order of time, the formats of their events, names of threads.

Files of perf itself have other parts of samples, records of the kernel, and compression: they are refused,
with a reason. What is read is checked against the size of the file; nothing of it is believed.

Memory: 16 bytes a sample while the order is made, 8 afterwards; the records stay in the file, which is
mapped.
"""

import mmap
import os
from collections.abc import Iterator
from typing import Final, Self

import attrs

import utracefs.perf_data.format as layout
from utracefs.perf_data._records import sorted_samples
from utracefs.perf_data.format import Feature
from utracefs_protocol.perf_ring import (
    DEFAULT_SAMPLE_TYPE,
    PERF_RECORD_LOST,
    Lost,
    Sample,
    parse_sample,
)
from utracefs_protocol.text import text_of

__all__ = ["EventText", "PerfDataReader"]

_PERF_RECORD_COMM: Final = 3
_COMM_LEAST: Final = layout.RECORD_HEADER.size + layout.COMM_HEAD.size + 1


@attrs.frozen
class EventText:
    """What a file says about an event."""

    system: str
    format: bytes
    """events/SYSTEM/NAME/format."""


class PerfDataReader:
    """A context manager that closes the file. OSError: it cannot be opened. ValueError, with the reason: it
    is no perf.data, not one that can be read here, or damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < layout.HEADER_SIZE:
                raise ValueError("is not a perf.data: it is shorter than a header")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self._read()
        except BaseException:
            self._map.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._map.close()

    def _read(self) -> None:
        magic, size, attr_size, attrs_at, attrs_size, self._data_at, self._data_size, *_ = (
            layout.HEADER.unpack_from(self._map)
        )
        if magic != layout.MAGIC:
            raise ValueError("is not a perf.data, or of another byte order")
        if size != layout.HEADER_SIZE or attr_size != layout.ATTR.size + layout.EXTENT.size:
            raise ValueError("is a perf.data that utracefs did not write; use `perf script`")
        self._check(attrs_at, attrs_size)
        self._check(self._data_at, self._data_size)
        self._attrs(attrs_at, attrs_size)
        features = int.from_bytes(self._map[layout.FEATURES_AT : layout.HEADER_SIZE], "little")
        self.events: dict[int, EventText] = {}
        """By trace event id: common_type of a record."""
        self.comms: dict[int, str] = {}
        """Names by thread, as far as the file has them."""
        at = self._data_at + self._data_size
        for bit in range(256):
            if features >> bit & 1:
                self._check(at, layout.EXTENT.size)
                start, length = layout.EXTENT.unpack_from(self._map, at)
                self._check(start, length)
                if bit == Feature.TRACING_DATA:
                    self._tracing_data(_Cursor(self._map[start : start + length]))
                at += layout.EXTENT.size
        with (
            memoryview(self._map) as whole,
            whole[self._data_at : self._data_at + self._data_size] as data,
        ):
            self._samples, others, end = sorted_samples(data)
        if end != self._data_size:
            raise ValueError(f"is damaged: no record {end} bytes behind the begin of its data")
        self.losses: list[Lost] = []
        """What samplers lost."""
        for offset in others:
            self._other(offset)

    def _check(self, at: int, size: int) -> None:
        if at > len(self._map) or size > len(self._map) - at:
            raise ValueError("was cut off, or is damaged: it ends before what its header names")

    def _attrs(self, at: int, size: int) -> None:
        step = layout.ATTR.size + layout.EXTENT.size
        if size % step:
            raise ValueError("is damaged: its attributes have no whole number")
        for place in range(at, at + size, step):
            kind, _, _, _, sample_type, *_ = layout.ATTR.unpack_from(self._map, place)
            if kind != layout.TYPE_TRACEPOINT or sample_type != DEFAULT_SAMPLE_TYPE:
                raise ValueError("has samples that utracefs did not write; use `perf script`")

    def _tracing_data(self, file: "_Cursor") -> None:
        if file.take(len(layout.TRACING_DATA_BEGIN)) != layout.TRACING_DATA_BEGIN:
            raise ValueError("has formats that utracefs did not write; use `perf script`")
        file.u32()
        for _ in range(2):  # header_page, header_event
            file.string()
            file.lstr()
        for _ in range(file.u32()):
            file.lstr()
        for _ in range(file.u32()):
            system = text_of(file.string())
            for _ in range(file.u32()):
                text = file.lstr()
                number = _id_of(text)
                if number is not None:
                    self.events[number] = EventText(system, text)
        for _ in range(2):  # kallsyms, printk formats
            file.take(file.u32())
        for line in file.lstr().split(b"\n"):
            tid, _, comm = line.partition(b" ")
            if tid.isdigit():
                self.comms[int(tid)] = text_of(comm)

    def _other(self, offset: int) -> None:
        kind, _, size = layout.RECORD_HEADER.unpack_from(self._map, self._data_at + offset)
        body = self._map[self._data_at + offset + layout.RECORD_HEADER.size : self._data_at + offset + size]
        if kind == PERF_RECORD_LOST:
            self.losses.append(Lost(*layout.EXTENT.unpack_from(body)))
        elif kind == _PERF_RECORD_COMM and size >= _COMM_LEAST:
            _, tid = layout.COMM_HEAD.unpack_from(body)
            self.comms[tid] = text_of(body[layout.COMM_HEAD.size :].partition(b"\0")[0])

    def __len__(self) -> int:
        """Samples."""
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        """Samples in the order of time. ValueError: one is damaged."""
        for offset in self._samples:
            at = self._data_at + offset
            _, _, size = layout.RECORD_HEADER.unpack_from(self._map, at)
            yield parse_sample(self._map[at + layout.RECORD_HEADER.size : at + size])


def _id_of(text: bytes) -> int | None:
    """The number in the line `ID: 20` of a format."""
    for line in text.split(b"\n", 3)[:3]:
        if line.startswith(b"ID: ") and line[4:].isdigit() and len(line) < 20:
            return int(line[4:])
    return None


class _Cursor:
    """Takes parts one after the other. ValueError: there is not so much."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise ValueError("is damaged: its formats end too early")
        self._at += size
        return self._data[self._at - size : self._at]

    def u32(self) -> int:
        return int(layout.U32.unpack(self.take(4))[0])

    def lstr(self) -> bytes:
        return self.take(layout.U64.unpack(self.take(8))[0])

    def string(self) -> bytes:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise ValueError("is damaged: its formats end too early")
        text = self._data[self._at : end]
        self._at = end + 1
        return text
