"""Refused bare records, and their `write_error` notifications.

A bare record has no response. Refusals by the write path are counted by (errno, write_index) and sent in
`write_error` notifications: the first at once, then at most one a second, the largest count first.
"""

from utracefs_protocol.connection import encode_notification
from utracefsd.intake._index_table import IndexTable

WRITE_ERROR_INTERVAL_NS = 1_000_000_000
"""Interval of notifications, so that a program that writes invalid records gets no notification for each."""

MAX_REASONS = 64
"""Limit of (errno, write_index) pairs of one connection; a program has a few, an attacker as many as there
are indexes."""


class WriteErrors:
    """The refusals of one connection that were not sent yet."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._next_ns: int | None = None

    @property
    def due_ns(self) -> int | None:
        """When `next_message` has a message; None: there is none."""
        return self._next_ns if self._counts else None

    def note(self, index_table: IndexTable) -> None:
        """Add the refusals since the last call."""
        if index_table.refused:
            for reason, count in index_table.pop_refused().items():
                self._counts[reason] = self._counts.get(reason, 0) + count
            if len(self._counts) > MAX_REASONS:
                self._merge()

    def next_message(self, now_ns: int) -> bytes | None:
        """`write_error`; None: there were no refusals, or it is not time yet."""
        if not self._counts or (self._next_ns is not None and now_ns < self._next_ns):
            return None
        reason = max(self._counts, key=self._counts.__getitem__)
        self._next_ns = now_ns + WRITE_ERROR_INTERVAL_NS
        return encode_notification("write_error", [*reason, self._counts.pop(reason)])

    def _merge(self) -> None:
        """Merge the rarest without their index, so that invented indexes do not fill memory."""
        keep = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[: MAX_REASONS // 2]
        merged = {reason: self._counts.pop(reason) for reason in keep}
        for (number, _), count in self._counts.items():
            merged[number, -1] = merged.get((number, -1), 0) + count
        self._counts = merged
