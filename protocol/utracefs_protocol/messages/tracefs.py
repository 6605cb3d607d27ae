"""The methods of the tracefs socket: a class for the params of each, and one for each result that is a map.

Section 4 of docs/protocol.md has the table of all.
`METHODS` has the class by the method's name. `from_params` raises TraceError: EINVAL with the valid form,
E2BIG for an unknown member of a map. Whether a path, a handle or an event exists is not checked here.
"""

from __future__ import annotations

import errno
from enum import IntFlag
from typing import Any, Final, Self

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import (
    MAX_EVENT_ID,
    MAX_FILTER,
    MAX_LOSSLESS_US,
    MAX_PERF_DATA_PAGES,
    MAX_STREAM_EVENTS,
    MAX_STREAM_RING,
    MIN_STREAM_RING,
    STREAM_RING_SIZE,
)
from utracefs_protocol.messages.rows import MapParams, Message, Params, Result, member, methods_in
from utracefs_protocol.messages.values import (
    BOOL,
    INT,
    TEXT,
    U64_MAX,
    Kind,
    WireMap,
    or_nil,
    refuse_unknown,
    text_bytes,
    wire_int,
    wire_text,
)
from utracefs_protocol.pages.perf_ring import (
    ALL_READ_FORMAT,
    COUNT_ALONE,
    DEFAULT_SAMPLE_TYPE,
    MAX_SAMPLE_FREQ,
    ReadFormat,
    SampleType,
)
from utracefs_protocol.text import text_of

# Kinds of members.


def _path(value: object, what: str) -> bytes:
    path = text_bytes(value, what)
    if b"\0" in path:
        raise TraceError(errno.EINVAL, "a path holds no NUL")
    return path


def _name(value: object, what: str) -> str:
    """The name of a member or of an ioctl."""
    return value if isinstance(value, str) else text_of(text_bytes(value, what))


def _truncate(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise TraceError(errno.EINVAL, f"{what} must be true (the shell's >) or false (>>)")
    return value


def _named(value: object, what: str, form: str = "a map") -> WireMap:
    """The members of a map by name, str or bin."""
    if not isinstance(value, dict):
        raise TraceError(errno.EINVAL, f"{what} must be {form}")
    return {_name(key, "key"): member for key, member in value.items()}


_PATH: Final = Kind("text", _path, wire_text)
_CONTENTS: Final = Kind("bin", text_bytes)
"""str or bin: contents of files are often text."""
_NAME: Final = Kind("str", _name)


# Files by path. Paths are relative to the root of the tree.


class ReadFile(Params, method="read_file"):
    """read_file: the whole content."""

    path: bytes = member(_PATH)


class ListDir(Params, method="list_dir"):
    path: bytes = member(_PATH)
    modes: bool = member(BOOL, default=False)
    """Each entry has its mode, too."""


class StatPath(Params, method="stat"):
    path: bytes = member(_PATH)


class Mkdir(Params, method="mkdir"):
    path: bytes = member(_PATH)


class Rmdir(Params, method="rmdir"):
    path: bytes = member(_PATH)


class DirEntry(Message):
    """One element of the result of list_dir: an array."""

    name: bytes = member(TEXT)
    kind: str = member(_NAME)
    """`d` or `f`."""
    mode: int | None = member(INT, default=None)
    """Permission bits, if they were requested."""

    @classmethod
    def from_wire(cls, value: object) -> Self:
        if isinstance(value, list) and 2 <= len(value) <= 3 and isinstance(value[1], str):
            entry: Self = cls.from_array(value)
            return entry
        raise TraceError(errno.EINVAL, "entry of a directory must be [name, kind]")

    def to_wire(self) -> list[Any]:
        entry: list[Any] = self.to_array()
        return entry


class Stat(Result, of="stat"):
    kind: str = member(Kind("str", lambda value, what: text_of(text_bytes(value, what))))
    """`d` or `f`."""
    mode: int = member(INT)
    """Permission bits, without the file type."""
    size: int = member(INT, default=0, always=True)
    """Always 0, as in tracefs: read to the end to know."""


class WriteFile(Params, method="write_file"):
    """write_file: one write to a file, which is opened for it."""

    path: bytes = member(_PATH)
    data: bytes = member(_CONTENTS, name="bin")
    truncate: bool = member(Kind("bool", _truncate))
    """Open it like the shell's `>`, not like `>>`."""


# Open files.


ONE_LINE = 1 << 30
"""In the flags of `open`, beside those of open(2): `trace_pipe` shows each record as one line."""


class Open(Params, method="open"):
    path: bytes = member(_PATH)
    flags: int = member(INT)
    """The flags of open(2), and ONE_LINE."""


class Read(Params, method="read"):
    """read, of a file or a perf event."""

    handle: int = member(INT)
    size_untrusted: int = member(INT, name="size")
    """Maximum of bytes; the daemon may return fewer."""
    flags: int | None = member(or_nil(INT), default=None)
    """O_NONBLOCK or not, from now on, as set by fcntl(F_SETFL); None: unchanged."""


class Writer(Message):
    """The thread on whose behalf a write is made, with its start time as identity."""

    pid: int = member(INT, 1, (1 << 31) - 1)
    start_time: int = member(INT)
    """Clock ticks since boot: field 22 of /proc/PID/stat."""

    @classmethod
    def from_wire(cls, value: object, _: str = "") -> Self:
        """EINVAL; E2BIG for an unknown member."""
        writer = _named(value, "the writer", "a map of pid and start_time")
        refuse_unknown(writer, cls.KNOWN, "the writer")
        return cls.from_map(writer)


class Write(Params, method="write"):
    handle: int = member(INT)
    data: bytes = member(_CONTENTS, name="bin")
    writer: Writer | None = member(or_nil(Kind("map", Writer.from_wire, Writer.to_map)), default=None)
    """The writer, if it is not the connected process."""


class Seek(Params, method="seek"):
    """seek: lseek(2) with SEEK_SET."""

    handle: int = member(INT)
    offset: int = member(INT)


class Poll(Params, method="poll"):
    """poll: wait until a file, or the ring of a perf event, is ready."""

    handle: int = member(INT)


class Ready(Params, method="ready"):
    """ready: whether poll would return at once."""

    handle: int = member(INT)


class Cancel(Params, method="cancel"):
    """cancel: end the wait of a read or poll of this connection."""

    msgid: int = member(INT)


class Close(Params, method="close"):
    """close, of a file or a perf event."""

    handle: int = member(INT)


# perf events.


def _power_of_two(value: object, what: str, low: int, high: int) -> int:
    number = wire_int(value, what, low, high)
    if number & (number - 1):
        raise TraceError(errno.EINVAL, f"{what} {number} is not a power of two")
    return number


def _data_pages(value: object, what: str) -> int:
    pages = _power_of_two(value, what, 0, U64_MAX)
    if pages > MAX_PERF_DATA_PAGES:
        raise TraceError(errno.EINVAL, f"{what} {pages}; at most {MAX_PERF_DATA_PAGES}")
    return pages


def _bits(flags: type[IntFlag], default: IntFlag, known: IntFlag) -> Kind:
    """Flags with only some supported; 0 means the default."""

    def read(value: object, what: str) -> IntFlag:
        bits = wire_int(value or int(default), what)
        if bits & ~int(known):
            raise TraceError(errno.EINVAL, f"{what} {bits:#x}; at most {int(known):#x} are available")
        return flags(bits)

    return Kind("int", read, int)


class _Attr(MapParams):
    @classmethod
    def as_map(cls, value: object) -> WireMap:
        return _named(value, cls.MAP)


_ALL: Final = (-1, (1 << 31) - 1)


class PerfAttr(_Attr, method="perf_event_open", takes="attr"):
    """perf_event_open: the supported members of struct perf_event_attr, and of the call."""

    config: int | None = member(INT, 0, MAX_EVENT_ID, default=None)
    """Trace event id; or else `name`."""
    name: bytes | None = member(TEXT, default=None)
    """`user_events:NAME`."""
    sample_period: int = member(INT, default=0)
    """Records per sample; 0 counts only."""
    sample_freq: int = member(INT, 0, MAX_SAMPLE_FREQ, default=0)
    """Target of samples per second, instead of a period."""
    pid: int = member(INT, *_ALL, default=-1)
    """Thread or process, -1 for all."""
    cpu: int = member(INT, *_ALL, default=-1)
    """-1 for all."""
    filter: bytes | None = member(TEXT, default=None)
    """An event filter, in the syntax of PERF_EVENT_IOC_SET_FILTER."""
    data_pages: int = member(Kind("int", _data_pages), default=0)
    """Pages of the ring behind its metadata page: a power of two, or 0 for counting."""
    wakeup_watermark: int = member(INT, 0, 0xFFFF_FFFF, default=0)
    """Unread bytes at which a reader is woken; 0: the daemon's default."""
    disabled: bool = member(BOOL, default=False)
    """Open it without counting, until perf_ioctl ENABLE."""
    sample_type: SampleType = member(
        _bits(SampleType, DEFAULT_SAMPLE_TYPE, DEFAULT_SAMPLE_TYPE), default=DEFAULT_SAMPLE_TYPE
    )
    """Parts of a sample; 0 means the default."""
    read_format: ReadFormat = member(_bits(ReadFormat, COUNT_ALONE, ALL_READ_FORMAT), default=COUNT_ALONE)
    """Values of `read` after the count."""

    @classmethod
    def from_map(cls, attr: WireMap) -> Self:
        """EINVAL, also for contradictions."""
        made = super().from_map(attr)
        if (made.config is None) == (made.name is None):
            text = "attr must have either config (the event id) or name (user_events:NAME)"
            raise TraceError(errno.EINVAL, text)
        if made.sample_period and made.sample_freq:
            raise TraceError(errno.EINVAL, "attr has sample_period and sample_freq; choose one")
        if (made.sample_period or made.sample_freq) and not made.data_pages:
            raise TraceError(errno.EINVAL, "data_pages is missing: samples need a ring; 128 is usual")
        return made


class PerfOpened(Result, of="perf_event_open"):
    """The result of perf_event_open, with data_pages with 1 descriptor: the ring's memfd."""

    handle: int = member(INT)
    """For read, close and perf_ioctl."""
    id: int = member(INT, default=0)
    """Identifier of its samples and LOST records; 0 if absent, then use perf_ioctl ID."""
    size: int = member(INT, default=0)
    """Bytes to map: the metadata page and the data pages; 0 if absent, then use the descriptor's size."""


class PerfIoctl(Params, method="perf_ioctl"):
    """perf_ioctl: the ioctls of perf_event_open(2), without their PERF_EVENT_IOC_."""

    handle: int = member(INT)
    name: str = member(_NAME)
    arg: Any = member(Kind("any", lambda value, _: value), default=0, always=True)
    """The ioctl's argument: PERIOD an int, SET_FILTER text, the others none."""


# Streams.


def _words(value: object, what: str) -> tuple[bytes, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise TraceError(errno.EINVAL, f"{what} must be an array")
    if len(value) > MAX_STREAM_EVENTS:
        raise TraceError(errno.E2BIG, f"{len(value)} {what}; at most {MAX_STREAM_EVENTS}: use globs")
    return tuple(text_bytes(word, what) for word in value)


def _filter(value: object, what: str) -> bytes:
    text = text_bytes(value, what)
    if len(text) > MAX_FILTER:
        raise TraceError(errno.E2BIG, f"a {what} of {len(text)} bytes; at most {MAX_FILTER}")
    return text


def _ring_size(value: object, what: str) -> int:
    return _power_of_two(value or STREAM_RING_SIZE, what, MIN_STREAM_RING, MAX_STREAM_RING)


def _write_words(words: tuple[bytes, ...]) -> list[str | bytes]:
    return [wire_text(word) for word in words]


class StreamAttr(_Attr, method="stream_open", takes="attr"):
    """stream_open: a selection of records, and their ring."""

    events: tuple[bytes, ...] = member(Kind("array", _words, _write_words))
    """Words in the syntax of `standing_events`: SYSTEM:NAME, NAME, or globs; later events, too."""
    instances: tuple[bytes, ...] = member(Kind("array", _words, _write_words), default=())
    """Names of instances: only events that are enabled in one of these at the time."""
    filter: bytes | None = member(Kind("text", _filter, wire_text), default=None)
    """An event filter; events for which it is invalid are left out."""
    size: int = member(Kind("int", _ring_size), default=STREAM_RING_SIZE, always=True)
    """Bytes of the ring's data area, a power of two; 0 means the default."""
    watermark: int = member(Kind("int", lambda value, _: value or 1), default=1)
    """Unread bytes at which the doorbell rings; 0 means 1."""
    eventheader: bool = member(BOOL, default=False)
    """The reader decodes records of EventHeader, and filters those itself: `filter` is for the others."""
    filtered: bool = member(BOOL, default=False)
    """Only records that pass their event's filter in the instance; there is one, and no `filter`."""
    pages: bool = member(BOOL, default=False)
    """Instead of records the sub-buffers of one instance's ring buffer, which it consumes; no `events`."""
    lossless_us: int = member(INT, 0, MAX_LOSSLESS_US, default=0)
    """With `pages`: how long programs may wait for room, instead of losing records; 0: not at all."""

    @classmethod
    def from_map(cls, attr: WireMap) -> Self:
        """EINVAL; E2BIG for too many words, or a filter that is too long."""
        made = super().from_map(attr)
        wire_int(made.watermark, "watermark", 1, made.size)
        if not (made.events or made.pages):
            text = "events must have a word at least: user_events*:* means all"
            raise TraceError(errno.EINVAL, text)
        if made.pages and (made.events or made.filter or made.filtered or len(made.instances) != 1):
            raise TraceError(errno.EINVAL, "pages: name one instance, and neither events nor filters")
        if made.lossless_us and not made.pages:
            raise TraceError(errno.EINVAL, "lossless_us is for pages")
        if made.filtered and (len(made.instances) != 1 or made.filter is not None):
            raise TraceError(errno.EINVAL, "filtered: name the one instance with the filters, and no filter")
        return made


class StreamOpened(Result, of="stream_open"):
    """The result of stream_open, with 2 descriptors: the ring's memfd, the doorbell's pipe. Without `pages`
    it has the members of StreamMissed, too."""

    handle: int = member(INT)
    """For ready, poll and close, and the consumer's name in `stats`: `stream:HANDLE`."""


class GetMissed(Params, method="stream_missed"):
    """stream_missed: how many records did not reach a stream."""

    handle: int = member(INT)


class Missed(Message):
    """One event in the result of stream_missed: an array."""

    event: bytes = member(TEXT)
    """`SYSTEM:NAME`; it may have been removed."""
    count: int = member(INT)
    """Emitted records that are neither in the ring nor in its losses."""
    epoch: int = member(INT)
    """Counts of different epochs cannot be compared."""

    @classmethod
    def from_wire(cls, value: object) -> Self:
        if isinstance(value, list) and len(value) == 3:
            missed: Self = cls.from_array(value)
            return missed
        raise TraceError(errno.EINVAL, "an event must be [name, count, epoch]")


def _missed(value: object, what: str) -> tuple[Missed, ...]:
    if not isinstance(value, list):
        raise TraceError(errno.EINVAL, f"{what} must be an array")
    return tuple(map(Missed.from_wire, value))


class StreamMissed(Result, of="stream_missed"):
    """The result of stream_missed."""

    origin: bytes = member(TEXT)
    """Id of the daemon's state: counts of different states cannot be compared."""
    epoch: int = member(INT, default=0)
    """Epoch of events that are not listed; their count is 0."""
    events: tuple[Missed, ...] = member(
        Kind("array", _missed, lambda events: [one.to_array() for one in events]), default=()
    )


METHODS: Final = methods_in(globals())
"""All methods of the socket, by name."""
