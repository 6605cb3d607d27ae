"""The methods of the tracefs socket: a class for the params of each, and one for each result that is a map.

    | method          | params     | result                                         |
    |-----------------|------------|------------------------------------------------|
    | read_file       | ReadFile   | bin                                            |
    | write_file      | WriteFile  | int: bytes taken                               |
    | list_dir        | ListDir    | array of DirEntry                              |
    | stat            | StatPath   | Stat                                           |
    | mkdir, rmdir    | Mkdir, ... | nil                                            |
    | open            | Open       | int: handle                                    |
    | read            | Read       | bin                                            |
    | write           | Write      | int: bytes taken                               |
    | seek            | Seek       | int: offset                                    |
    | poll            | Poll       | nil                                            |
    | ready           | Ready      | bool                                           |
    | cancel          | Cancel     | bool: whether something was                    |
    | close           | Close      | nil                                            |
    | perf_event_open | PerfAttr   | PerfOpened; 1 descriptor where there is a ring |
    | perf_ioctl      | PerfIoctl  | int for ID, else nil                           |
    | stream_open     | StreamAttr | StreamOpened; 2 descriptors: ring, doorbell    |

`METHODS` finds the class by the method's name. `from_params` raises TraceError: EINVAL with what is wanted,
E2BIG for a member of a map that is not known. Whether a path, a handle or an event exists is not decided
here.
"""

import errno
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import (
    MAX_FILTER,
    MAX_PERF_DATA_PAGES,
    MAX_STREAM_EVENTS,
    MAX_STREAM_RING,
    MIN_STREAM_RING,
    STREAM_RING_SIZE,
)
from utracefs_protocol.messages.params import Params
from utracefs_protocol.messages.values import (
    params_of,
    refuse_unknown,
    text_bytes,
    wire_bool,
    wire_int,
    wire_map,
    wire_text,
)
from utracefs_protocol.perf_ring import (
    ALL_READ_FORMAT,
    COUNT_ALONE,
    DEFAULT_SAMPLE_TYPE,
    MAX_SAMPLE_FREQ,
    ReadFormat,
    SampleType,
)
from utracefs_protocol.text import text_of

__all__ = [
    "METHODS",
    "Cancel",
    "Close",
    "DirEntry",
    "ListDir",
    "Mkdir",
    "Open",
    "PerfAttr",
    "PerfIoctl",
    "PerfOpened",
    "Poll",
    "Read",
    "ReadFile",
    "Ready",
    "Rmdir",
    "Seek",
    "Stat",
    "StatPath",
    "StreamAttr",
    "StreamOpened",
    "Write",
    "WriteFile",
    "Writer",
]


def _contents(value: object) -> bytes:
    """str as well as bin: what is written to a file is often text."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return text_bytes(value, "str")
    raise TraceError(errno.EINVAL, f"bin or str wanted, not {type(value).__name__}")


def _path(value: object) -> bytes:
    path = _contents(value)
    if b"\0" in path:
        raise TraceError(errno.EINVAL, "a path holds no NUL")
    return path


def _number(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TraceError(errno.EINVAL, f"{what} must be a number that is not negative")
    return value


def _name(value: object) -> str:
    """The name of a member or of an ioctl."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return text_of(value)
    raise TraceError(errno.EINVAL, "str wanted")


def _members(cls: type[attrs.AttrsInstance], value: object, what: str, form: str) -> dict[str, Any]:
    """The members of a map by name; E2BIG for one that `cls` does not know."""
    if not isinstance(value, dict):
        raise TraceError(errno.EINVAL, f"{what} must be {form}")
    members = {_name(key): member for key, member in value.items()}
    refuse_unknown(members, attrs.fields_dict(cls).keys(), what)
    return members


# Files by path. Paths are relative to the root of the tree.


@attrs.frozen
class _OnePath:
    METHOD: ClassVar[str]

    path: bytes

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (path,) = params_of(cls.METHOD, params, "path")
        return cls(_path(path))

    def to_params(self) -> list[Any]:
        return [wire_text(self.path)]


class ReadFile(_OnePath):
    """read_file: the whole content."""

    __slots__ = ()
    METHOD: ClassVar[str] = "read_file"


@attrs.frozen
class ListDir:
    """list_dir."""

    METHOD: ClassVar[str] = "list_dir"

    path: bytes
    modes: bool = False
    """Each entry has its mode, too."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        if len(params) == 1:
            params = [*params, False]
        path, modes = params_of(cls.METHOD, params, "path", "modes")
        return cls(_path(path), wire_bool(modes, "modes"))

    def to_params(self) -> list[Any]:
        params: list[Any] = [wire_text(self.path)]
        return [*params, True] if self.modes else params


class StatPath(_OnePath):
    """stat."""

    __slots__ = ()
    METHOD: ClassVar[str] = "stat"


class Mkdir(_OnePath):
    """mkdir."""

    __slots__ = ()
    METHOD: ClassVar[str] = "mkdir"


class Rmdir(_OnePath):
    """rmdir."""

    __slots__ = ()
    METHOD: ClassVar[str] = "rmdir"


@attrs.frozen
class DirEntry:
    """One element of the result of list_dir."""

    name: bytes
    kind: str
    """`d` or `f`."""
    mode: int | None = None
    """Permission bits, where they were asked for."""

    @classmethod
    def from_wire(cls, value: object) -> Self:
        match value:
            case [name, str() as kind]:
                return cls(text_bytes(name, "name"), kind)
            case [name, str() as kind, mode]:
                return cls(text_bytes(name, "name"), kind, wire_int(mode, "mode"))
        raise TraceError(errno.EINVAL, "entry of a directory must be [name, kind]")

    def to_wire(self) -> list[str | bytes | int]:
        entry: list[str | bytes | int] = [wire_text(self.name), self.kind]
        return entry if self.mode is None else [*entry, self.mode]


@attrs.frozen
class Stat:
    """What the tree says about a path: the result of stat."""

    kind: str
    """`d` or `f`."""
    mode: int
    """Permission bits, without the file type."""
    size: int = 0
    """Always 0, as in tracefs: read to the end to know."""

    @classmethod
    def from_wire(cls, result: object) -> Self:
        members = wire_map(result, "result of stat")
        kind = text_bytes(members.get("kind"), "kind").decode("utf-8", "replace")
        return cls(kind, wire_int(members.get("mode"), "mode"), wire_int(members.get("size"), "size"))

    def to_wire(self) -> dict[str, str | int]:
        return {"kind": self.kind, "mode": self.mode, "size": self.size}


@attrs.frozen
class WriteFile:
    """write_file: one write to a file that is opened for it."""

    METHOD: ClassVar[str] = "write_file"

    path: bytes
    data: bytes
    truncate: bool
    """Open it as the shell's `>` does, not as `>>`."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        path, data, truncate = params_of(cls.METHOD, params, "path", "bin", "truncate")
        if not isinstance(truncate, bool):
            raise TraceError(errno.EINVAL, "truncate must be true (the shell's >) or false (>>)")
        return cls(_path(path), _contents(data), truncate)

    def to_params(self) -> list[Any]:
        return [wire_text(self.path), self.data, self.truncate]


# Open files.


ONE_LINE = 1 << 30
"""In the flags of `open`, beside those of open(2): `trace_pipe` shows each record as one line."""


@attrs.frozen
class Open:
    """open."""

    METHOD: ClassVar[str] = "open"

    path: bytes
    flags: int
    """The number that open(2) takes, and ONE_LINE."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        path, flags = params_of(cls.METHOD, params, "path", "flags")
        return cls(_path(path), _number(flags, "flags"))

    def to_params(self) -> list[Any]:
        return [wire_text(self.path), self.flags]


@attrs.frozen
class Read:
    """read, of a file or a perf event."""

    METHOD: ClassVar[str] = "read"

    handle: int
    size_untrusted: int
    """Bytes wanted; the daemon gives fewer."""
    flags: int | None = None
    """O_NONBLOCK or not, from now on, as fcntl(F_SETFL) sets it; None leaves it as it is."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        if len(params) == 2:
            params = [*params, None]
        handle, size, flags = params_of(cls.METHOD, params, "handle", "size", "flags")
        return cls(
            _number(handle, "handle"),
            _number(size, "size"),
            None if flags is None else _number(flags, "flags"),
        )

    def to_params(self) -> list[Any]:
        params = [self.handle, self.size_untrusted]
        return params if self.flags is None else [*params, self.flags]


@attrs.frozen
class Writer:
    """On whose behalf something is written: a thread, and when it began, so that it is no other."""

    pid: int
    start_time: int
    """Clock ticks since boot: field 22 of /proc/PID/stat."""

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """EINVAL; E2BIG for a member that is not known."""
        writer = _members(cls, value, "the writer", "a map of pid and start_time")
        return cls(
            wire_int(writer.get("pid"), "pid", 1, (1 << 31) - 1),
            wire_int(writer.get("start_time"), "start_time"),
        )

    def to_wire(self) -> dict[str, int]:
        return {"pid": self.pid, "start_time": self.start_time}


@attrs.frozen
class Write:
    """write, to an open file."""

    METHOD: ClassVar[str] = "write"

    handle: int
    data: bytes
    writer: Writer | None = None
    """Who writes, if it is not the process that connected."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        if len(params) == 2:
            params = [*params, None]
        handle, data, writer = params_of(cls.METHOD, params, "handle", "bin", "writer")
        return cls(
            _number(handle, "handle"),
            _contents(data),
            None if writer is None else Writer.from_wire(writer),
        )

    def to_params(self) -> list[Any]:
        params: list[Any] = [self.handle, self.data]
        return params if self.writer is None else [*params, self.writer.to_wire()]


@attrs.frozen
class Seek:
    """seek: lseek(2) with SEEK_SET."""

    METHOD: ClassVar[str] = "seek"

    handle: int
    offset: int

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        handle, offset = params_of(cls.METHOD, params, "handle", "offset")
        return cls(_number(handle, "handle"), _number(offset, "offset"))

    def to_params(self) -> list[Any]:
        return [self.handle, self.offset]


@attrs.frozen
class _OneHandle:
    METHOD: ClassVar[str]

    handle: int

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (handle,) = params_of(cls.METHOD, params, "handle")
        return cls(_number(handle, "handle"))

    def to_params(self) -> list[Any]:
        return [self.handle]


class Poll(_OneHandle):
    """poll: wait until reading a file, or the ring of a perf event, is worth while."""

    __slots__ = ()
    METHOD: ClassVar[str] = "poll"


class Ready(_OneHandle):
    """ready: what poll would wait for, told at once."""

    __slots__ = ()
    METHOD: ClassVar[str] = "ready"


@attrs.frozen
class Cancel:
    """cancel: a read or poll of this connection that waits shall not wait any longer."""

    METHOD: ClassVar[str] = "cancel"

    msgid: int
    """Of its request."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (msgid,) = params_of(cls.METHOD, params, "msgid")
        return cls(_number(msgid, "msgid"))

    def to_params(self) -> list[Any]:
        return [self.msgid]


class Close(_OneHandle):
    """close, of a file or a perf event."""

    __slots__ = ()
    METHOD: ClassVar[str] = "close"


# perf events.


@attrs.frozen
class PerfAttr:
    """perf_event_open: what to sample. The members of struct perf_event_attr, and of the call, that mean
    something here."""

    METHOD: ClassVar[str] = "perf_event_open"

    config: int | None = None
    """Trace event id; or else `name`."""
    name: bytes | None = None
    """`user_events:NAME`."""
    sample_period: int = 0
    """A sample every so many records; 0 counts only."""
    sample_freq: int = 0
    """Samples a second to aim at, instead of a period."""
    pid: int = -1
    """Thread or process to look at, -1 for all."""
    cpu: int = -1
    """-1 for all."""
    filter: bytes | None = None
    """An event filter, as PERF_EVENT_IOC_SET_FILTER takes it."""
    data_pages: int = 0
    """Pages of the ring behind its metadata page: a power of two, or 0 for counting."""
    wakeup_watermark: int = 0
    """Bytes of unread data at which a reader is woken; 0 leaves it to the daemon."""
    disabled: bool = False
    """Begin without counting, until perf_ioctl ENABLE."""
    sample_type: SampleType = DEFAULT_SAMPLE_TYPE
    """Parts of a sample."""
    read_format: ReadFormat = COUNT_ALONE
    """What `read` gives behind the count."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        """EINVAL for what contradicts itself and for more pages than are allowed; E2BIG."""
        (value,) = params_of(cls.METHOD, params, "attr")
        attr = _members(cls, value, "attr", "a map")
        config, name = attr.get("config"), attr.get("name")
        if (config is None) == (name is None):
            raise TraceError(
                errno.EINVAL, "attr must have either config (the event id) or name (user_events:NAME)"
            )
        period = wire_int(attr.get("sample_period") or 0, "sample_period")
        freq = wire_int(attr.get("sample_freq") or 0, "sample_freq", 0, MAX_SAMPLE_FREQ)
        if period and freq:
            raise TraceError(errno.EINVAL, "attr has sample_period and sample_freq; choose one")
        pages = wire_int(attr.get("data_pages") or 0, "data_pages")
        if pages & (pages - 1):
            raise TraceError(errno.EINVAL, f"data_pages {pages} is not a power of two")
        if pages > MAX_PERF_DATA_PAGES:
            raise TraceError(errno.EINVAL, f"data_pages {pages}; at most {MAX_PERF_DATA_PAGES}")
        if (period or freq) and not pages:
            raise TraceError(errno.EINVAL, "data_pages is missing: samples need a ring; 128 is usual")
        sample_type = wire_int(attr.get("sample_type") or int(DEFAULT_SAMPLE_TYPE), "sample_type")
        if sample_type & ~DEFAULT_SAMPLE_TYPE:
            raise TraceError(
                errno.EINVAL,
                f"sample_type {sample_type:#x}; at most {int(DEFAULT_SAMPLE_TYPE):#x} are available",
            )
        read_format = wire_int(attr.get("read_format") or 0, "read_format")
        if read_format & ~int(ALL_READ_FORMAT):
            raise TraceError(
                errno.EINVAL,
                f"read_format {read_format:#x}; at most {int(ALL_READ_FORMAT):#x} are available",
            )
        return cls(
            config=None if config is None else wire_int(config, "config", 0, 0xFFFF),
            name=None if name is None else text_bytes(name, "name"),
            sample_period=period,
            sample_freq=freq,
            pid=_all_or(attr.get("pid"), "pid"),
            cpu=_all_or(attr.get("cpu"), "cpu"),
            filter=None if attr.get("filter") is None else text_bytes(attr["filter"], "filter"),
            data_pages=pages,
            wakeup_watermark=wire_int(attr.get("wakeup_watermark") or 0, "wakeup_watermark", 0, 0xFFFF_FFFF),
            disabled=wire_bool(attr.get("disabled") or False, "disabled"),
            sample_type=SampleType(sample_type),
            read_format=ReadFormat(read_format),
        )

    def to_params(self) -> list[Any]:
        """All members that are not at their default."""
        attr: dict[str, Any] = {}
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if value != field.default:
                attr[field.name] = (
                    wire_text(value)
                    if isinstance(value, bytes)
                    else value
                    if isinstance(value, bool)
                    else int(value)
                )
        return [attr]


def _all_or(value: object, what: str) -> int:
    return -1 if value is None else wire_int(value, what, -1, (1 << 31) - 1)


@attrs.frozen
class PerfOpened:
    """The result of perf_event_open. With data_pages, 1 descriptor comes with it: the ring's memfd."""

    handle: int
    """For read, close and perf_ioctl."""
    id: int = 0
    """What its samples and LOST records carry as identifier; 0 if not told, then perf_ioctl ID tells it."""
    size: int = 0
    """Bytes to map: the metadata page and the data pages; 0 if not told, then the descriptor's size."""

    @classmethod
    def from_wire(cls, result: object) -> Self:
        members = wire_map(result, "result of perf_event_open")
        return cls(
            wire_int(members.get("handle"), "handle"),
            wire_int(members.get("id") or 0, "id"),
            wire_int(members.get("size") or 0, "size"),
        )

    def to_wire(self) -> dict[str, int]:
        """Only what is told."""
        told = {"handle": self.handle, "id": self.id, "size": self.size}
        return {name: value for name, value in told.items() if value or name == "handle"}


@attrs.frozen
class PerfIoctl:
    """perf_ioctl: the ioctls of perf_event_open(2), without their PERF_EVENT_IOC_."""

    METHOD: ClassVar[str] = "perf_ioctl"

    handle: int
    name: str
    arg: Any = 0
    """What the ioctl makes of it: PERIOD an int, SET_FILTER text, the others nothing."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        handle, name, arg = params_of(cls.METHOD, params, "handle", "name", "arg")
        return cls(_number(handle, "handle"), _name(name), arg)

    def to_params(self) -> list[Any]:
        return [self.handle, self.name, self.arg]


# Streams.


@attrs.frozen
class StreamAttr:
    """stream_open: which records, and the ring that they come in."""

    METHOD: ClassVar[str] = "stream_open"

    events: tuple[bytes, ...]
    """Words as `standing_events` takes them: SYSTEM:NAME, NAME, or globs; later events, too."""
    instances: tuple[bytes, ...] = ()
    """Names of instances: of the events only those that are enabled in one of these, as that changes."""
    filter: bytes | None = None
    """An event filter; events that it does not fit are left out."""
    size: int = STREAM_RING_SIZE
    """Bytes of the ring's data area, a power of two."""
    watermark: int = 1
    """Bytes that wait for the reader before the doorbell rings."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        """EINVAL; E2BIG for too many words, a filter that is too long, or an unknown member."""
        (value,) = params_of(cls.METHOD, params, "attr")
        attr = _members(cls, value, "attr", "a map")
        events = _words(attr.get("events"), "events")
        if not events:
            raise TraceError(errno.EINVAL, "events must have a word at least: user_events*:* means all")
        size = wire_int(attr.get("size") or STREAM_RING_SIZE, "size", MIN_STREAM_RING, MAX_STREAM_RING)
        if size & (size - 1):
            raise TraceError(errno.EINVAL, f"size {size} is not a power of two")
        filter_ = None if attr.get("filter") is None else text_bytes(attr["filter"], "filter")
        if filter_ is not None and len(filter_) > MAX_FILTER:
            raise TraceError(errno.E2BIG, f"a filter of {len(filter_)} bytes; at most {MAX_FILTER}")
        return cls(
            events,
            _words(attr.get("instances"), "instances"),
            filter_,
            size,
            wire_int(attr.get("watermark") or 1, "watermark", 1, size),
        )

    def to_params(self) -> list[Any]:
        attr: dict[str, Any] = {"events": [wire_text(word) for word in self.events], "size": self.size}
        if self.instances:
            attr["instances"] = [wire_text(word) for word in self.instances]
        if self.filter is not None:
            attr["filter"] = wire_text(self.filter)
        if self.watermark != 1:
            attr["watermark"] = self.watermark
        return [attr]


def _words(value: object, what: str) -> tuple[bytes, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise TraceError(errno.EINVAL, f"{what} must be an array")
    if len(value) > MAX_STREAM_EVENTS:
        raise TraceError(errno.E2BIG, f"{len(value)} {what}; at most {MAX_STREAM_EVENTS}: use globs")
    return tuple(text_bytes(word, what) for word in value)


@attrs.frozen
class StreamOpened:
    """The result of stream_open. 2 descriptors come with it: the ring's memfd, the doorbell's pipe."""

    handle: int
    """For ready, poll and close, and the consumer's name in `stats`: `stream:HANDLE`."""

    @classmethod
    def from_wire(cls, result: object) -> Self:
        return cls(wire_int(wire_map(result, "result of stream_open").get("handle"), "handle"))

    def to_wire(self) -> dict[str, int]:
        return {"handle": self.handle}


METHODS: Final[Mapping[str, type[Params]]] = {
    kind.METHOD: kind
    for kind in (
        ReadFile,
        WriteFile,
        ListDir,
        StatPath,
        Mkdir,
        Rmdir,
        Open,
        Read,
        Write,
        Seek,
        Poll,
        Ready,
        Cancel,
        Close,
        PerfAttr,
        PerfIoctl,
        StreamAttr,
    )
}
"""All methods of the socket, by name."""
