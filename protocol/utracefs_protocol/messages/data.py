"""The methods of the data socket: a class for the params of each, and one for each result that is a map.

    | method             | params                                | result                                  |
    |--------------------|---------------------------------------|-----------------------------------------|
    | DIAG_IOCSREG       | EventRegistration; descriptors        | Registered, or with a token             |
    |                    |                                       | EnablerRegistered                       |
    | DIAG_IOCSDEL       | EventDeletion                         | nil                                     |
    | DIAG_IOCSUNREG     | EventUnregistration; descriptors      | nil                                     |
    | DIAG_IOCQLOCOFFSET | LocOffsetQuery                        | int                                     |
    | mmap_status        | MmapStatus                            | StatusMapped; 1 descriptor              |
    | write              | Write                                 | int: bytes taken                        |
    | sync               | Sync                                  | nil                                     |
    | mmap_ring          | MmapRing                              | RingMapped; 2 descriptors               |
    | adopt_ring         | AdoptRing; 2 descriptors              | RingMapped                              |
    | notify_enablers    | NotifyEnablers                        | nil                                     |
    | open_for           | OpenFor                               | nil                                     |

Two notifications belong together: the daemon says EnablersChanged, and the client EnablersWritten when its
bits are so.

`METHODS` finds the class by the method's name. `from_params` (and `from_wire` of a result) checks shape and
range and raises TraceError(EINVAL) with the member at fault; where the kernel has checks of its own for a
struct, they come in its order and with its errno (kernel/trace/trace_events_user.c, user_reg_get(),
user_unreg_get()).
"""

from __future__ import annotations

import errno

from utracefs_protocol.declaration import REG_MULTI_FORMAT, REG_PERSIST
from utracefs_protocol.errors import TraceError
from utracefs_protocol.frozen import Frozen
from utracefs_protocol.limits import (
    DATA_RING_SIZE,
    MAX_EVENT_ID,
    MAX_STRUCT_ARGUMENT,
    MAX_WRITE_INDEX,
    REG_STRUCT_SIZE,
    UNREG_STRUCT_SIZE,
)
from utracefs_protocol.messages.values import (
    params_of,
    refuse_unknown,
    text_bytes,
    wire_bytes,
    wire_int,
    wire_map,
    wire_text,
)

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Final, Self

    from utracefs_protocol.messages.params import Params
    from utracefs_protocol.messages.values import WireMap

__all__ = [
    "METHODS",
    "RING_VERSION",
    "AdoptRing",
    "Enabler",
    "EnablerRegistered",
    "EnablersChanged",
    "EnablersWritten",
    "EventDeletion",
    "EventRegistration",
    "EventUnregistration",
    "LocOffsetQuery",
    "MmapRing",
    "MmapStatus",
    "NotifyEnablers",
    "OpenFor",
    "Registered",
    "RingMapped",
    "StatusMapped",
    "Sync",
    "Write",
]

RING_VERSION: Final = 2
"""Of the data ring's layout: DR_VERSION of include/data_ring.h."""

MAX_TOKEN: Final = (1 << 63) - 1
"""Of an enabler that its connection is notified of."""

MAX_CHANGES: Final = 1024
"""Pairs in one EnablersChanged."""

LOC_RELATIVE: Final = 1
LOC_STRING: Final = 2
"""Flags of a location word in the result of DIAG_IOCSREG: a __rel_loc; its data must end in NUL."""

_MAX_PID: Final = (1 << 31) - 1
_MAX_ID: Final = (1 << 32) - 2  # -1 is nobody

_WORD_MEMBERS: Final = ("enable_fd", "enable_addr", "enable_bit", "enable_size")
_REG_MEMBERS: Final = frozenset(("size", "flags", "enable_token", "event_id", "name_args", *_WORD_MEMBERS))
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
        "disable_token",
    )
)


def _struct_size(members: WireMap, least: int, what: str) -> None:
    """The first checks of user_reg_get() and user_unreg_get()."""
    if (value := members.get("size")) is None:
        return
    size = wire_int(value, f"{what} size")
    if size > MAX_STRUCT_ARGUMENT:
        raise TraceError(errno.E2BIG, f"{what} size {size}; at most {MAX_STRUCT_ARGUMENT}")
    if size < least:
        raise TraceError(errno.EINVAL, f"{what} size {size}; at least {least}, or leave it out")


def _descriptor_index(members: WireMap, member: str) -> int:
    if (value := members.get(member)) is None:
        raise TraceError(errno.EINVAL, f"{member} is missing; it is an index into the descriptors sent along")
    return wire_int(value, member, 0, 255)


def _token(value: object, what: str) -> int:
    return wire_int(value, what, 0, MAX_TOKEN)


class Enabler(Frozen):
    """A bit in memory of the client's own, to be set while the event is wanted (the model of 2022)."""

    fd: int
    """Index into the descriptors that came with the request: a memfd sealed against shrinking."""
    addr: int
    """Byte offset in it, a multiple of `size`."""
    bit: int
    """0 to 31 or 63."""
    size: int
    """4 or 8 bytes: the word that is read and written as one."""


class EventRegistration(Frozen):
    """DIAG_IOCSREG: struct user_reg. With an enabler, a descriptor of its memory goes along."""

    METHOD: ClassVar[str] = "DIAG_IOCSREG"

    name_args: bytes
    """The command string, not read yet; its length is checked with its contents (check_command_length)."""
    flags: int = 0
    """REG_PERSIST, REG_MULTI_FORMAT."""
    enabler: Enabler | None = None
    token: int | None = None
    """The client's name for a bit somewhere, which it sets when it is told to. Then this makes an enabler and
    gives no write_index; there is no `enabler`."""
    event_id: int = 0
    """Not 0: of a registration before (`Registered.event_id`). The event with this id is meant if it was
    declared so."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        """E2BIG, EINVAL: in the order of user_reg_get(); then what only a map can get wrong."""
        (value,) = params_of(cls.METHOD, params, "reg")
        reg = wire_map(value, "reg")
        _struct_size(reg, REG_STRUCT_SIZE, "reg")
        refuse_unknown(reg, _REG_MEMBERS, "reg")
        flags = wire_int(reg.get("flags") or 0, "flags")
        if flags & ~(REG_PERSIST | REG_MULTI_FORMAT):
            raise TraceError(
                errno.EINVAL, f"flags {flags:#x}; 0x1 (persist) and 0x2 (multi-format) are known"
            )
        enabler = token = None
        if (value := reg.get("enable_token")) is not None:
            token = _token(value, "enable_token")
            if given := [member for member in _WORD_MEMBERS if reg.get(member)]:
                text = f"enable_token and {given[0]}; an enabler is known by its token or by its word"
                raise TraceError(errno.EINVAL, text)
        elif any(reg.get(member) is not None for member in _WORD_MEMBERS):
            enabler = cls._enabler(reg)
        if reg.get("name_args") is None:
            raise TraceError(
                errno.EINVAL, "reg has no name_args; it is the command string 'name type field; ...'"
            )
        event_id = wire_int(reg.get("event_id") or 0, "event_id", 0, MAX_EVENT_ID)
        return cls(text_bytes(reg["name_args"], "name_args"), flags, enabler, token, event_id)

    @staticmethod
    def _enabler(reg: WireMap) -> Enabler:
        size = wire_int(reg.get("enable_size") or 0, "enable_size")
        if size not in (4, 8):
            raise TraceError(errno.EINVAL, f"enable_size {size}; it must be 4 or 8")
        addr = wire_int(reg.get("enable_addr") or 0, "enable_addr")
        if addr % size:
            raise TraceError(errno.EINVAL, f"enable_addr {addr} is not a multiple of enable_size {size}")
        bit = wire_int(reg.get("enable_bit") or 0, "enable_bit", 0, size * 8 - 1)
        return Enabler(_descriptor_index(reg, "enable_fd"), addr, bit, size)

    def to_params(self) -> list[Any]:
        reg: dict[str, Any] = {"name_args": wire_text(self.name_args)}
        if self.flags:
            reg["flags"] = self.flags
        if self.enabler is not None:
            reg["enable_fd"] = self.enabler.fd
            reg["enable_addr"] = self.enabler.addr
            reg["enable_bit"] = self.enabler.bit
            reg["enable_size"] = self.enabler.size
        if self.token is not None:
            reg["enable_token"] = self.token
        if self.event_id:
            reg["event_id"] = self.event_id
        return [reg]


class Registered(Frozen):
    """The result of DIAG_IOCSREG."""

    status_index: int
    """>= 1: the event's byte in the status page."""
    write_index: int
    """>= 0: what its records begin with on this connection, and on no other."""
    id: int
    """common_type of its entries, for perf and for readers of pages."""
    size: int = 0
    """Bytes that a payload needs at least: those of the fixed fields."""
    locs: list[list[int]] | None = None
    """[offset in the payload, LOC_RELATIVE and LOC_STRING] of each location word; None: there is none."""
    event_id: int = 0
    """Not 0: the command string does not find the event again (`u32 a;; u32 b`); a further registration must
    carry this number."""

    @classmethod
    def from_wire(cls, result: object) -> Self:
        """What a client needs: `size` and `locs` are not looked at."""
        members = wire_map(result, "result of DIAG_IOCSREG")
        return cls(
            wire_int(members.get("status_index"), "status_index", 1),
            wire_int(members.get("write_index"), "write_index", 0, MAX_WRITE_INDEX),
            wire_int(members.get("id"), "id", 1, MAX_EVENT_ID),
            event_id=wire_int(members.get("event_id") or 0, "event_id", 0, MAX_EVENT_ID),
        )

    def to_wire(self) -> dict[str, Any]:
        members: dict[str, Any] = {
            "status_index": self.status_index,
            "write_index": self.write_index,
            "id": self.id,
            "size": self.size,
        }
        if self.locs:
            members["locs"] = self.locs
        if self.event_id:
            members["event_id"] = self.event_id
        return members


class EnablerRegistered(Frozen):
    """The result of DIAG_IOCSREG with a token."""

    status_index: int
    """>= 1: the event's byte in the status page."""
    id: int
    """common_type of its entries."""
    enabled: bool
    """The bit's first value: what EnablersChanged says comes later."""

    @classmethod
    def from_wire(cls, result: object) -> Self:
        members = wire_map(result, "result of DIAG_IOCSREG")
        return cls(
            wire_int(members.get("status_index"), "status_index", 1),
            wire_int(members.get("id"), "id", 1, 0xFFFF),
            bool(wire_int(members.get("enabled"), "enabled", 0, 1)),
        )

    def to_wire(self) -> dict[str, int]:
        return {"status_index": self.status_index, "id": self.id, "enabled": int(self.enabled)}


class EventUnregistration(Frozen):
    """DIAG_IOCSUNREG: struct user_unreg. A descriptor of the enabler's memory goes along."""

    METHOD: ClassVar[str] = "DIAG_IOCSUNREG"

    fd: int = 0
    """Index into the descriptors that came with the request; any descriptor of the file is right."""
    addr: int = 0
    bit: int = 0
    token: int | None = None
    """Of an enabler that this connection is notified of; the others mean nothing then."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        """E2BIG, EINVAL: in the order of user_unreg_get()."""
        (value,) = params_of(cls.METHOD, params, "unreg")
        unreg = wire_map(value, "unreg")
        _struct_size(unreg, UNREG_STRUCT_SIZE, "unreg")
        refuse_unknown(unreg, _UNREG_MEMBERS, "unreg")
        for member in ("reserved", "reserved2", "__reserved", "__reserved2"):
            if unreg.get(member):
                raise TraceError(errno.EINVAL, f"{member} must be 0")
        if (value := unreg.get("disable_token")) is not None:
            return cls(token=_token(value, "disable_token"))
        return cls(
            _descriptor_index(unreg, "disable_fd"),
            wire_int(unreg.get("disable_addr") or 0, "disable_addr"),
            wire_int(unreg.get("disable_bit") or 0, "disable_bit", 0, 255),
        )

    def to_params(self) -> list[Any]:
        if self.token is not None:
            return [{"disable_token": self.token}]
        return [{"disable_fd": self.fd, "disable_addr": self.addr, "disable_bit": self.bit}]


class EventDeletion(Frozen):
    """DIAG_IOCSDEL."""

    METHOD: ClassVar[str] = "DIAG_IOCSDEL"

    name: bytes
    """The bare name; its length is checked with the event (EINVAL)."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (name,) = params_of(cls.METHOD, params, "name")
        return cls(text_bytes(name, "name"))

    def to_params(self) -> list[Any]:
        return [wire_text(self.name)]


class _WithoutParams(Frozen):
    METHOD: ClassVar[str]

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        params_of(cls.METHOD, params)
        return cls()

    def to_params(self) -> list[Any]:
        return []


class LocOffsetQuery(_WithoutParams):
    """DIAG_IOCQLOCOFFSET: what __data_loc offsets have to add, an ioctl of the kernel's first patch."""

    METHOD: ClassVar[str] = "DIAG_IOCQLOCOFFSET"


class MmapStatus(_WithoutParams):
    """mmap_status: mmap(2) of user_events_status."""

    METHOD: ClassVar[str] = "mmap_status"


class StatusMapped(Frozen):
    """The result of mmap_status; 1 descriptor comes with it, the status file's, read-only."""

    size: int
    """Bytes to map."""
    writers: bool = False
    """The daemon takes bare records that say who wrote them."""

    @classmethod
    def from_wire(cls, result: object) -> Self:
        members = wire_map(result, "result of mmap_status")
        return cls(wire_int(members.get("size"), "size", 1), members.get("writers") == 1)

    def to_wire(self) -> dict[str, int]:
        return {"size": self.size, "writers": 1} if self.writers else {"size": self.size}


class Write(Frozen):
    """write: write(2), acknowledged."""

    METHOD: ClassVar[str] = "write"

    record: bytes
    """write_index (i32), then the payload; not checked in any way."""
    tid: int | None = None
    """The thread that writes, on a connection that was opened for its process."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        if len(params) != 2:
            (record,) = params_of(cls.METHOD, params, "bin")
            return cls(wire_bytes(record, "record"))
        record, tid = params
        return cls(wire_bytes(record, "record"), wire_int(tid, "tid", 1, _MAX_PID))

    def to_params(self) -> list[Any]:
        return [self.record] if self.tid is None else [self.record, self.tid]


class Sync(_WithoutParams):
    """sync: answered when all that was sent before has reached the consumers."""

    METHOD: ClassVar[str] = "sync"


class MmapRing(Frozen):
    """mmap_ring: ask for a data ring."""

    METHOD: ClassVar[str] = "mmap_ring"

    size: int = DATA_RING_SIZE
    """Bytes of the data area: a power of two, which is checked where the ring is made."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (value,) = params_of(cls.METHOD, params, "map")
        size = wire_map(value, cls.METHOD).get("size", DATA_RING_SIZE)
        return cls(wire_int(size, "size", 0, 1 << 32))

    def to_params(self) -> list[Any]:
        return [{"size": self.size}]


class AdoptRing(Frozen):
    """adopt_ring: go on with a ring from before a restart. 2 descriptors go along: the memfd, the
    doorbell."""

    METHOD: ClassVar[str] = "adopt_ring"

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (value,) = params_of(cls.METHOD, params, "map")
        wire_map(value, cls.METHOD)
        return cls()

    def to_params(self) -> list[Any]:
        return [{}]


class RingMapped(Frozen):
    """The result of mmap_ring, which 2 descriptors come with (memfd, doorbell), and of adopt_ring,
    without."""

    size: int
    """Bytes of the data area."""
    version: int = RING_VERSION

    @classmethod
    def from_wire(cls, result: object) -> Self:
        """EINVAL for another version as well: its layout is not known here."""
        members = wire_map(result, "result of mmap_ring")
        return cls(
            wire_int(members.get("size"), "size", 1),
            wire_int(members.get("version"), "version of the data ring", RING_VERSION, RING_VERSION),
        )

    def to_wire(self) -> dict[str, int]:
        return {"size": self.size, "version": self.version}


class NotifyEnablers(Frozen):
    """notify_enablers: this connection wants to be told of its enablers."""

    METHOD: ClassVar[str] = "notify_enablers"

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (value,) = params_of(cls.METHOD, params, "map")
        refuse_unknown(wire_map(value, cls.METHOD), (), cls.METHOD)
        return cls()

    def to_params(self) -> list[Any]:
        return [{}]


class EnablersChanged(Frozen):
    """enablers_changed, from the daemon: make these bits so."""

    METHOD: ClassVar[str] = "enablers_changed"

    seq: int
    """1 for the first on a connection, and one more for each."""
    changes: list[tuple[int, bool]]
    """(token, whether the event is enabled), at most MAX_CHANGES."""

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        seq, changes = params_of(cls.METHOD, params, "seq", "changes")
        if not isinstance(changes, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in changes
        ):
            raise TraceError(errno.EINVAL, "changes must be an array of [token, 0 or 1]")
        pairs = [(_token(token, "token"), bool(wire_int(on, "state", 0, 1))) for token, on in changes]
        return cls(wire_int(seq, "seq", 1), pairs)

    def to_params(self) -> list[Any]:
        return [self.seq, [[token, int(on)] for token, on in self.changes]]


class EnablersWritten(Frozen):
    """enablers_written, from the client: the bits are as EnablersChanged of this number said."""

    METHOD: ClassVar[str] = "enablers_written"

    seq: int

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (seq,) = params_of(cls.METHOD, params, "seq")
        return cls(wire_int(seq, "seq"))

    def to_params(self) -> list[Any]:
        return [self.seq]


class OpenFor(Frozen):
    """open_for: the connection is this process's from now on."""

    METHOD: ClassVar[str] = "open_for"

    pid: int
    start_time: int
    """When it began, in clock ticks since boot: field 22 of /proc/PID/stat."""
    uid: int
    """Whose limits count; root and the daemon's own user are administrators."""
    gid: int

    @classmethod
    def from_params(cls, params: list[Any]) -> Self:
        (value,) = params_of(cls.METHOD, params, "process")
        process = wire_map(value, "process")
        refuse_unknown(process, ("pid", "start_time", "uid", "gid"), "process")
        return cls(
            wire_int(process.get("pid"), "pid", 1, _MAX_PID),
            wire_int(process.get("start_time"), "start_time"),
            wire_int(process.get("uid"), "uid", 0, _MAX_ID),
            wire_int(process.get("gid"), "gid", 0, _MAX_ID),
        )

    def to_params(self) -> list[Any]:
        return [{"pid": self.pid, "start_time": self.start_time, "uid": self.uid, "gid": self.gid}]


METHODS: Final[Mapping[str, type[Params]]] = {
    kind.METHOD: kind
    for kind in (
        EventRegistration,
        EventDeletion,
        EventUnregistration,
        LocOffsetQuery,
        MmapStatus,
        Write,
        Sync,
        MmapRing,
        AdoptRing,
        NotifyEnablers,
        OpenFor,
    )
}
"""All methods of the socket, by name."""
