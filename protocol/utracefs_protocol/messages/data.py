"""The methods of the data socket: a class for the params of each, and one for each result that is a map.

Section 3 of docs/protocol.md has the table of all. Two notifications belong together: EnablersChanged of the
daemon, and EnablersWritten of the client when it has set its bits.

`METHODS` has the class by the method's name. `from_params` (and `from_wire` of a result) checks shape and
range (see `rows`) and raises TraceError(EINVAL) naming the member. Where the kernel checks a struct, the
checks have its order and its errno (kernel/trace/trace_events_user.c, user_reg_get(), user_unreg_get()).
"""

from __future__ import annotations

import errno
from typing import Any, ClassVar, Final, Self

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.declaration import REG_MULTI_FORMAT, REG_PERSIST
from utracefs_protocol.limits import (
    MAX_EVENT_ID,
    MAX_STRUCT_ARGUMENT,
    MAX_WRITE_INDEX,
    REG_STRUCT_SIZE,
    UNREG_STRUCT_SIZE,
)
from utracefs_protocol.messages.rows import WHOLE, MapParams, Message, Params, Result, member, methods_in
from utracefs_protocol.messages.values import (
    BIN,
    INT,
    TEXT,
    Kind,
    WireMap,
    text_bytes,
    wire_int,
    wire_map,
    wire_text,
)

PROTOCOL_VERSION: Final = 2
"""Grows when methods or members are added to either socket: a client that needs one can look here first."""

RING_VERSION: Final = 2
"""Version of the data ring's layout: DR_VERSION of include/data_ring.h."""

MAX_TOKEN: Final = (1 << 63) - 1
"""Range of the token of an enabler with notification."""

MAX_CHANGES: Final = 1024
"""Limit of pairs in one EnablersChanged."""

_MAX_PID: Final = (1 << 31) - 1
_MAX_ID: Final = (1 << 32) - 2  # -1 is no user


def _bit(value: object, what: str) -> bool:
    return bool(wire_int(value, what, 0, 1))


def _version(value: object, _: str) -> int:
    return wire_int(value, "version of the data ring", RING_VERSION, RING_VERSION)


_BIT: Final = Kind("int", _bit, int)


# Registrations.


class _Struct(MapParams):
    """A C struct of the kernel that contains its own size."""

    LEAST_SIZE: ClassVar[int]

    def __init_subclass__(cls, *, least_size: int, **named: Any) -> None:
        super().__init_subclass__(**named)
        cls.LEAST_SIZE = least_size

    @classmethod
    def as_map(cls, value: object) -> WireMap:
        """The first checks of user_reg_get() and user_unreg_get()."""
        members = wire_map(value, cls.MAP)
        if (said := members.get("size")) is not None:
            size = wire_int(said, f"{cls.MAP} size")
            if size > MAX_STRUCT_ARGUMENT:
                raise TraceError(errno.E2BIG, f"{cls.MAP} size {size}; at most {MAX_STRUCT_ARGUMENT}")
            if size < cls.LEAST_SIZE:
                text = f"{cls.MAP} size {size}; at least {cls.LEAST_SIZE}, or leave it out"
                raise TraceError(errno.EINVAL, text)
        return members


def _index(value: object, what: str) -> int:
    if value is None:
        raise TraceError(errno.EINVAL, f"{what} is missing; it is an index into the descriptors sent along")
    return wire_int(value, what, 0, 255)


_INDEX: Final = Kind("int", _index)


def _word_size(value: object, what: str) -> int:
    size = wire_int(value or 0, what)
    if size not in (4, 8):
        raise TraceError(errno.EINVAL, f"{what} {size}; it must be 4 or 8")
    return size


class Enabler(Message):
    """A bit in the client's memory that is set while a consumer is attached to the event."""

    fd: int = member(_INDEX, name="enable_fd")
    """Index into the descriptors that came with the request: a memfd sealed against shrinking."""
    addr: int = member(INT, name="enable_addr")
    """Byte offset in it, a multiple of `size`."""
    bit: int = member(INT, name="enable_bit")
    """0 to 31 or 63."""
    size: int = member(Kind("int", _word_size), name="enable_size")
    """Size of the word, which is read and written as a whole: 4 or 8 bytes."""

    @classmethod
    def from_map(cls, reg: WireMap) -> Self:
        """EINVAL; an absent `addr` or `bit` is 0."""
        size = _word_size(reg.get("enable_size"), "enable_size")
        addr = wire_int(reg.get("enable_addr") or 0, "enable_addr")
        if addr % size:
            raise TraceError(errno.EINVAL, f"enable_addr {addr} is not a multiple of enable_size {size}")
        bit = wire_int(reg.get("enable_bit") or 0, "enable_bit", 0, size * 8 - 1)
        return cls(_index(reg.get("enable_fd"), "enable_fd"), addr, bit, size)


def _enabler(reg: WireMap, _: str) -> Enabler | None:
    if Enabler.KNOWN.isdisjoint(reg):
        return None
    given = [row.name for row in Enabler.ROWS.values() if reg.get(row.name) is not None]
    if reg.get("enable_token") is None:
        return Enabler.from_map(reg) if given else None
    if given := [name for name in given if reg[name]]:
        text = f"enable_token and {given[0]}; an enabler is known by its token or by its word"
        raise TraceError(errno.EINVAL, text)
    return None


def _reg_flags(value: object, what: str) -> int:
    flags = wire_int(value, what)
    if flags & ~(REG_PERSIST | REG_MULTI_FORMAT):
        raise TraceError(errno.EINVAL, f"flags {flags:#x}; 0x1 (persist) and 0x2 (multi-format) are known")
    return flags


def _command(value: object, what: str) -> bytes:
    if value is None:
        text = "reg has no name_args; it is the command string 'name type field; ...'"
        raise TraceError(errno.EINVAL, text)
    return text_bytes(value, what)


class EventRegistration(_Struct, method="DIAG_IOCSREG", takes="reg", least_size=REG_STRUCT_SIZE):
    """DIAG_IOCSREG: struct user_reg, checked in the order of user_reg_get(). With an enabler, a descriptor of
    its memory is sent along."""

    NOT_KEPT = Enabler.KNOWN | {"size"}

    name_args: bytes = member(Kind("text", _command, wire_text))
    """The command string, not parsed yet; its length is checked with its contents (check_command_length)."""
    flags: int = member(Kind("int", _reg_flags), default=0)
    """REG_PERSIST, REG_MULTI_FORMAT."""
    enabler: Enabler | None = member(Kind("", _enabler, Enabler.to_map), name=WHOLE, default=None)
    token: int | None = member(INT, 0, MAX_TOKEN, name="enable_token", default=None)
    """The client's number for a bit that it sets on notification. Then this makes an enabler without
    write_index; `enabler` is None."""
    event_id: int = member(INT, 0, MAX_EVENT_ID, default=0)
    """Not 0: `Registered.event_id` of an earlier registration. Selects the event with this id if it has the
    same declaration."""
    write_index: int | None = member(INT, 0, MAX_EVENT_ID, default=None)
    """The write_index that the client wants for this event; None: the next one."""


class Registered(Result, of="DIAG_IOCSREG"):
    """The result of DIAG_IOCSREG."""

    status_index: int = member(INT, 1)
    """>= 1: the event's byte in the status page."""
    write_index: int = member(INT, 0, MAX_WRITE_INDEX)
    """>= 0: identifies the event in records of this connection only."""
    id: int = member(INT, 1, MAX_EVENT_ID)
    """common_type of its entries, for perf and for readers of pages."""
    size: int = member(Kind("int", lambda *_: 0), default=0, always=True)
    """Minimum bytes of a payload: those of the fixed fields. The client library does not read it."""
    locs: list[list[int]] = member(Kind("array", lambda *_: []), default=[])
    """[offset in the payload, flags] of each location word: 1 a __rel_loc, 2 its data must end in NUL. The
    client library does not read it."""
    event_id: int = member(INT, 0, MAX_EVENT_ID, default=0)
    """Not 0: the command string does not match its own event (`u32 a;; u32 b`); further registrations must
    have this number."""


class EnablerRegistered(Result, of="DIAG_IOCSREG"):
    """The result of DIAG_IOCSREG with a token."""

    status_index: int = member(INT, 1)
    """>= 1: the event's byte in the status page."""
    id: int = member(INT, 1, MAX_EVENT_ID)
    """common_type of its entries."""
    enabled: bool = member(_BIT)
    """The bit's first value; EnablersChanged reports later ones."""


class EventUnregistration(_Struct, method="DIAG_IOCSUNREG", takes="unreg", least_size=UNREG_STRUCT_SIZE):
    """DIAG_IOCSUNREG: struct user_unreg. A descriptor of the enabler's memory is sent along."""

    RESERVED: ClassVar[tuple[str, ...]] = ("reserved", "reserved2", "__reserved", "__reserved2")
    NOT_KEPT = frozenset(("size", *RESERVED))

    fd: int = member(_INDEX, name="disable_fd", default=0, always=True)
    """Index into the descriptors that came with the request; any descriptor of the file is valid."""
    addr: int = member(INT, name="disable_addr", default=0)
    bit: int = member(INT, 0, 255, name="disable_bit", default=0)
    token: int | None = member(INT, 0, MAX_TOKEN, name="disable_token", default=None)
    """Token of an enabler with notification; the other members then have no meaning."""

    @classmethod
    def from_map(cls, unreg: WireMap) -> Self:
        """EINVAL: in the order of user_unreg_get()."""
        for name in cls.RESERVED:
            if unreg.get(name):
                raise TraceError(errno.EINVAL, f"{name} must be 0")
        if (token := unreg.get("disable_token")) is not None:
            unreg = {"disable_fd": 0, "disable_token": token}
        return super().from_map(unreg)

    def to_map(self) -> dict[str, Any]:
        return super().to_map() if self.token is None else {"disable_token": self.token}


class EventDeletion(Params, method="DIAG_IOCSDEL"):
    """DIAG_IOCSDEL."""

    name: bytes = member(TEXT)
    """The name without system; its length is checked with the event (EINVAL)."""


class LocOffsetQuery(Params, method="DIAG_IOCQLOCOFFSET"):
    """DIAG_IOCQLOCOFFSET: the offset to include in __data_loc, an ioctl of the kernel's first patch."""


# The status page, records, the data ring.


class MmapStatus(Params, method="mmap_status"):
    """mmap_status: mmap(2) of user_events_status."""


class StatusMapped(Result, of="mmap_status"):
    """The result of mmap_status, with 1 descriptor: the status file's, read-only."""

    size: int = member(INT, 1)
    """Bytes to map."""
    writers: bool = member(Kind("int", lambda value, _: value == 1, int), default=False)
    """The daemon accepts bare records that name their writer."""
    protocol: int = member(INT, 1, default=0)
    """PROTOCOL_VERSION of the daemon; 0: one before version 1."""


class Write(Params, method="write", takes="bin"):
    """write: write(2), acknowledged."""

    record: bytes = member(BIN)
    """write_index (i32), then the payload; not validated."""
    tid: int | None = member(INT, 1, _MAX_PID, default=None)
    """The writing thread, on a connection that was opened for its process."""


class Sync(Params, method="sync"):
    """sync: answered when all records sent before have reached the consumers."""


class AdoptRing(MapParams, method="adopt_ring"):
    """adopt_ring: use a ring of the program, or one from before a restart. 2 descriptors are sent along: the
    memfd and the doorbell; the ring describes itself."""

    NOT_KEPT = frozenset(("size", "version"))

    early: bool = member(_BIT, default=False)
    """The program made it: registrations follow, and records wait for theirs."""


class RingMapped(Result, of="adopt_ring"):
    """The result of adopt_ring."""

    size: int = member(INT, 1)
    """Bytes of the data area."""
    version: int = member(Kind("int", _version), default=RING_VERSION, always=True)
    """EINVAL for another version: its layout is unknown here."""


# Connections on behalf of another process, or with notification of their enablers.


class NotifyEnablers(MapParams, method="notify_enablers"):
    """notify_enablers: request notification of this connection's enablers."""


class OpenFor(MapParams, method="open_for", takes="process"):
    """open_for: the connection belongs to this process from now on."""

    pid: int = member(INT, 1, _MAX_PID)
    start_time: int = member(INT)
    """Start time in clock ticks since boot: field 22 of /proc/PID/stat."""
    uid: int = member(INT, 0, _MAX_ID)
    """User whose limits count; root and the daemon's own user are administrators."""
    gid: int = member(INT, 0, _MAX_ID)


METHODS: Final = methods_in(globals())
"""All methods of the socket, by name."""

# Notifications.


def _changes(value: Any, what: str) -> list[tuple[int, bool]]:
    if not isinstance(value, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        raise TraceError(errno.EINVAL, f"{what} must be an array of [token, 0 or 1]")
    return [(wire_int(token, "token", 0, MAX_TOKEN), _bit(on, "state")) for token, on in value]


class EnablersChanged(Params, method="enablers_changed"):
    """enablers_changed, from the daemon: set these bits."""

    seq: int = member(INT, 1)
    """1 for the first on a connection, then increasing by one."""
    changes: list[tuple[int, bool]] = member(
        Kind("array", _changes, lambda changes: [[token, int(on)] for token, on in changes])
    )
    """(token, whether the event is enabled), at most MAX_CHANGES."""


class EnablersWritten(Params, method="enablers_written"):
    """enablers_written, from the client: the bits of the EnablersChanged with this number are set."""

    seq: int = member(INT)
