"""The account of events' records, for every command that records, prints or counts them.

`stats` of an event has the records taken and lost of each of its consumers. These numbers are never cleared,
and include records that never reached a buffer. `gained` takes the difference of two readings, for any
consumer; `Ledger` adds up those of an instance, with the numbers of its ring buffers:

    emitted = kept + filtered + lost (in data rings, too large, full) + overwritten
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import attrs

from utracefs.cli.common import EventStats, available_events, buffer_numbers, event_stats
from utracefs.cli.instance_option import Place
from utracefs.cli.losses import ever
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs


@attrs.frozen
class Account:
    """Counts of records: of all events in one instance, since a Ledger was opened; or of a consumer for one
    event, which has no ring buffer (`dropped`, `overrun`, `unread`)."""

    recorded: int = 0
    """Put into its ring buffer, even if overwritten later."""
    filtered: int = 0
    """Rejected by a filter, or emitted while `tracing_on` was 0."""
    lost: int = 0
    in_rings: int = 0
    """Lost because their data ring was full."""
    dropped: int = 0
    """Lost because the ring buffer was full and does not overwrite."""
    overrun: int = 0
    """Recorded, but overwritten before they were read."""
    unread: int = 0
    """In the ring buffer now, whenever emitted."""
    refused: dict[str, int] = attrs.field(factory=dict[str, int])
    """Refused: `EVENT.FIELD was float` and the like, to number."""

    @property
    def too_large(self) -> int:
        """Lost because no page of the ring buffer can hold them."""
        return max(0, self.lost - self.in_rings - self.dropped)

    def since(self, before: "Account") -> "Account":
        """Counts between an earlier reading of the same ledger and this one. A removed event's numbers are
        lost, so none is below 0."""
        counts = ("recorded", "filtered", "lost", "in_rings", "dropped", "overrun")
        return Account(
            **{name: max(0, getattr(self, name) - getattr(before, name)) for name in counts},
            unread=self.unread,
            refused=dict(Counter(self.refused) - Counter(before.refused)),
        )


def read_stats(tree: Tracefs, events: Iterable[EventName]) -> dict[EventName, EventStats]:
    events = list(events)
    texts = tree.read_files(f"{event.directory}/stats" for event in events)
    return {
        event: event_stats(text) for event, text in zip(events, texts, strict=True) if isinstance(text, bytes)
    }


def gained(
    now: Mapping[EventName, EventStats],
    consumer: Callable[[EventName], str],
    before: Mapping[EventName, EventStats] | None = None,
) -> dict[EventName, Account]:
    """Counts of the events with this consumer. before: an earlier reading; an event that is not in it began
    with zeros."""
    found = {}
    for event, stats in now.items():
        if (mine := stats.consumers.get(consumer(event))) is None:
            continue
        old = (before or {}).get(event, EventStats(0, 0, {}))
        old_mine = old.consumers.get(consumer(event), {})
        new = {name: max(0, count - old_mine.get(name, 0)) for name, count in mine.items()}
        found[event] = Account(
            **new,
            in_rings=min(new["lost"], max(0, stats.lost_in_rings - old.lost_in_rings)),
            refused=dict(Counter(stats.refused) - Counter(old.refused)),
        )
    return found


class Ledger:
    """Keeps the account of one instance. Create it before any event is enabled there."""

    def __init__(self, tree: Tracefs, place: Place) -> None:
        self._tree = tree
        self._place = place
        self._events = read_stats(tree, available_events(tree))
        self._buffers = buffer_numbers(self._tree, self._place)
        self._before = self._last = Account()
        """Accounts of former daemons, and of the last reading."""
        self._numbers: Counter[str] = Counter()
        """Numbers of the ring buffers at the last reading."""

    def come_back(self) -> int | None:
        """Call it when the next daemon has taken over the instance: the counts of its events start at 0
        again. If the ring buffer is a new one, returns the number of records in the old one at the last
        reading; else None."""
        self._before = self._last
        self._events = dict.fromkeys(self._events, EventStats(0, 0, {}))
        unread, former, self._numbers = (
            self._last.unread,
            self._numbers,
            buffer_numbers(self._tree, self._place),
        )
        self._last = attrs.evolve(self._last, unread=self._numbers["entries"])
        if ever(self._numbers) >= ever(former):
            return None
        self._buffers.subtract(former)  # the new one counts from 0
        return unread

    def read(self, triggered: Iterable[EventName] = ()) -> Account:
        """Counts until now, of events that this instance has, or had when the ledger was opened; a removed
        event's numbers are lost. triggered: events that are not enabled here, but have triggers."""
        enabled = parse_event_list(self._tree.read_file(self._place.path("set_event")))
        now = read_stats(self._tree, dict.fromkeys([*enabled, *self._events, *triggered]))
        parts = gained(now, lambda _: self._place.consumer, self._events)
        buffers = self._numbers = buffer_numbers(self._tree, self._place)
        since = {name: max(0, buffers[name] - self._buffers[name]) for name in buffers}
        refused = Counter(self._before.refused)
        for event, one in parts.items():
            refused.update({f"{event.name}.{reason}": count for reason, count in one.refused.items()})
        self._last = Account(
            self._before.recorded + sum(one.recorded for one in parts.values()),
            self._before.filtered + sum(one.filtered for one in parts.values()),
            self._before.lost + sum(one.lost for one in parts.values()),
            self._before.in_rings + sum(one.in_rings for one in parts.values()),
            # A snapshot swaps the ring for one with other numbers: no loss is taken back.
            max(since.get("dropped events", 0), self._last.dropped),
            since.get("overrun", 0),
            buffers["entries"],
            dict(refused),
        )
        return self._last
