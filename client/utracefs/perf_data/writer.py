"""Writes a perf.data from what perf rings held.

Records go to a file beside NAME as they come, and nothing is kept in memory. `finish` adds what a reader
needs to understand them and gives the file its name; one that is there already becomes NAME.old, as perf
does.

The names of threads stand behind all samples, with a time of 0: perf sorts records by time before it looks at
them, the more so as those of different rings are not in that order either.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Final, Self

import attrs

import utracefs.perf_data.format as layout
from utracefs.half_written import name_beside
from utracefs.perf_data.format import Feature
from utracefs_protocol.perf_ring import DEFAULT_SAMPLE_TYPE, PERF_RECORD_LOST

__all__ = ["Contents", "PerfDataEvent", "PerfDataWriter"]

_TEXT_STEP: Final = 64
"""perf pads the texts of features to this."""


@attrs.frozen
class PerfDataEvent:
    """One sampled event."""

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
    """All that a perf.data holds besides the records. Texts are the tracefs files of that name, whole."""

    events: Sequence[PerfDataEvent]
    header_page: bytes
    header_event: bytes
    comms: Mapping[tuple[int, int], bytes] = attrs.field(factory=dict[tuple[int, int], bytes])
    """Process and thread to the thread's name."""
    first_ns: int = 0
    last_ns: int = 0
    """Times of the first and the last sample."""
    command: Sequence[bytes] = ()
    """The command line that made the file."""
    version: bytes = b""
    """Of the producer."""


class PerfDataWriter:
    """Writes one perf.data: `add` what was read from rings, then `finish`. A context manager: leaving it
    without `finish` leaves nothing behind.

    OSError from the file system, with the path; IsADirectoryError; EINVAL when `path` is something other than
    a regular file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._shown = os.fspath(path)
        self.path: Final = os.path.realpath(path)
        with contextlib.suppress(FileNotFoundError):
            mode = os.stat(self.path).st_mode
            if stat.S_ISDIR(mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), self._shown)
            if not stat.S_ISREG(mode):
                raise OSError(errno.EINVAL, "is not a regular file", self._shown)
        self._temporary = name_beside(self.path)
        try:
            self._file = open(self._temporary, "xb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._shown) from None
        self._file.write(bytes(layout.HEADER_SIZE))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget what was not finished."""
        if not self._file.closed:
            with contextlib.suppress(OSError):  # what waits in its buffer finds no room either
                self._file.close()
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)

    def add(self, records: bytes | bytearray) -> None:
        """Whole records with sample_type 0x10587, and the identifiers of this file."""
        try:
            self._file.write(records)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._shown) from None

    def add_lost(self, identifier: int, count: int, time_ns: int) -> None:
        """A LOST record of our own, for what no ring knew of."""
        self.add(
            layout.LOST_RECORD.pack(
                PERF_RECORD_LOST,
                0,
                layout.LOST_RECORD.size,
                identifier,
                count,
                0,
                0,
                time_ns,
                0,
                0,
                identifier,
            )
        )

    def finish(self, contents: Contents) -> int:
        """Complete the file and give it its name; returns its size in bytes."""
        try:
            file = self._file
            identifier = contents.events[0].id if contents.events else 0
            comms = dict(contents.comms)
            if not comms and file.tell() == layout.HEADER_SIZE:
                # perf takes a file without any record for one that was not completed.
                comms[os.getpid(), os.getpid()] = b"utracefs"
            for (pid, tid), comm in comms.items():
                file.write(_comm_record(pid, tid, comm, identifier))
            data_end = file.tell()
            features = _features(contents)
            at = data_end + layout.EXTENT.size * len(features)
            for _, body in features:
                file.write(layout.EXTENT.pack(at, len(body)))
                at += len(body)
            for _, body in features:
                file.write(body)
            attrs_at = at
            ids_at = attrs_at + (layout.ATTR.size + layout.EXTENT.size) * len(contents.events)
            for number, event in enumerate(contents.events):
                file.write(_attr(event) + layout.EXTENT.pack(ids_at + 8 * number, 8))
            for event in contents.events:
                file.write(layout.U64.pack(event.id))
            size = file.tell()
            file.seek(0)
            file.write(
                layout.HEADER.pack(
                    layout.MAGIC,
                    layout.HEADER_SIZE,
                    layout.ATTR.size + layout.EXTENT.size,
                    attrs_at,
                    ids_at - attrs_at,
                    layout.HEADER_SIZE,
                    data_end - layout.HEADER_SIZE,
                    0,
                    0,
                )
            )
            file.write(sum(1 << bit for bit, _ in features).to_bytes(32, "little"))
            file.close()
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, self.path + ".old")
            os.replace(self._temporary, self.path)
        except BaseException as error:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            if isinstance(error, OSError):
                raise OSError(error.errno, error.strerror, self._shown) from None
            raise
        return size


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
    """(bit, body), in the order of the bits. `perf data convert` ends by a segmentation fault without
    HOSTNAME to CPUID."""
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
    wall_ns, mono_ns = _clocks()
    return [
        (Feature.TRACING_DATA, _tracing_data(contents)),
        (Feature.HOSTNAME, _text(os.fsencode(host.nodename))),
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
        (Feature.CLOCK_DATA, layout.CLOCK_DATA.pack(1, layout.CLOCK_MONOTONIC, wall_ns, mono_ns)),
    ]


def _clocks() -> tuple[int, int]:
    """Wall clock and CLOCK_MONOTONIC at one moment: of a few tries the one that took least."""
    tries = []
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        tries.append((after - before, wall, (before + after) // 2))
    _, wall, mono = min(tries)
    return wall, mono


def _text(text: bytes) -> bytes:
    room = (len(text) // _TEXT_STEP + 1) * _TEXT_STEP
    return layout.U32.pack(room) + text.ljust(room, b"\0")


def _tracing_data(contents: Contents) -> bytes:
    """What a trace.dat of version 6 begins with: the formats, and the names of threads."""
    systems: dict[bytes, list[bytes]] = {}
    for event in contents.events:
        systems.setdefault(event.system, []).append(event.format)
    names = {tid: comm for (_, tid), comm in contents.comms.items()}
    return b"".join(
        [
            layout.TRACING_DATA_BEGIN + layout.U32.pack(4096),
            b"header_page\0" + _lstr(contents.header_page),
            b"header_event\0" + _lstr(contents.header_event),
            layout.U32.pack(0),  # formats of ftrace's own records
            layout.U32.pack(len(systems)),
            *(
                system + b"\0" + layout.U32.pack(len(formats)) + b"".join(map(_lstr, formats))
                for system, formats in systems.items()
            ),
            layout.U32.pack(0) * 2,  # kallsyms, printk formats
            _lstr(b"".join(b"%d %s\n" % (tid, comm) for tid, comm in names.items())),
        ]
    )


def _lstr(text: bytes) -> bytes:
    return layout.U64.pack(len(text)) + text
