"""One filter for all events of a recording, for `utracefs.open` and `utracefs report`.

The syntax is that of an event's filter file (utracefs_protocol.filter). If it is invalid for an event,
because a field is missing, say, none of its records pass.
"""

from collections.abc import Iterable

from utracefs.recordings._records import ThreadNames
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.filter import Filter, FilterError, parse_filter
from utracefs_protocol.filter.parse import MAX_CPUS


class EventFilters:
    """The filter of each event.

    events: the selected ones. nr_cpus: number of cpus for CPUS{}, 0: unknown. FilterError: the text is
    invalid for all events; the error of the one whose parser got furthest.
    """

    def __init__(self, text: bytes, events: Iterable[EventFormat] = (), nr_cpus: int = 0) -> None:
        self.text = text
        self._nr_cpus = nr_cpus or MAX_CPUS
        refused: list[FilterError] = []
        for event in events:
            try:
                self._parse(event)
            except FilterError as error:
                refused.append(error)
            else:
                return
        if refused:
            raise max(refused, key=lambda error: error.position or 0)

    def of(self, event: EventFormat) -> Filter | None:
        """The filter of an event; None: it is invalid, so no record passes."""
        try:
            return self._parse(event)
        except FilterError:
            return None

    def _parse(self, event: EventFormat) -> Filter:
        return parse_filter(self.text, event.fields, nr_cpus=self._nr_cpus, names=ThreadNames())
