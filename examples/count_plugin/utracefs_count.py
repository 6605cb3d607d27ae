"""A plug-in for the utracefs daemon: counts the records of each event, and since when.

It shows all methods of a plug-in. Only `take` is required. It imports nothing of utracefs: the daemon passes
objects with the attributes that it reads.
"""

from collections.abc import Sequence
from typing import Protocol


class Record(Protocol):
    """The attributes of a record used by this plug-in."""

    @property
    def event(self) -> bytes: ...
    @property
    def system(self) -> bytes: ...
    @property
    def ts_ns(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class Counts:
    """Counts of one event."""

    def __init__(self) -> None:
        self.attached = False
        self.records = 0
        self.payload_bytes = 0
        self.first_ns: int | None = None
        self.last_ns = 0

    @property
    def per_second(self) -> float:
        """Records a second between the first and the last; 0 when there are fewer than two."""
        span_ns = self.last_ns - (self.first_ns or 0)
        return (self.records - 1) * 1e9 / span_ns if self.records > 1 and span_ns > 0 else 0.0


class Counter:
    """The class of the entry point; the daemon makes one, without arguments, at its first use."""

    def __init__(self) -> None:
        self._counts: dict[str, Counts] = {}

    def attached(self, event: bytes, system: bytes) -> None:
        """The daemon attached this plug-in to an event. Counts of an earlier attachment continue."""
        self._of(event, system).attached = True

    def detached(self, event: bytes, system: bytes) -> None:
        """No more records of this event; its counts stay in the report."""
        self._of(event, system).attached = False

    def take(self, batch: Sequence[Record]) -> None:
        """Records of one of the attached events, in order."""
        for record in batch:
            counts = self._of(record.event, record.system)
            counts.records += 1
            counts.payload_bytes += len(record.payload)
            if counts.first_ns is None:
                counts.first_ns = record.ts_ns
            counts.last_ns = record.ts_ns

    def report(self) -> str:
        """The table in consumers/count/report: the event with most records first; `-` marks detached ones."""
        width = max([len("event"), *map(len, self._counts)])
        lines = [f"  {'event':<{width}} {'records':>12} {'bytes':>14} {'per second':>12}"]
        for name, counts in sorted(self._counts.items(), key=lambda item: (-item[1].records, item[0])):
            mark = " " if counts.attached else "-"
            rate = counts.per_second
            lines.append(
                f"{mark} {name:<{width}} {counts.records:>12} {counts.payload_bytes:>14} {rate:>12.1f}"
            )
        return "\n".join(lines) + "\n"

    def _of(self, event: bytes, system: bytes) -> Counts:
        name = f"{system.decode('utf-8', 'replace')}:{event.decode('utf-8', 'replace')}"
        return self._counts.setdefault(name, Counts())
