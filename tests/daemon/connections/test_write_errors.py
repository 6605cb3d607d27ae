"""Notifications of refused records: when, and in which order."""

import errno
import struct

import msgpack

from utracefsd.connections.write_errors import WRITE_ERROR_INTERVAL_NS, WriteErrors
from utracefsd.intake._index_table import IndexTable


def refuse(table: IndexTable, write_index: int, count: int = 1) -> None:
    table.take_in(msgpack.packb(struct.pack("<i", write_index)) * count, 0, 1, 0)


def told(refused: WriteErrors, now_ns: int) -> list[int] | None:
    message = refused.next_message(now_ns)
    if message is None:
        return None
    kind, method, params = msgpack.unpackb(message)
    assert (kind, method) == (2, "write_error")
    return list(params)


def test_the_first_at_once_then_one_a_second_the_largest_first() -> None:
    table = IndexTable()
    refused = WriteErrors(table)
    assert (told(refused, 0), refused.due_ns) == (None, None)
    refuse(table, 5)
    assert told(refused, 7) == [errno.ENOENT, 5, 1]
    refuse(table, 5)
    refuse(table, 6, 3)
    assert told(refused, 8) is None
    assert refused.due_ns == 7 + WRITE_ERROR_INTERVAL_NS
    assert told(refused, 7 + WRITE_ERROR_INTERVAL_NS) == [errno.ENOENT, 6, 3]
    assert told(refused, 7 + 2 * WRITE_ERROR_INTERVAL_NS) == [errno.ENOENT, 5, 1]
    assert refused.due_ns is None
