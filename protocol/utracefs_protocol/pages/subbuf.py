"""Sub-buffers: the pages of the ring buffer, in the format of `trace_pipe_raw` and trace.dat.

    0               8               16                                16+commit      [+8]        size
    +---------------+---------------+---------------------------------+--------------+-----------+
    | time stamp    | commit word   | records                         | lost count   | zeros     |
    +---------------+---------------+---------------------------------+--------------+-----------+

The commit word's low 27 bits are the bytes of records; bit 31 says that records were lost in front of this
page, bit 30 that their number follows the last record (it needs 8 free bytes). A record is a header
word and its data, padded to a multiple of 4:

     31                     5 4      0
    +------------------------+--------+
    | time_delta (27 bits)   |type_len|   delta: from the record before, the first from the page's time stamp
    +------------------------+--------+

    type_len 1..28   type_len * 4 bytes of data
             0       u32 length of the rest, itself included; data of more than 112 bytes
             29      padding; with delta 0 the page ends here, else a u32 length to skip, as in 0
             30      time extend: u32 with the upper bits of a delta of 2^27 ns (134 ms) and more
             31      absolute time: likewise, replaces the low 59 bits of the running time

All little-endian; see ring_buffer.h and ring_buffer.c of the kernel. A padding's delta counts, as
in libtraceevent (the kernel's own reader skips it), so that all readers of a page compute the same times.

Pages may come from files and are not trusted: lengths are checked, and ValueError names the wrong one.
Reading is compiled (`_subbuf`).
"""

import contextlib
import struct
from typing import Final

from utracefs_protocol.limits import SUBBUF_HEADER_SIZE, SUBBUF_SIZE
from utracefs_protocol.pages._subbuf import (
    COMMIT_MASK,
    MISSED_EVENTS,
    MISSED_STORED,
    TIME_DELTA_BITS,
    TIME_STAMP_BITS,
    TYPE_TIME_EXTEND,
    iter_records,
    missed_events,
    page_header,
)

PRINT_ID: Final = 5
RAW_DATA_ID: Final = 19
"""common_type of the records of trace_marker and trace_marker_raw (enum trace_type of
kernel/trace/trace.h)."""

MARKER_IP: Final = 0xFFFF_FFFF_8100_0000
"""The ip of every marker. The kernel stores the address of the function that wrote it, and readers of
trace.dat look it up in the symbol table of the file; that of utracefs has one line: this address is
`tracing_mark_write`."""

_DELTA_MAX: Final = (1 << TIME_DELTA_BITS) - 1
_STAMP_MASK: Final = (1 << TIME_STAMP_BITS) - 1

_PAGE_HEADER: Final = struct.Struct("<QQ")
_WORDS: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<Q")

HEADER_EVENT_TEXT: Final = (
    b"# compressed entry header\n"
    b"\ttype_len    :    5 bits\n"
    b"\ttime_delta  :   27 bits\n"
    b"\tarray       :   32 bits\n"
    b"\n"
    b"\tpadding     : type == 29\n"
    b"\ttime_extend : type == 30\n"
    b"\ttime_stamp : type == 31\n"
    b"\tdata max type_len  == 28\n"
)
"""events/header_event, and the part of trace.dat with that name."""


def header_page_text(subbuf_size: int = SUBBUF_SIZE) -> bytes:
    """events/header_page, and the part of trace.dat with that name."""
    return (
        b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
        b"\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
        b"\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
        b"\tfield: char data;\toffset:16;\tsize:%d;\tsigned:0;\n" % (subbuf_size - SUBBUF_HEADER_SIZE)
    )


def last_ts(page: bytes | bytearray | memoryview) -> int:
    """Time of the last readable record; without one the page's time stamp."""
    last, _ = page_header(page)
    with contextlib.suppress(ValueError):
        for ts, _, _ in iter_records(page):
            last = ts
    return last


def join_pages(first: bytearray, last: int, second: bytes | bytearray | memoryview) -> bool:
    """Append the records of `second` to those of `first`, whose last_ts() is `last`. Returns False and
    changes nothing when they do not fit, when `second` begins before `last`, or when records were lost in
    front of `second`, which only a page's header can express."""
    timestamp, word = page_header(first)
    second_timestamp, second_word = page_header(second)
    delta = second_timestamp - last
    if second_word & MISSED_EVENTS or delta < 0 or delta > _STAMP_MASK:
        return False
    end = SUBBUF_HEADER_SIZE + (word & COMMIT_MASK)
    commit = second_word & COMMIT_MASK
    count_size = _COUNT.size if word & MISSED_EVENTS else 0
    if end + _WORDS.size + commit + count_size > len(first):
        return False
    count = bytes(first[end : end + count_size])
    records = bytes(second[SUBBUF_HEADER_SIZE : SUBBUF_HEADER_SIZE + commit])
    _WORDS.pack_into(first, end, (delta & _DELTA_MAX) << 5 | TYPE_TIME_EXTEND, delta >> TIME_DELTA_BITS)
    end += _WORDS.size
    first[end : end + commit] = records
    end += commit
    first[end : end + count_size] = count
    _PAGE_HEADER.pack_into(first, 0, timestamp, word & ~COMMIT_MASK | end - SUBBUF_HEADER_SIZE)
    return True


def with_missed(page: bytes, count: int) -> bytes:
    """The page with `count` more records lost in front of it; -1: unknown. The number is left out if the page
    has no room for it."""
    timestamp, word = page_header(page)
    before = missed_events(page)
    end = SUBBUF_HEADER_SIZE + (word & COMMIT_MASK)
    word = word & ~MISSED_STORED | MISSED_EVENTS
    made = bytearray(page)
    if before >= 0 and count >= 0 and end + _COUNT.size <= len(page):
        word |= MISSED_STORED
        _COUNT.pack_into(made, end, before + count)
    _PAGE_HEADER.pack_into(made, 0, timestamp, word)
    return bytes(made)


def without_missed(page: bytes) -> bytes:
    """The page with no records lost in front of it."""
    timestamp, word = page_header(page)
    end = SUBBUF_HEADER_SIZE + (word & COMMIT_MASK)
    made = bytearray(page)
    made[end:] = bytes(len(page) - end)
    _PAGE_HEADER.pack_into(made, 0, timestamp, word & ~(MISSED_EVENTS | MISSED_STORED))
    return bytes(made)
