"""The contract of plug-ins: consumers of other distributions.

A plug-in is a class behind an entry point of the group `utracefs.consumers`, described by `Consumer` below.
It does not see probes: an administrator attaches it through `consumers/NAME/set_event`, it gets records in
batches, and its exceptions are counted and not propagated. examples/count_plugin is a complete one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events._fields import Fields
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefs_protocol.pages.status_page import StatusBit

__all__ = ["ENTRY_POINT_GROUP", "Consumer", "ConsumerError", "RawBatch", "Record", "StatusBit"]

ENTRY_POINT_GROUP = "utracefs.consumers"
"""The entry points that are plug-ins; the name of an entry point is the NAME in `consumers/NAME/`."""


class ConsumerError(TraceError):
    """A plug-in cannot be used: EIO when it cannot be loaded or its report fails, EBUSY when that takes too
    long. The daemon continues."""


@attrs.frozen
class Known:
    """The properties of an event that come with each record."""

    name: bytes
    system: bytes
    fields: Fields


@attrs.frozen
class Record:
    """One record, as passed to a plug-in."""

    event: bytes
    """Tracepoint name: NAME, or NAME.<hex> for a multi-format event."""
    system: bytes
    """b"user_events" or b"user_events_multi"."""
    ts_ns: int
    """CLOCK_MONOTONIC when it was written."""
    cpu: int
    """The cpu of the writer."""
    pid: int
    """The thread that wrote it, as far as the daemon could check; over the socket the process."""
    payload: bytes
    """The bytes that the program wrote, without write_index and common fields."""
    _fields: Fields = attrs.field(repr=False, eq=False)

    def fields(self) -> dict[str, int | float | str | bytes | list[Any]]:
        """The payload by field name, unpacked now: integers as int, text as str, everything else as bytes."""
        return self._fields.unpack(self.payload)


class RawBatch:
    """New records of all events that a plug-in is attached to, not copied; valid until `take_raw` returns.
    Iterating makes each `Record`."""

    def __init__(self, ring: StreamRing, known: Mapping[int, Known]) -> None:
        self._ring = ring
        self._known = known

    @property
    def pieces(self) -> list[memoryview]:
        """The memory, read-only, in one or two pieces: records in the format of docs/protocol.md, section
        6.1. Nothing is copied: after `take_raw` a piece may contain other records."""
        return self._ring.pieces()

    @property
    def counts(self) -> dict[tuple[bytes, bytes], int]:
        """(system, event) to the number of its records."""
        counts = self._ring.counts().items()
        return {(self._known[id_].system, self._known[id_].name): count for id_, count in counts}

    def __len__(self) -> int:
        return self._ring.records

    def __iter__(self) -> Iterator[Record]:
        for id_, ts_ns, cpu, _, tid, payload in self._ring.tuples():
            known = self._known[id_]
            yield Record(known.name, known.system, ts_ns, cpu, tid, payload, known.fields)


@runtime_checkable
class Consumer(Protocol):
    """The interface of the class behind an entry point. It is made without arguments, at its first use.

    `take_raw(batch: RawBatch)` may replace `take`: it is faster without an object for each record. These
    methods are called if they exist:

    | | |
    |---|---|
    | `start(options: Mapping[str, str])` | first, with the values of `--plugin-option NAME.KEY=VALUE` |
    | `attached(event: bytes, system: bytes)` | before the first record; `detached` after the last |
    | `report() -> str` | the text of `consumers/NAME/report` |
    | `close()` | the daemon ends; may take a second |

    Everything, from the constructor on, runs in one thread of the plug-in's own. Records that find no space
    while it is busy are lost and counted; a batch that takes longer than 50 ms is logged.
    """

    def take(self, batch: Sequence[Record]) -> None:
        """Take records, in the order of the intake. If it raises, they count as lost."""


def is_consumer(made: object) -> bool:
    """Whether it has a method for records."""
    return isinstance(made, Consumer) or callable(getattr(made, "take_raw", None))
