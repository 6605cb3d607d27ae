"""What the params and results of the two sockets mean: maps on the wire, attrs classes within.

Every class reads itself with `from_wire` and writes itself with `to_wire`. `from_wire` checks shape and range
and raises TraceError(EINVAL) with the member at fault; where the kernel has checks of its own for a struct, they
come in its order and with its errno (kernel/trace/trace_events_user.c, user_reg_get, user_unreg_get).

The maps stand for C structs, and grow as those do: an absent member is zero, and an unknown one is ignored
while it is zero (or nil, or false) and E2BIG otherwise: the sender wants something that we do not have.

Text (names, paths, command strings) may come as str or as bin and is bytes within: `text_bytes`. What we send is
str where it is UTF-8 and bin where not: `wire_text`.
"""

import errno
from collections.abc import Collection, Mapping
from typing import Any, Final, TypeAlias

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import (
    MAX_PERF_DATA_PAGES,
    MAX_STRUCT_ARGUMENT,
    MAX_WRITE_INDEX,
    REG_STRUCT_SIZE,
    UNREG_STRUCT_SIZE,
)
from utracefs_protocol.perf_ring import DEFAULT_SAMPLE_TYPE, SampleType

__all__ = [
    "REG_MULTI_FORMAT",
    "REG_PERSIST",
    "Enabler",
    "EventRegistration",
    "EventUnregistration",
    "PerfAttr",
    "PerfOpened",
    "Registered",
    "params_of",
    "text_bytes",
    "wire_bool",
    "wire_bytes",
    "wire_int",
    "wire_map",
    "wire_text",
]

REG_PERSIST: Final = 0x1
"""USER_EVENT_REG_PERSIST: keep the event when nothing refers to it."""

REG_MULTI_FORMAT: Final = 0x2
"""USER_EVENT_REG_MULTI_FORMAT: several formats under one name."""

_REG_MEMBERS: Final = frozenset(
    ("size", "enable_bit", "enable_size", "flags", "enable_addr", "enable_fd", "name_args")
)
_UNREG_MEMBERS: Final = frozenset(
    (
        "size",
        "disable_bit",
        "reserved",
        "reserved2",
        "__reserved",
        "__reserved2",
        "disable_addr",
        "disable_fd",
    )
)
_U64_MAX: Final = (1 << 64) - 1
_PERF_MAX_FREQ: Final = 100_000

WireMap: TypeAlias = Mapping[Any, Any]


# One value at a time.


def wire_text(value: bytes) -> str | bytes:
    """A name or path as it goes on the wire: str when it is UTF-8, else bin."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def text_bytes(value: object, what: str) -> bytes:
    """A name or path that came over the wire, str or bin."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise TraceError(errno.EINVAL, f"{what} cannot be written as UTF-8") from None
    raise TraceError(errno.EINVAL, f"{what} must be str or bin, not {_kind(value)}")


def wire_bytes(value: object, what: str) -> bytes:
    """Contents: bin only."""
    if not isinstance(value, bytes):
        raise TraceError(errno.EINVAL, f"{what} must be bin, not {_kind(value)}")
    return value


def wire_int(value: object, what: str, low: int = 0, high: int = _U64_MAX) -> int:
    """An integer from low to high; true and false are none."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TraceError(errno.EINVAL, f"{what} must be an integer, not {_kind(value)}")
    if not low <= value <= high:
        raise TraceError(errno.EINVAL, f"{what} {value} is not within {low} to {high}")
    return value


def wire_bool(value: object, what: str) -> bool:
    """true or false; 0 and 1 do as well, for those whose language has no other."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise TraceError(errno.EINVAL, f"{what} must be true or false, not {_kind(value)}")


def wire_map(value: object, what: str) -> WireMap:
    """A map. Its keys may be anything until a member is looked for."""
    if not isinstance(value, dict):
        raise TraceError(errno.EINVAL, f"{what} must be a map, not {_kind(value)}")
    return value


def params_of(method: str, params: list[Any], *names: str) -> list[Any]:
    """The params of a call, after a look at their number: `path, size = params_of("read", params, "handle",
    "size")`. EINVAL otherwise."""
    if len(params) != len(names):
        raise TraceError(errno.EINVAL, f"{method} takes [{', '.join(names)}], not {len(params)} params")
    return params


def _kind(value: object) -> str:
    match value:
        case None:
            return "nil"
        case bool():
            return "bool"
        case bytes():
            return "bin"
        case list():
            return "array"
        case dict():
            return "map"
        case _:
            return type(value).__name__


def _refuse_unknown(members: WireMap, known: Collection[str], what: str) -> None:
    """copy_struct_from_user(): E2BIG for a tail that is not zero."""
    for key, value in members.items():
        if key not in known and value:
            raise TraceError(errno.E2BIG, f"{what} has a member {key!r} that is not known here")


def _struct_size(members: WireMap, least: int, what: str) -> None:
    """The first checks of user_reg_get() and user_unreg_get()."""
    if (value := members.get("size")) is None:
        return
    size = wire_int(value, f"{what} size")
    if size > MAX_STRUCT_ARGUMENT:
        raise TraceError(errno.E2BIG, f"{what} size {size}; at most {MAX_STRUCT_ARGUMENT}")
    if size < least:
        raise TraceError(errno.EINVAL, f"{what} size {size}; at least {least}, or leave it out")


# The data socket.


@attrs.frozen
class Enabler:
    """A bit in memory of the client's own, to be set while the event is wanted (the model of 2022)."""

    fd: int
    """Index into the descriptors that came with the request: a memfd sealed against shrinking."""
    addr: int
    """Byte offset in it, a multiple of `size`."""
    bit: int
    """0 to 31 or 63."""
    size: int
    """4 or 8 bytes: the word that is read and written as one."""


@attrs.frozen
class EventRegistration:
    """DIAG_IOCSREG: struct user_reg."""

    name_args: bytes
    """The command string, not read yet; its length is checked with its contents (check_command_length)."""
    flags: int = 0
    """REG_PERSIST, REG_MULTI_FORMAT."""
    enabler: Enabler | None = None

    @classmethod
    def from_wire(cls, params: list[Any]) -> "EventRegistration":
        """E2BIG, EINVAL: the order of rows R2, R3, R5 to R9; then what only a map can get wrong."""
        (value,) = params_of("DIAG_IOCSREG", params, "reg")
        reg = wire_map(value, "reg")
        _struct_size(reg, REG_STRUCT_SIZE, "reg")
        _refuse_unknown(reg, _REG_MEMBERS, "reg")
        flags = wire_int(reg.get("flags") or 0, "flags")
        if flags & ~(REG_PERSIST | REG_MULTI_FORMAT):
            raise TraceError(
                errno.EINVAL, f"flags {flags:#x}; 0x1 (persist) and 0x2 (multi-format) are known"
            )
        enabler = None
        if any(
            reg.get(member) is not None
            for member in ("enable_fd", "enable_addr", "enable_bit", "enable_size")
        ):
            enabler = cls._enabler(reg)
        if reg.get("name_args") is None:
            raise TraceError(
                errno.EINVAL, "reg has no name_args; it is the command string 'name type field; ...'"
            )
        return cls(text_bytes(reg["name_args"], "name_args"), flags, enabler)

    @staticmethod
    def _enabler(reg: WireMap) -> Enabler:
        size = wire_int(reg.get("enable_size") or 0, "enable_size")
        if size not in (4, 8):
            raise TraceError(errno.EINVAL, f"enable_size {size}; it must be 4 or 8")
        addr = wire_int(reg.get("enable_addr") or 0, "enable_addr")
        if addr % size:
            raise TraceError(errno.EINVAL, f"enable_addr {addr} is not a multiple of enable_size {size}")
        bit = wire_int(reg.get("enable_bit") or 0, "enable_bit", 0, size * 8 - 1)
        if reg.get("enable_fd") is None:
            raise TraceError(
                errno.EINVAL, "enable_fd is missing; it is an index into the descriptors sent along"
            )
        return Enabler(wire_int(reg["enable_fd"], "enable_fd", 0, 255), addr, bit, size)

    def to_wire(self) -> list[Any]:
        reg: dict[str, Any] = {"name_args": wire_text(self.name_args)}
        if self.flags:
            reg["flags"] = self.flags
        if self.enabler is not None:
            reg["enable_fd"] = self.enabler.fd
            reg["enable_addr"] = self.enabler.addr
            reg["enable_bit"] = self.enabler.bit
            reg["enable_size"] = self.enabler.size
        return [reg]


@attrs.frozen
class Registered:
    """The result of DIAG_IOCSREG."""

    status_index: int
    """>= 1: the event's byte in the status page."""
    write_index: int
    """>= 0: what its records begin with on this connection, and on no other."""
    id: int
    """common_type of its entries, for perf and for those who read pages."""

    @classmethod
    def from_wire(cls, result: object) -> "Registered":
        members = wire_map(result, "result of DIAG_IOCSREG")
        return cls(
            wire_int(members.get("status_index"), "status_index", 1),
            wire_int(members.get("write_index"), "write_index", 0, MAX_WRITE_INDEX),
            wire_int(members.get("id"), "id", 1, 0xFFFF),
        )

    def to_wire(self) -> dict[str, int]:
        return {"status_index": self.status_index, "write_index": self.write_index, "id": self.id}


@attrs.frozen
class EventUnregistration:
    """DIAG_IOCSUNREG: struct user_unreg."""

    fd: int
    """Index into the descriptors that came with the request; any descriptor of the file will do."""
    addr: int
    bit: int

    @classmethod
    def from_wire(cls, params: list[Any]) -> "EventUnregistration":
        """E2BIG, EINVAL: the order of rows U2, U3, U5, U4."""
        (value,) = params_of("DIAG_IOCSUNREG", params, "unreg")
        unreg = wire_map(value, "unreg")
        _struct_size(unreg, UNREG_STRUCT_SIZE, "unreg")
        _refuse_unknown(unreg, _UNREG_MEMBERS, "unreg")
        for member in ("reserved", "reserved2", "__reserved", "__reserved2"):
            if unreg.get(member):
                raise TraceError(errno.EINVAL, f"{member} must be 0")
        if unreg.get("disable_fd") is None:
            raise TraceError(
                errno.EINVAL, "disable_fd is missing; it is an index into the descriptors sent along"
            )
        return cls(
            wire_int(unreg["disable_fd"], "disable_fd", 0, 255),
            wire_int(unreg.get("disable_addr") or 0, "disable_addr"),
            wire_int(unreg.get("disable_bit") or 0, "disable_bit", 0, 255),
        )

    def to_wire(self) -> list[Any]:
        return [{"disable_fd": self.fd, "disable_addr": self.addr, "disable_bit": self.bit}]


# perf_event_open on the tracefs socket.


@attrs.frozen
class PerfAttr:
    """What to sample: the members of struct perf_event_attr, and of the call, that mean something here."""

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

    @classmethod
    def from_wire(cls, params: list[Any]) -> "PerfAttr":
        """EINVAL for what cannot be meant and for more pages than are allowed; E2BIG."""
        (value,) = params_of("perf_event_open", params, "attr")
        attr = wire_map(value, "attr")
        _refuse_unknown(attr, attrs.fields_dict(cls).keys(), "attr")
        config, name = attr.get("config"), attr.get("name")
        if (config is None) == (name is None):
            raise TraceError(
                errno.EINVAL, "attr must have either config (the event id) or name (user_events:NAME)"
            )
        period = wire_int(attr.get("sample_period") or 0, "sample_period")
        freq = wire_int(attr.get("sample_freq") or 0, "sample_freq", 0, _PERF_MAX_FREQ)
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
                f"sample_type {sample_type:#x}; at most {int(DEFAULT_SAMPLE_TYPE):#x} can be had",
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
        )

    def to_wire(self) -> list[Any]:
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
    """The result of perf_event_open; a descriptor of the ring comes with it."""

    handle: int
    """For read, close and perf_ioctl."""
    id: int = 0
    """What its samples and LOST records carry as identifier; 0 if not told, then perf_ioctl ID tells it."""
    size: int = 0
    """Bytes to map: the metadata page and the data pages; 0 if not told, then the descriptor's size."""

    @classmethod
    def from_wire(cls, result: object) -> "PerfOpened":
        members = wire_map(result, "result of perf_event_open")
        return cls(
            wire_int(members.get("handle"), "handle"),
            wire_int(members.get("id") or 0, "id"),
            wire_int(members.get("size") or 0, "size"),
        )

    def to_wire(self) -> dict[str, int]:
        return {"handle": self.handle, "id": self.id, "size": self.size}
