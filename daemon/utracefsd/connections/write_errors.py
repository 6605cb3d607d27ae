"""The `write_error` notifications of a data connection: its bare records that were refused.

A bare record has no response. Refusals by the write path are counted by (errno, write_index) and sent in
`write_error` notifications: the first at once, then at most one a second, the largest count first.
"""

from utracefs_protocol.connection import encode_notification
from utracefsd.intake._index_table import IndexTable

WRITE_ERROR_INTERVAL_NS = 1_000_000_000
"""Interval of notifications, so that a program that writes invalid records gets no notification for each."""


class WriteErrors:
    """Sends what `index_table` has refused, and has it forgotten."""

    def __init__(self, index_table: IndexTable) -> None:
        self._index_table = index_table
        self._next_ns: int | None = None

    @property
    def due_ns(self) -> int | None:
        """When `next_message` has a further message; None: there is none."""
        return self._next_ns if self._index_table.refused else None

    def next_message(self, now_ns: int) -> bytes | None:
        """`write_error`; None: there were no refusals, or it is not time yet."""
        counts = self._index_table.refused
        if not counts or (self._next_ns is not None and now_ns < self._next_ns):
            return None
        reason = max(counts, key=counts.__getitem__)
        self._next_ns = now_ns + WRITE_ERROR_INTERVAL_NS
        return encode_notification("write_error", [*reason, counts.pop(reason)])
