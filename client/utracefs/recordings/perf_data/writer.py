"""Writes a perf.data from the content of perf rings.

Records are written to NAME.part at once, and none are kept in memory. `finish` appends the descriptions for
readers and renames the file; an existing one becomes NAME.old, as with perf. Until then NAME.part.events has
the descriptions, a perf.data without records: with both the recording of a killed writer can be read. Space
for the end is reserved from the beginning; records without space are counted.

The names of threads follow all samples, with a time of 0: perf sorts records by time before it reads them;
those of different rings are not in order anyway.
"""

import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

import utracefs.recordings.perf_data.format as layout
from utracefs.recordings.origin import Origin
from utracefs.recordings.partial_files import (
    Reserve,
    WrittenFile,
    errors_about,
    name_beside,
    open_part,
    target_of,
)
from utracefs.recordings.perf_data.format import Feature
from utracefs.recordings.trace_dat import writer as trace_dat
from utracefs.tree.closing import Closing
from utracefs_protocol.pages.perf_ring import DEFAULT_SAMPLE_TYPE, PERF_RECORD_LOST, PERF_RECORD_SAMPLE
from utracefs_protocol.text import bytes_of

_RESERVE: Final = 256 << 10
"""Bytes reserved for the end of a file besides its size when `describe` was called."""
_ADDS: Final = 1024
"""How many of the last records, by addition, can be dropped for the end."""

_TEXT_STEP: Final = 64
"""Alignment of perf's feature texts."""


@attrs.frozen
class PerfDataEvent:
    system: bytes
    name: bytes
    config: int
    """Trace event id: common_type of its records."""
    id: int
    """Identifier of its records in this file: not 0, no other event's."""
    format: bytes
    """events/SYSTEM/NAME/format."""
    sample_period: int = 1
    sample_freq: int = 0
    """Instead of a period, if not 0."""


@attrs.frozen(kw_only=True)
class Contents:
    """The content of a perf.data besides the records. Texts are the tracefs files of that name, whole."""

    events: Sequence[PerfDataEvent]
    header_page: bytes
    header_event: bytes
    comms: Mapping[tuple[int, int], bytes] = attrs.field(factory=dict[tuple[int, int], bytes])
    """Process and thread to the thread's name."""
    first_ns: int = 0
    last_ns: int = 0
    """Times of the first and the last sample."""
    origin: Origin = attrs.field(factory=Origin)
    command: Sequence[bytes] = ()
    """The command line that made the file."""
    version: bytes = b""


class PerfDataWriter(Closing):
    """Writes one perf.data: `add` records of rings, `describe` new events, then `finish`. A context manager:
    leaving it without `finish` or `leave` removes the file.

    OSError from the file system, with the path: also if the disk is full at the beginning; IsADirectoryError;
    EINVAL when `path` is not a regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._shown = os.fspath(path)
        self.path: Final = target_of(self._shown)
        with errors_about(self._shown):
            self._reserve = Reserve(os.path.dirname(self.path), _RESERVE)
            try:
                self._written = WrittenFile(open_part(self.path))
                self._file = self._written.file
                self._file.write(_header(0, 0, 0, 0, 0))
            except BaseException:
                self._reserve.free()
                raise
        self.part: Final[str] = self._file.name
        """The name of the file until it is complete."""
        self.given_up = 0
        """Samples lost because the disk was full."""
        self._end = layout.HEADER_SIZE
        self._adds: deque[int] = deque(maxlen=_ADDS)
        """Offset of each addition."""
        self._missing: Counter[int] = Counter()
        """Identifier to lost samples without a LOST record so far."""

    @property
    def error(self) -> OSError | None:
        """The first such error."""
        return self._written.error

    def close(self) -> None:
        """Remove an unfinished file."""
        if not self._file.closed:
            self.leave()
            os.unlink(self.part)
            self._forget_description()

    def leave(self) -> None:
        self._reserve.free()
        self._file.close()

    def add(self, records: bytes | bytearray) -> None:
        """Add whole records with sample_type 0x10587, and the identifiers of this file."""
        with errors_about(self._shown):
            if self._missing:
                lost = b"".join(_lost_record(*one, time.monotonic_ns()) for one in self._missing.items())
                if self._append(lost) == len(lost):
                    self._missing.clear()
            done = 0 if self._missing else self._append(records)
            if done < len(records):
                self._give_up(records[done:])

    def add_lost(self, identifier: int, count: int, time_ns: int) -> None:
        """Add a LOST record for losses outside of the rings."""
        self.add(_lost_record(identifier, count, time_ns))

    def describe(self, contents: Contents) -> None:
        """Write the present descriptions, for a reader of NAME.part; `finish` gets all of them again."""
        begin, tail = _end_of_file(contents, layout.HEADER_SIZE, is_empty=False)
        temporary = name_beside(self.path)
        # Without space NAME.part has fewer descriptions, and less is guaranteed.
        with contextlib.suppress(OSError):
            try:
                with open(temporary, "xb") as file:
                    file.write(begin + tail)
                os.rename(temporary, f"{self.part}.events")
            except BaseException:
                os.unlink(temporary)
                raise
            self._reserve.grow(_RESERVE + len(tail))

    def finish(self, contents: Contents, path: str | None = None) -> int:
        """Complete and rename the file; returns its size in bytes. After an OSError the recording is in
        NAME.part."""
        target = self.path if path is None else os.path.realpath(path)
        try:
            self._reserve.free()
            while (size := self._finish(contents)) is None:
                pass
            with contextlib.suppress(FileNotFoundError):
                os.replace(target, target + ".old")
            os.replace(self.part, target)
        except OSError as error:
            reason = f"{error.strerror}; {self.part} has the records until then, for --recover"
            raise OSError(error.errno, reason, self._shown) from None
        finally:
            self._file.close()
        self._forget_description()
        return size

    def _finish(self, contents: Contents) -> int | None:
        """Its size; None: no space, which may have been freed now."""
        lost = b"".join(_lost_record(*one, time.monotonic_ns()) for one in self._missing.items())
        at = self._end + len(lost)
        begin, tail = _end_of_file(contents, at, is_empty=at == layout.HEADER_SIZE)
        put, rest = self._written.put, lost + tail
        if put(rest, self._end) < len(rest) or put(begin, 0) < len(begin):
            os.truncate(self._file.fileno(), self._end)
            if not self._adds:
                assert self.error is not None
                raise self.error
            last = self._adds.pop()
            self._give_up(os.pread(self._file.fileno(), self._end - last, last))
            self._end = last
            os.truncate(self._file.fileno(), last)
            return None
        return at + len(tail)

    def _append(self, records: bytes | bytearray) -> int:
        """Write whole records; returns the bytes that had space."""
        written = self._written.put(records, self._end)
        if written < len(records):
            whole = 0
            for at, size, _, _ in _records(records):
                whole = at + size if at + size <= written else whole
            written = whole
            os.truncate(self._file.fileno(), self._end + written)
        if written:
            self._adds.append(self._end)
        self._end += written
        return written

    def _give_up(self, records: bytes | bytearray) -> None:
        for at, _, kind, identifier in _records(records):
            if kind == PERF_RECORD_SAMPLE:
                self.given_up += 1
                self._missing[identifier] += 1
            elif kind == PERF_RECORD_LOST:
                self._missing[identifier] += layout.U64.unpack_from(records, at + layout.LOST_COUNT_AT)[0]

    def _forget_description(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.part}.events")


def _records(data: bytes | bytearray) -> Iterator[tuple[int, int, int, int]]:
    """Place, size, type and identifier of each record."""
    at = 0
    while at + layout.RECORD_HEADER.size + layout.U64.size <= len(data):
        kind, _, size = layout.RECORD_HEADER.unpack_from(data, at)
        yield at, size, kind, layout.U64.unpack_from(data, at + layout.RECORD_HEADER.size)[0]
        at += max(size, layout.RECORD_HEADER.size)


def _lost_record(identifier: int, count: int, time_ns: int) -> bytes:
    size = layout.LOST_RECORD.size
    head = (PERF_RECORD_LOST, 0, size, identifier, count)
    return layout.LOST_RECORD.pack(*head, 0, 0, time_ns, 0, 0, identifier)


def _end_of_file(contents: Contents, at: int, *, is_empty: bool) -> tuple[bytes, bytes]:
    """The header, and the parts behind the records, which end at that offset."""
    identifier = contents.events[0].id if contents.events else 0
    comms = dict(contents.comms)
    if not comms and is_empty:
        # perf takes a file without records for incomplete.
        comms[os.getpid(), os.getpid()] = b"utracefs"
    parts = [_comm_record(pid, tid, comm, identifier) for (pid, tid), comm in comms.items()]
    data_end = at + sum(map(len, parts))
    features = _features(contents)
    at = data_end + layout.EXTENT.size * len(features)
    for _, body in features:
        parts.append(layout.EXTENT.pack(at, len(body)))
        at += len(body)
    parts += [body for _, body in features]
    attrs_at = at
    ids_at = attrs_at + (layout.ATTR.size + layout.EXTENT.size) * len(contents.events)
    for number, event in enumerate(contents.events):
        parts.append(_attr(event) + layout.EXTENT.pack(ids_at + 8 * number, 8))
    parts += [layout.U64.pack(event.id) for event in contents.events]
    bits = sum(1 << bit for bit, _ in features)
    header = _header(attrs_at, ids_at - attrs_at, layout.HEADER_SIZE, data_end - layout.HEADER_SIZE, bits)
    return header, b"".join(parts)


def _header(attrs_at: int, attrs_size: int, data_at: int, data_size: int, features: int) -> bytes:
    """data_at 0: for an incomplete file."""
    entry_size = layout.ATTR.size + layout.EXTENT.size
    head = (layout.MAGIC, layout.HEADER_SIZE, entry_size, attrs_at, attrs_size, data_at, data_size, 0, 0)
    return layout.HEADER.pack(*head) + features.to_bytes(layout.HEADER_SIZE - layout.HEADER.size, "little")


def _comm_record(pid: int, tid: int, comm: bytes, identifier: int) -> bytes:
    name = comm[: layout.COMM_LENGTH]
    name += bytes(8 - len(name) % 8)
    size = layout.RECORD_HEADER.size + layout.COMM_HEAD.size + len(name) + layout.COMM_TRAILER.size
    return (
        layout.RECORD_HEADER.pack(layout.PERF_RECORD_COMM, 0, size)
        + layout.COMM_HEAD.pack(pid, tid)
        + name
        + layout.COMM_TRAILER.pack(pid, tid, 0, 0, 0, identifier)
    )


def _attr(event: PerfDataEvent) -> bytes:
    return layout.ATTR.pack(
        layout.TYPE_TRACEPOINT,
        layout.ATTR_SIZE,
        event.config,
        event.sample_freq or event.sample_period,
        int(DEFAULT_SAMPLE_TYPE),
        layout.READ_FORMAT_ID,
        layout.FLAGS | (layout.FLAG_FREQ if event.sample_freq else 0),
        layout.CLOCK_MONOTONIC,
    )


def _features(contents: Contents) -> list[tuple[int, bytes]]:
    """(bit, body), in the order of the bits. `perf data convert` crashes without HOSTNAME to CPUID."""
    host = os.uname()
    cpus = os.cpu_count() or 1
    texts = [_text(word) for word in contents.command]
    events = b"".join(
        _attr(event)
        + layout.U32.pack(1)
        + _text(event.system + b":" + event.name)
        + layout.U64.pack(event.id)
        for event in contents.events
    )
    pairs = contents.origin.clocks[:1]
    return [
        (Feature.TRACING_DATA, _tracing_data(contents)),
        (Feature.HOSTNAME, _text(bytes_of(contents.origin.host))),
        (Feature.OSRELEASE, _text(os.fsencode(host.release))),
        (Feature.VERSION, _text(contents.version)),
        (Feature.ARCH, _text(os.fsencode(host.machine))),
        (Feature.NRCPUS, layout.U32.pack(cpus) * 2),
        (Feature.CPUDESC, _text(os.fsencode(host.machine))),
        (Feature.CPUID, _text(os.fsencode(host.machine))),
        (Feature.CMDLINE, layout.U32.pack(len(texts)) + b"".join(texts)),
        (
            Feature.EVENT_DESC,
            layout.U32.pack(len(contents.events)) + layout.U32.pack(layout.ATTR_SIZE) + events,
        ),
        (Feature.SAMPLE_TIME, layout.U64.pack(contents.first_ns) + layout.U64.pack(contents.last_ns)),
        (Feature.CLOCKID, layout.U64.pack(layout.CLOCK_MONOTONIC)),
        *(
            (Feature.CLOCK_DATA, layout.CLOCK_DATA.pack(1, layout.CLOCK_MONOTONIC, one.unix_ns, one.clock_ns))
            for one in pairs
        ),
        (Feature.ORIGIN, bytes_of(contents.origin.lines())),
    ]


def _text(text: bytes) -> bytes:
    room = (len(text) // _TEXT_STEP + 1) * _TEXT_STEP
    return layout.U32.pack(room) + text.ljust(room, b"\0")


def _tracing_data(contents: Contents) -> bytes:
    """The head of a trace.dat of version 6: the formats, and the names of threads."""
    systems: dict[bytes, list[bytes]] = {}
    for event in contents.events:
        name, readable = b"name: %s\n" % event.name, b"name: %s\n" % layout.readable_name(event.name)
        systems.setdefault(event.system, []).append(event.format.replace(name, readable, 1))
    names = {tid: comm for (_, tid), comm in contents.comms.items()}
    texts = trace_dat.Contents(
        header_page=contents.header_page,
        header_event=contents.header_event,
        formats=systems,
        cmdlines=b"".join(b"%d %s\n" % (tid, comm) for tid, comm in names.items()),
    )
    sections = [body for _, body in trace_dat.bodies(texts)]
    return b"".join([layout.TRACING_DATA_BEGIN + layout.U32.pack(4096), *sections])
