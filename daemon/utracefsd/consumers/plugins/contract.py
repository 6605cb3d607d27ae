"""The contract of plug-ins: consumers that other distributions bring along.

A plug-in is a class behind an entry point of the group `utracefs.consumers`, described by `Consumer` below.
It never meets a probe: it is attached by an administrator through `consumers/NAME/set_event`, gets `Record`s
in batches, and what it raises is counted, not spread. examples/count_plugin is a whole one.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.layout import Layout, Value
from utracefs_protocol.status_page import StatusBit

__all__ = ["ENTRY_POINT_GROUP", "Consumer", "ConsumerError", "Record", "StatusBit"]

ENTRY_POINT_GROUP = "utracefs.consumers"
"""The entry points that are plug-ins; the name of an entry point is the NAME in `consumers/NAME/`."""


class ConsumerError(TraceError):
    """A plug-in cannot be used: EIO when it cannot be loaded or its report fails. The daemon goes on."""


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


@runtime_checkable
class Consumer(Protocol):
    """What the class behind an entry point must look like. It is made without arguments, at its first use.

    Three more methods are called when they exist: `attached(event: bytes, system: bytes)` and
    `detached(event: bytes, system: bytes)`, after the fact, and `report() -> str`, which is the text of
    `consumers/NAME/report`.

    All methods run in the daemon's only thread, so they must be quick: compute here, do slow output
    elsewhere.
    """

    def take(self, batch: Sequence[Record]) -> None:
        """Take records of one event, in the order in which they were taken in. An exception loses them,
        counted.

        To get the order across events, compare `ts_ns`; a round of taking in calls this once per
        event.
        """
