"""Limits that client and daemon agree on, each with its reason.

Limits of the wire bound the memory that a peer can make us use. Limits of events are the kernel's, so that a
program that works here works with the kernel, too.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as everywhere on the way to a program's first event
if TYPE_CHECKING:
    from typing import Final

# The wire: what the daemon accepts from one peer.

MAX_DATA_OBJECT: Final = 64 << 10
"""Bytes of one MessagePack object on the data socket. Far above any record that ftrace or perf would keep,
small enough that thousands of connections cannot hurt. Above: EMSGSIZE, disconnected."""

MAX_TRACEFS_OBJECT: Final = 1 << 20
"""Bytes of one object on the tracefs socket: the longest set_event or dynamic_events that a person writes."""

MAX_NESTING: Final = 8
"""Nesting of arrays and maps. The deepest valid message has 3 levels. Above: EPROTO."""

MAX_UNANSWERED: Final = 256
"""Requests that a client may send without reading the responses; above, the daemon stops reading from it.
Also the requests of one tracefs connection that may wait for data; above: EMSGSIZE."""

MAX_READ_FILE: Final = 64 << 20
"""Bytes that one `read_file` returns. More is EFBIG: open the file and read it in pieces."""

MAX_MSGID: Final = 0xFFFF_FFFF
"""msgid is a u32 (msgpack-rpc specification)."""

# Events: the kernel's limits (kernel/trace/trace_events_user.c).

MAX_COMMAND_STRING: Final = 511
"""Bytes of the command string of DIAG_IOCSREG and the name of DIAG_IOCSDEL, without a NUL: the kernel's
MAX_EVENT_DESC is 512 with it. Above: EINVAL."""

MAX_DYNAMIC_LINE: Final = 4094
"""Bytes of one line written to dynamic_events (WRITE_BUFSIZE of kernel/trace/trace.c, less newline and
NUL)."""

MAX_ARRAY_LENGTH: Final = 1024
"""N of `char[N]` (MAX_FIELD_ARRAY_SIZE)."""

MAX_ARRAY_TEXT: Final = 7
"""Bytes after the `[` of a fixed array to the end of its type: the kernel copies them to `char val[8]`."""

MAX_STRUCT_SIZE: Final = (1 << 31) - 1
"""Bytes of a `struct` field; the kernel stores the size in a signed int."""

MAX_LOC: Final = 0xFFFF
"""Largest offset, and largest size, that the two halves of a location word can hold."""

MAX_EVENT_ID: Final = 0xFFFF
"""common_type of a record is a u16 (TRACE_EVENT_TYPE_MAX in include/linux/trace_events.h)."""

MAX_WRITE_INDEX: Final = (1 << 31) - 1
"""write_index is a signed int in `write(2)`; negative ones are EINVAL."""

USER_EVENTS_MAX: Final = 32768
"""Default limit of events in the system, that of sysctl kernel.user_events_max."""

REG_STRUCT_SIZE: Final = 28
"""sizeof(struct user_reg): `size` below it is EINVAL."""

UNREG_STRUCT_SIZE: Final = 16
"""sizeof(struct user_unreg)."""

MAX_STRUCT_ARGUMENT: Final = 4096
"""`size` of either struct above a page is E2BIG."""

# Records.

ENTRY_HEADER_SIZE: Final = 8
"""The common fields in front of every recorded payload: u16 type, u8 flags, u8 preempt count, i32 pid."""

WRITE_INDEX_SIZE: Final = 4
"""The i32 in front of the payload in a record on the wire."""

MAX_PAYLOAD: Final = MAX_DATA_OBJECT - 3 - WRITE_INDEX_SIZE
"""Bytes of payload that fit a record on the data socket: an object less its bin header and write_index."""

SUBBUF_SIZE: Final = 4096
"""Bytes of a sub-buffer unless an instance asks for more."""

SUBBUF_HEADER_SIZE: Final = 16
"""Time stamp and commit word in front of a sub-buffer's records."""

MAX_FTRACE_ENTRY: Final = SUBBUF_SIZE - SUBBUF_HEADER_SIZE - 8
"""Bytes of the largest entry that ftrace keeps in sub-buffers of the usual size; larger ones are dropped."""

MAX_FTRACE_PAYLOAD: Final = MAX_FTRACE_ENTRY - ENTRY_HEADER_SIZE
"""4064: MAX_FTRACE_ENTRY without the common fields."""

MAX_PERF_ENTRY: Final = 8192
"""PERF_MAX_TRACE_SIZE of include/linux/trace_events.h: perf drops a larger entry, which is a payload of more
than 8184 bytes."""

MAX_PERF_DATA_PAGES: Final = 16384
"""64 MiB of the daemon's memory for one perf event; perf(1) asks for 128 to 512 pages. Above: EINVAL.
Older daemons have 1024."""

MIN_DATA_RING: Final = 64 << 10
"""Smallest data ring in bytes: it holds payloads up to 65,512 bytes; larger ones are lost and counted.
DR_MIN_SIZE of include/data_ring.h."""

STREAM_RING_SIZE: Final = 4 << 20
"""Default size of a stream's ring in bytes: some ten thousand records, which is a few rounds of the daemon
under full load."""

MIN_STREAM_RING: Final = 256 << 10
"""Smallest stream ring in bytes: it holds several of the largest records, and the format of any event."""

MAX_STREAM_RING: Final = 128 << 20
"""Largest stream ring in bytes. The daemon allocates all of it."""

MAX_LOSSLESS_US: Final = 10_000_000
"""Longest time for which a program may wait for room."""

MAX_STREAM_EVENTS: Final = 64
"""Event patterns of one stream; each is matched against every newly registered event. Above: E2BIG."""

MAX_FILTER: Final = 4096
"""Bytes of a stream's filter: a page, the limit of a `filter` file. Above: E2BIG."""
