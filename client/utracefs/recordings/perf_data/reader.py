"""Reads a perf.data of tracepoint samples: of `utracefs perf record`, and of `perf record -e SYSTEM:NAME`.

    file header      PERFILE2, places of the parts, a bit for each feature
    attrs            struct perf_event_attr of each event, and the ids of its samples
    data             records: see _samples
    features         u64 offset, u64 size of each set bit; TRACING_DATA has the formats of the events

The header locates the parts; `format` describes the layout. Nothing in a file is trusted: TraceError(EINVAL)
says what is wrong with it.
"""

import contextlib
import os
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Final

import attrs

import utracefs.recordings.perf_data.format as layout
from utracefs.recordings._records import EventDecoder, Records
from utracefs.recordings.origin import ClockPair, Origin
from utracefs.recordings.perf_data._samples import Samples
from utracefs.recordings.perf_data.format import Feature
from utracefs.recordings.trace_dat.reader import FileReader
from utracefs.recordings.trace_dat.texts import Cursor
from utracefs_protocol.pages.perf_ring import DEFAULT_SAMPLE_TYPE
from utracefs_protocol.text import text_of

_UNFINISHED: Final = layout.HEADER.pack(
    layout.MAGIC, layout.HEADER_SIZE, layout.ATTR.size + layout.EXTENT.size, *bytes(6)
)
"""Head of a NAME.part."""
_CLOCKS: Final = {0: "realtime", 1: "mono", 4: "mono_raw", 7: "boot", 11: "tai"}


class PerfDataReader(FileReader):
    """Reads a perf.data; a context manager that unmaps the file.

    read_bytes: a file above this size is mapped, not read. recover: samples up to the first broken record,
    also of a NAME.part beside which there is its NAME.part.events.

    OSError when the file cannot be opened; TraceError(EINVAL) when it is not a perf.data, is invalid, or has
    samples that are not of tracepoints.
    """

    format = "perf.data"

    def __init__(
        self, path: str | os.PathLike[str], *, read_bytes: int | None = None, recover: bool = False
    ) -> None:
        super().__init__(path, read_bytes)
        self._recover = recover
        self.clock = "perf"
        """The name of the samples' clock; all count nanoseconds."""
        self._sample_type = int(DEFAULT_SAMPLE_TYPE)
        self._sample_id_all = True
        self._data = (0, 0)
        is_part = self.content[: layout.HEADER.size] == _UNFINISHED
        self._parse("perf.data", self._read_part if is_part else self._read)

    def samples(self) -> Samples:
        """The samples in the order of time."""
        try:
            return Samples(
                self.content,
                *self._data,
                self._sample_type,
                self._sample_id_all,
                comms=self.cmdlines,
                recover=self._recover,
            )
        except ValueError as error:
            raise self._error(str(error)) from None

    def source(
        self,
        cpus: Collection[int] | None = None,
        since_ns: int | None = None,
        until_ns: int | None = None,
        tgids: Mapping[int, int] | None = None,
    ) -> tuple[Samples, Callable[[], float]]:
        """All samples, like `TraceDatReader.source`."""
        samples, size = self.samples(), self._data[1]
        return samples, lambda: samples.read_bytes / size if size else 1.0

    def last_ns(self) -> int:
        """Reads all samples."""
        records = Records(self.samples(), lambda _: EventDecoder("", "", ()))
        records.events()
        return records.last_ns

    def _read_part(self) -> None:
        """The descriptions of the samples are in the other file."""
        if not self._recover:
            raise self._error("was not finished: its writer was killed; --recover reads what it has")
        part = self.content
        with open(f"{os.fsdecode(self._path)}.events", "rb") as file:
            self.content = file.read()
        self._read()
        self.content = part
        at = min(layout.HEADER_SIZE, len(part))
        self._data = (at, len(part) - at)

    def _read(self) -> None:
        size = len(self.content)
        if size < layout.HEADER_SIZE:
            raise self._error("is not a perf.data: it is shorter than a header")
        magic, header_size, entry_size, attrs_at, attrs_size, data_at, data_size, *_ = (
            layout.HEADER.unpack_from(self.content)
        )
        if magic == layout.MAGIC[::-1]:
            raise self._error("was written on a big-endian machine")
        if magic != layout.MAGIC:
            raise self._error("is not a perf.data")
        if header_size == layout.PIPE_HEADER_SIZE:
            raise self._error("was written to a pipe (perf record -o -); that cannot be read")
        if header_size != layout.HEADER_SIZE:
            raise self._error("is a perf.data that utracefs did not write; use `perf script`")
        features = int.from_bytes(self.content[layout.FEATURES_AT : layout.HEADER_SIZE], "little")
        least = layout.ATTR_SIZE_LEAST + layout.EXTENT.size
        if entry_size < least or attrs_size % entry_size or attrs_at + attrs_size > size:
            raise ValueError("attrs")
        if data_at + data_size > size:
            raise ValueError("data")
        self._data = (data_at, data_size)
        kinds = self._kinds(range(attrs_at, attrs_at + attrs_size, entry_size))
        if not features >> Feature.TRACING_DATA & 1:
            raise self._error("has no formats of events (TRACING_DATA): its samples are not of tracepoints")
        try:
            self._read_tracing_data(Cursor(self._feature(features, Feature.TRACING_DATA)))
        except (struct.error, ValueError, OverflowError):
            if data_size:
                raise
            # perf writes the size when it ends, and the formats of the events after that.
            raise self._error(
                "was not finished; without the formats of its events nothing can be read"
            ) from None
        with contextlib.suppress(struct.error, ValueError):
            self._read_names(Cursor(self._feature(features, Feature.EVENT_DESC)))
        with contextlib.suppress(struct.error, ValueError):
            self._read_origin(features)
        if not kinds and not self.formats:
            return  # a recording without events
        if len(kinds) != 1:
            raise self._error(
                f"has samples of {len(kinds)} kinds; files whose events have the same can be read"
            )
        ((self._sample_type, self._sample_id_all),) = kinds

    def _feature(self, features: int, bit: int) -> bytes:
        """The feature's body; empty if absent."""
        if not features >> bit & 1:
            return b""
        before = features & ((1 << bit) - 1)
        place = sum(self._data) + before.bit_count() * layout.EXTENT.size
        at, length = layout.EXTENT.unpack_from(self.content, place)
        if at + length > len(self.content):
            raise ValueError("feature")
        return self.content[at : at + length]

    def _read_names(self, file: Cursor) -> None:
        """The names of events that a format cannot have (`readable_name`)."""
        nr_events, attr_size = file.u32(), file.u32()
        for _ in range(nr_events):
            config = layout.ATTR_HEAD.unpack_from(file.take(attr_size))[2]
            nr_ids = file.u32()
            name = file.take(file.u32()).partition(b"\0")[0].partition(b":")[2]
            file.take(layout.U64.size * nr_ids)
            if (found := self.formats.get(config)) and layout.readable_name(name) == found.name:
                self.formats[config] = attrs.evolve(found, name=name)

    def _read_origin(self, features: int) -> None:
        """The origin in a file of utracefs, else from perf's features."""
        own = Origin.of_lines(text_of(self._feature(features, Feature.ORIGIN)))
        host = text_of(self._feature(features, Feature.HOSTNAME)[layout.U32.size :].partition(b"\0")[0])
        self.origin = own or Origin(host)
        pair = self._feature(features, Feature.CLOCK_DATA)
        if self.clock == "realtime":
            self.origin = Origin(host, clocks=(ClockPair(0, 0),))
        elif own is None and pair:
            _, clock, wall_ns, clock_ns = layout.CLOCK_DATA.unpack_from(pair)
            if _CLOCKS.get(clock) == self.clock:
                self.origin = Origin(host, clocks=(ClockPair(clock_ns, wall_ns),)).with_added(0)

    def _kinds(self, attrs: range) -> set[tuple[int, bool]]:
        """sample_type and sample_id_all of each event; also finds the clock."""
        kinds = set()
        for at in attrs:
            _, attr_size, _, _, sample_type, _, flags = layout.ATTR_HEAD.unpack_from(self.content, at)
            kinds.add((sample_type, bool(flags & layout.FLAG_SAMPLE_ID_ALL)))
            if flags & layout.FLAG_USE_CLOCKID and attr_size >= layout.CLOCKID_AT + layout.CLOCKID.size:
                (clock,) = layout.CLOCKID.unpack_from(self.content, at + layout.CLOCKID_AT)
                self.clock = _CLOCKS.get(clock, f"clock {clock}")
        return kinds

    def _read_tracing_data(self, file: Cursor) -> None:
        """Like the head of a trace.dat of version 6; command lines from 0.6 on."""
        if file.take(len(layout.TRACING_MAGIC)) != layout.TRACING_MAGIC:
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
