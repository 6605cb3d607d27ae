"""Notifications of refused records: when, in which order, and for how many reasons."""

import errno
import struct

import msgpack

from utracefsd.connections.write_errors import MAX_REASONS, WRITE_ERROR_INTERVAL_NS, WriteErrors
from utracefsd.intake._index_table import IndexTable


def refuse(refused: WriteErrors, write_index: int, count: int = 1) -> None:
    table = IndexTable()
    table.take_in(msgpack.packb(struct.pack("<i", write_index)) * count, 0, 1, 0)
    refused.note(table)


def told(refused: WriteErrors, now_ns: int) -> list[int] | None:
    message = refused.next_message(now_ns)
    if message is None:
        return None
    kind, method, params = msgpack.unpackb(message)
    assert (kind, method) == (2, "write_error")
    return list(params)


def test_the_first_at_once_then_one_a_second_the_largest_first() -> None:
    refused = WriteErrors()
    assert (told(refused, 0), refused.due_ns) == (None, None)
    refuse(refused, 5)
    assert told(refused, 7) == [errno.ENOENT, 5, 1]
    refuse(refused, 5)
    refuse(refused, 6, 3)
    assert told(refused, 8) is None
    assert refused.due_ns == 7 + WRITE_ERROR_INTERVAL_NS
    assert told(refused, 7 + WRITE_ERROR_INTERVAL_NS) == [errno.ENOENT, 6, 3]
    assert told(refused, 7 + 2 * WRITE_ERROR_INTERVAL_NS) == [errno.ENOENT, 5, 1]
    assert refused.due_ns is None


def test_reasons_beyond_the_limit_are_reported_together() -> None:
    refused = WriteErrors()
    for index in range(MAX_REASONS + 6):
        refuse(refused, index, 2 if index == 3 else 1)
    counts = {}
    for second in range(2 * MAX_REASONS):
        if (params := told(refused, second * WRITE_ERROR_INTERVAL_NS)) is not None:
            counts[params[1]] = params[2]
    assert counts[3] == 2
    assert sum(counts.values()) == MAX_REASONS + 7
    assert counts[-1] > 1
