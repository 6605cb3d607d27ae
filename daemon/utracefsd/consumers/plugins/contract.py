"""The contract of plug-ins: consumers that other distributions bring along.

A plug-in is a class behind an entry point of the group `utracefs.consumers`, described by `Consumer` below.
It never meets a probe: it is attached by an administrator through `consumers/NAME/set_event`, gets records
in batches, and what it raises is counted, not spread. examples/count_plugin is a whole one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

import attrs

from utracefs_protocol._stream_ring import StreamRing
from utracefs_protocol.errors import TraceError
from utracefs_protocol.layout import Layout, Value
from utracefs_protocol.status_page import StatusBit

__all__ = ["ENTRY_POINT_GROUP", "Consumer", "ConsumerError", "RawBatch", "Record", "StatusBit"]

ENTRY_POINT_GROUP = "utracefs.consumers"
"""The entry points that are plug-ins; the name of an entry point is the NAME in `consumers/NAME/`."""


class ConsumerError(TraceError):
    """A plug-in cannot be used: EIO when it cannot be loaded or its report fails, EBUSY when that takes too
    long. The daemon goes on."""


@attrs.frozen
class Known:
    """What a plug-in is told of an event with each record."""

    name: bytes
    system: bytes
    layout: Layout


@attrs.frozen
class Record:
    """One record, as a plug-in gets it."""

    event: bytes
    """Tracepoint name: NAME, or NAME.<hex> for a multi-format event."""

    system: bytes
    """b"user_events" or b"user_events_multi"."""

    ts_ns: int
    """CLOCK_MONOTONIC when it was written."""

    cpu: int
    """Where it was written."""

    pid: int
    """Thread that wrote it, as far as the daemon could check; over the socket the process."""

    payload: bytes
    """What the program wrote, without write_index and common fields."""

    _layout: Layout = attrs.field(repr=False, eq=False)

    def fields(self) -> dict[str, Value]:
        """The payload by field name, unpacked now: integers as int, text as str, everything else as bytes."""
        return self._layout.unpack(self.payload)


class RawBatch:
    """What came of all events that a plug-in is attached to, as it stands in memory; good until `take_raw`
    returns. Iterating gives each `Record`, made then."""

    def __init__(self, ring: StreamRing, known: Mapping[int, Known]) -> None:
        self._ring = ring
        self._known = known

    @property
    def pieces(self) -> list[memoryview]:
        """The memory, read-only, one piece or two: records as docs/protocol.md, section 6.1, has them.
        Nothing was copied; who keeps a piece finds other records in it later."""
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
            yield Record(known.name, known.system, ts_ns, cpu, tid, payload, known.layout)


@runtime_checkable
class Consumer(Protocol):
    """What the class behind an entry point must look like. It is made without arguments, at its first use.

    `take_raw(batch: RawBatch)` may stand in place of `take`: for what is quicker without an object for each
    record. These methods are called when they exist:

    | | |
    |---|---|
    | `start(options: Mapping[str, str])` | first, with what `utracefsd --plugin-option NAME.KEY=VALUE` says |
    | `attached(event: bytes, system: bytes)` | in front of the first record; `detached` behind the last |
    | `report() -> str` | the text of `consumers/NAME/report` |
    | `close()` | the daemon ends; there is a second for it |

    All of it, from making the object on, is called in one thread that is the plug-in's own. What finds no
    room while it is busy is lost, counted, and a batch that takes longer than 50 ms is told of in the log.
    """

    def take(self, batch: Sequence[Record]) -> None:
        """Take records in the order in which they were taken in. An exception loses them, counted."""


def is_consumer(made: object) -> bool:
    """Whether it can be given records."""
    return isinstance(made, Consumer) or callable(getattr(made, "take_raw", None))
