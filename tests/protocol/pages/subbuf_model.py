"""Reading a page, slow and plain: the judge of the compiled reader."""

import struct
from collections.abc import Iterator

Record = tuple[int, int, int]
"""(ts, offset, length)."""


def header(page: bytes) -> tuple[int, int]:
    if len(page) < 16:
        raise ValueError("no header")
    timestamp, word = struct.unpack_from("<QQ", page)
    if 16 + (word & 0x7FFFFFF) > len(page):
        raise ValueError("more records than page")
    return timestamp, word


def missed_events(page: bytes) -> int:
    _, word = header(page)
    end = 16 + (word & 0x7FFFFFF)
    if not word >> 31 & 1:
        return 0
    if not word >> 30 & 1 or end + 8 > len(page):
        return -1
    count: int = struct.unpack_from("<q", page, end)[0]
    return max(count, -1)


def records(page: bytes) -> Iterator[Record]:
    """ValueError at an invalid record, after the records before it."""
    ts, word = header(page)
    at = 16
    end = at + (word & 0x7FFFFFF)
    while at < end:
        type_len, delta = _word(page, at) & 31, _word(page, at) >> 5
        at += 4
        if type_len == 29:
            if not delta:
                return
            ts += delta
            at += _word(page, at)
        elif type_len == 30:
            ts += (_word(page, at) << 27) + delta
            at += 4
        elif type_len == 31:
            ts = _absolute(ts % 2**64, (_word(page, at) << 27) + delta)
            at += 4
        else:
            length = type_len * 4
            if type_len == 0:
                length = _word(page, at) - 4
                at += 4
            ts += delta
            if length < 0 or at + length > end:
                raise ValueError("a record that does not fit")
            yield ts % 2**64, at, length
            at += -(-length // 4) * 4


def _word(page: bytes, at: int) -> int:
    if at + 4 > len(page):
        raise ValueError("cut off")
    return int.from_bytes(page[at : at + 4], "little")


def _absolute(ts: int, stamp: int) -> int:
    upper, stamp = ts >> 59 << 59, stamp % 2**59
    if not upper or upper + stamp >= ts:
        return upper + stamp
    return upper + stamp + 2**59
