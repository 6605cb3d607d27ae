"""Bare records that were refused, and what their program is told of them.

A bare record has no reply. What the write path refuses is counted by (errno, write_index) and told in
`write_error` notifications: the first at once, then at most one a second, the largest count first.
"""

from utracefs_protocol.connection import encode_notification
from utracefsd.intake._index_table import IndexTable

WRITE_ERROR_INTERVAL_NS = 1_000_000_000
"""At most one notification in this time, so that a program that writes nonsense is not answered record by
record."""

MAX_REASONS = 64
"""Reasons of one connection are told apart up to this number; a program has a few, an attacker as many as
there are indexes."""


class WriteErrors:
    """Those of one connection that it has not been told of."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, int], int] = {}
        self._next_ns: int | None = None

    @property
    def due_ns(self) -> int | None:
        """When `next_message` has something; None: there is nothing."""
        return self._next_ns if self._counts else None

    def note(self, index_table: IndexTable) -> None:
        """Add what was refused since the last time."""
        if index_table.refused:
            for reason, count in index_table.pop_refused().items():
                self._counts[reason] = self._counts.get(reason, 0) + count
            if len(self._counts) > MAX_REASONS:
                self._merge()

    def next_message(self, now_ns: int) -> bytes | None:
        """`write_error`; None: nothing was refused, or it is not time yet."""
        if not self._counts or (self._next_ns is not None and now_ns < self._next_ns):
            return None
        reason = max(self._counts, key=self._counts.__getitem__)
        self._next_ns = now_ns + WRITE_ERROR_INTERVAL_NS
        return encode_notification("write_error", [*reason, self._counts.pop(reason)])

    def _merge(self) -> None:
        """Give up which index it was for the rarest, so that inventing indexes does not fill memory."""
        keep = sorted(self._counts, key=self._counts.__getitem__, reverse=True)[: MAX_REASONS // 2]
        merged = {reason: self._counts.pop(reason) for reason in keep}
        for (number, _), count in self._counts.items():
            merged[number, -1] = merged.get((number, -1), 0) + count
        self._counts = merged
