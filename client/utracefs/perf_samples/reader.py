"""Reads a perf.data of tracepoint samples, as `perf record -e SYSTEM:NAME` writes it.

    file header      PERFILE2, where the parts are, a bit for each feature
    attrs            struct perf_event_attr of each event, and the ids of its samples
    data             records: see _samples
    features         u64 offset, u64 size of each set bit; TRACING_DATA has the formats of the events

The layout is that of perf (tools/perf/Documentation/perf.data-file-format.txt). Nothing in a file is trusted:
TraceError(EINVAL) says what is wrong with it.
"""

import contextlib
import errno
import mmap
import os
import struct
from typing import Final, Self

from utracefs.perf_samples._samples import Samples
from utracefs.trace_dat import Cursor, TraceTexts, contents_of
from utracefs_protocol.errors import TraceError

__all__ = ["MAGIC", "PerfDataReader"]

MAGIC: Final = b"PERFILE2"
_HEADER: Final = struct.Struct("<8s8Q32s")
"""magic, bytes of the header, of an attr entry; offset and bytes of attrs, data, event types; features."""
_ATTR: Final = struct.Struct("<IIQQQQQ")
"""type, size, config, sample period, sample type, read format, flags."""
_MIN_ATTR: Final = 64
"""PERF_ATTR_SIZE_VER0."""
_CLOCK_AT: Final = 92
"""Of clockid, in an attr that is long enough."""
_SAMPLE_ID_ALL: Final = 1 << 18
_USE_CLOCKID: Final = 1 << 25
_TRACING_DATA: Final = 1
_TRACING_MAGIC: Final = b"\x17\x08\x44tracing"
_PART: Final = struct.Struct("<QQ")
_CLOCKS: Final = {0: "realtime", 1: "mono", 4: "mono_raw", 7: "boot", 11: "tai"}


class PerfDataReader(TraceTexts):
    """Reads a perf.data; a context manager that unmaps the file.

    read_bytes: a file above this size is mapped, not read. recover: samples up to the first broken record.

    OSError when the file cannot be opened; TraceError(EINVAL) when it is not a perf.data, is broken, or has
    samples that are not of tracepoints.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, read_bytes: int | None = None, recover: bool = False
    ) -> None:
        super().__init__()
        self._path = os.fspath(path)
        with open(path, "rb") as file:
            self._map: mmap.mmap | bytes = contents_of(file, read_bytes)
        self._recover = recover
        self.clock = "perf"
        """The name of the samples' clock; all count nanoseconds."""
        self._sample_type = 0
        self._sample_id_all = False
        self._data = (0, 0)
        try:
            self._read()
        except (struct.error, ValueError, OverflowError):
            self.close()
            raise self._error("perf.data is cut off or broken") from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """While samples are being read the file stays mapped."""
        if isinstance(self._map, mmap.mmap):
            with contextlib.suppress(BufferError):
                self._map.close()

    @property
    def data_bytes(self) -> int:
        """Of records."""
        return self._data[1]

    def samples(self) -> Samples:
        """The samples in the order of time."""
        try:
            return Samples(
                self._map,
                *self._data,
                self._sample_type,
                self._sample_id_all,
                comms=self.cmdlines,
                recover=self._recover,
            )
        except ValueError as error:
            raise self._error(str(error)) from None

    def _error(self, text: str) -> TraceError:
        return TraceError(errno.EINVAL, f"{self._path}: {text}")

    def _read(self) -> None:
        if self._map[:8] == MAGIC[::-1]:
            raise self._error("was written on a big-endian machine")
        if self._map[:8] != MAGIC:
            raise self._error("is not a perf.data")
        size = len(self._map)
        header = _HEADER.unpack_from(self._map)
        header_size, entry_size, attrs_at, attrs_size, data_at, data_size = header[1:7]
        if header_size == _PART.size:
            raise self._error("was written to a pipe (perf record -o -); that cannot be read")
        features = int.from_bytes(header[9], "little")
        if entry_size < _MIN_ATTR + _PART.size or attrs_size % entry_size or attrs_at + attrs_size > size:
            raise ValueError("attrs")
        if data_at + data_size > size:
            raise ValueError("data")
        self._data = (data_at, data_size)
        self._read_attrs(entry_size, attrs_at, attrs_size)
        if not features >> _TRACING_DATA & 1:
            raise self._error("has no formats of events (TRACING_DATA): its samples are not of tracepoints")
        place = data_at + data_size + (features & ((1 << _TRACING_DATA) - 1)).bit_count() * _PART.size
        try:
            at, length = _PART.unpack_from(self._map, place)
            if at + length > size:
                raise ValueError("TRACING_DATA")
            self._read_tracing_data(Cursor(self._map[at : at + length]))
        except (struct.error, ValueError, OverflowError):
            if data_size:
                raise
            # perf writes the size when it ends, and the formats of the events after that.
            raise self._error(
                "was not finished; without the formats of its events nothing can be read"
            ) from None

    def _read_attrs(self, entry_size: int, at: int, size: int) -> None:
        kinds = set()
        for entry in range(at, at + size, entry_size):
            _, attr_size, _, _, sample_type, _, flags = _ATTR.unpack_from(self._map, entry)
            kinds.add((sample_type, bool(flags & _SAMPLE_ID_ALL)))
            if flags & _USE_CLOCKID and attr_size >= _CLOCK_AT + 4:
                (clock,) = struct.unpack_from("<i", self._map, entry + _CLOCK_AT)
                self.clock = _CLOCKS.get(clock, f"clock {clock}")
        if len(kinds) != 1:
            raise self._error(
                f"has samples of {len(kinds)} kinds; files whose events have the same can be read"
            )
        ((self._sample_type, self._sample_id_all),) = kinds

    def _read_tracing_data(self, file: Cursor) -> None:
        """As the head of a trace.dat of version 6; command lines from 0.6 on."""
        if file.take(len(_TRACING_MAGIC)) != _TRACING_MAGIC:
            raise ValueError("TRACING_DATA")
        version = file.string()
        if file.take(1) != b"\0":
            raise self._error("has formats of a big-endian machine")
        file.take(1)
        file.u32()
        self.read_headers(file)
        self.read_ftrace_formats(file)
        self.read_event_formats(file)
        self.read_kallsyms(file)
        file.take(file.u32())  # printk
        if version >= b"0.6" and file.left:
            self.read_cmdlines(file)
