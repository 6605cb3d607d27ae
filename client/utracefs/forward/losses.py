"""Records that do not arrive: by event and cause.

At the far end, records emitted = records arrived + `count` of all losses, for each host and event. A count of
None says that the number is unknown; then that equation is an inequality for the event, or for all events if
it is ANY.

Marks say how many emitted records of each event a spool has accounted for, arrived or reported as lost.

    daemon   counts emitted records by event, also while no forwarder is attached (`Stream.missed_before`)
    spool    has a mark for each event, stored with the batches and losses that it counts
    attach   count at the attach - mark = records lost while the forwarder or the daemon was away

A mark is written together with its batch, so after a kill at any moment it counts exactly the batches on the
disk. Records that were still in a killed forwarder's ring are in no batch, so the difference reports them as
lost.

The difference is unknown for an event whose count has another epoch (a daemon was killed). It is unknown,
too, if a filter or an instance selects records, since the daemon also counts the other ones. If the daemon's
state was replaced, the events are unknown, too.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Self

import attrs

from utracefs.tree.event_names import EventName, matches
from utracefs_protocol.messages.tracefs import StreamMissed
from utracefs_protocol.text import text_of

RING: Final = "ring"
"""The ring was full: the forwarder, or its disk, is too slow. Includes losses before the ring."""
SPOOL: Final = "spool"
"""The spool was full or could not be written, or a part of it was damaged."""
LIMIT: Final = "limit"
"""More than the policy's `max_records_per_s`."""
POLICY: Final = "policy"
"""The policy hides fields that the event does not have, or it is one of EventHeader."""
REFUSED: Final = "refused"
"""The target refused these records."""
SAMPLE: Final = "sample"
"""A wish of a fleet requests only one of n records."""
AWAY: Final = "away"
"""The forwarder or the daemon was not running."""

ANY: Final = "*"
"""In place of an event that is unknown."""


@attrs.frozen
class Loss:
    """Lost records of one event."""

    event: str
    """`SYSTEM:NAME`, or ANY."""
    cause: str
    count: int | None
    """None: unknown."""


class Losses:
    """A sum of losses. Not for several threads."""

    def __init__(self, losses: Iterable[Loss] = ()) -> None:
        self._counts: dict[tuple[str, str], int | None] = {}
        self.extend(losses)

    def __bool__(self) -> bool:
        return bool(self._counts)

    def __iter__(self) -> Iterator[Loss]:
        return (Loss(event, cause, count) for (event, cause), count in self._counts.items())

    def add(self, event: str, cause: str, count: int | None) -> None:
        """Add a number; None, unknown, makes the sum unknown."""
        if count != 0:
            before = self._counts.get((event, cause), 0)
            self._counts[event, cause] = None if count is None or before is None else before + count

    def extend(self, losses: Iterable[Loss]) -> None:
        for loss in losses:
            self.add(loss.event, loss.cause, loss.count)

    def clear(self) -> None:
        self._counts.clear()


@attrs.frozen
class Selection:
    """Selects the records that a forwarder reads."""

    patterns: Sequence[str]
    """Patterns of events: the forwarder reads events that match one of these and one of `allowed`."""
    allowed: Sequence[str]
    is_whole: bool
    """No filter and no instance: all records of these events are selected."""

    def has(self, event: str) -> bool:
        name = EventName(*event.split(":", 1))
        return all(any(matches(one, name) for one in words) for words in (self.patterns, self.allowed))


@attrs.define
class Marks:
    origin: str
    """Id of the daemon's state."""
    epoch: int
    """Epoch of events without a mark; their count is 0."""
    events: dict[str, tuple[int, int]]
    """`SYSTEM:NAME` to count and epoch."""
    selection: Selection

    @classmethod
    def at(cls, missed: StreamMissed, selection: Selection) -> Self:
        """The marks at the moment when a stream was attached."""
        events = {text_of(one.event): (one.count, one.epoch) for one in missed.events}
        return cls(text_of(missed.origin), missed.epoch, events, selection)

    def after(self, event: str, count: int) -> tuple[int, int]:
        """The event's mark after `count` more records."""
        before, epoch = self._of(event)
        return before + count, epoch

    def losses_until(self, later: "Marks") -> list[Loss]:
        """Records emitted between these marks and those of a later stream: they are lost."""
        if self.origin != later.origin:
            return [Loss(ANY, AWAY, None)]
        is_whole = self.selection.is_whole and later.selection.is_whole
        found = [] if self.epoch == later.epoch else [Loss(ANY, AWAY, None)]
        for event in {**self.events, **later.events}:
            (before, its_epoch), (count, epoch) = self._of(event), later._of(event)
            if (count, epoch) == (before, its_epoch):
                continue
            if self.selection.has(event) and later.selection.has(event):
                is_known = is_whole and epoch == its_epoch and count > before
                found.append(Loss(event, AWAY, count - before if is_known else None))
        return found

    def _of(self, event: str) -> tuple[int, int]:
        return self.events.get(event, (0, self.epoch))

    def to_json(self) -> dict[str, Any]:
        return attrs.asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """ValueError, KeyError, TypeError: invalid."""
        events = {str(event): (int(count), int(epoch)) for event, (count, epoch) in stored["events"].items()}
        return cls(str(stored["origin"]), int(stored["epoch"]), events, Selection(**stored["selection"]))
