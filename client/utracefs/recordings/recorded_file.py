"""One file of a recording: its events, which of them are selected, and the source of its records."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import attrs

from utracefs.recordings._records import EventDecoder, Records, RecordSource
from utracefs.recordings.event_filters import EventFilters
from utracefs.recordings.event_header import HeaderEvents
from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.several.timeline import Clocked
from utracefs.recordings.trace_dat._merge import MergedPages
from utracefs.recordings.trace_dat.reader import TraceDatReader
from utracefs.tree.event_names import EventName, matches
from utracefs_protocol.events.event_format import EventFormat
from utracefs_protocol.filter import FilterError
from utracefs_protocol.text import text_of


@attrs.frozen
class Selected:
    """The selection of records; see `utracefs.open`."""

    events: tuple[str, ...] = ()
    pids: frozenset[int] | None = None
    cpus: frozenset[int] | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    filter: bytes | None = None
    raw_eventheader: bool = False

    def words(self) -> list[str]:
        """As printed; empty: all."""
        found = [f"event {pattern}" for pattern in self.events]
        for what, numbers in (("process", self.pids), ("cpu", self.cpus)):
            found += [] if numbers is None else [f"{what} {', '.join(map(str, sorted(numbers)))}"]
        for what, time_ns in (("from", self.since_ns), ("before", self.until_ns)):
            found += [] if time_ns is None else [f"{what} {time_ns / 10**9:.9f} s"]
        return found + ([] if self.filter is None else [f"filter {text_of(self.filter)}"])


class RecordedFile:
    """A trace.dat or a perf.data, read by its reader, with the events that are selected."""

    def __init__(self, reader: TraceDatReader | PerfDataReader, path: str, selected: Selected) -> None:
        self.path: Final = path
        self.reader: Final = reader
        """The reader of the file, for whatever this class does not offer."""
        self._selected: Final = selected
        self._decoders: dict[int, EventDecoder | None] = {}
        self.tgids: Mapping[int, int] = {}
        """Thread id to process id, for a trace.dat, which has no processes."""
        self.origin: Final = reader.origin.with_added(reader.offset_ns)
        """With pairs of displayed times: `record --wall-clock` makes readers add an offset."""
        self._header_events: Final = HeaderEvents()
        self._all_found = True
        """Whether these are all of the file."""
        if not selected.raw_eventheader:
            for event in reader.formats.values():
                self._header_events.add(reader.systems.get(event.id, ""), event)
            self._all_found = not self._header_events.tracepoints
        events_there = [*self.events, *map(self._name, reader.formats.values())] if selected.events else []
        self.missing: Final = [p for p in selected.events if not any(matches(p, e) for e in events_there)]
        """Patterns without an event."""
        self._filters: EventFilters | None = None
        self.filter_error: FilterError | None = None
        """The error if the filter is invalid for all events."""
        if selected.filter is not None:
            wanted = [event for _, event in self.formats if self._is_wanted(event)]
            try:
                self._filters = EventFilters(selected.filter, wanted, reader.nr_cpus)
            except FilterError as error:
                self.filter_error = error

    @property
    def events(self) -> list[EventName]:
        """All events described in the file, with or without records; of EventHeader those with records, which
        are searched for at the first call."""
        return [self._name(event) for _, event in self.formats]

    @property
    def formats(self) -> list[tuple[str, EventFormat]]:
        """System and format of all `events`."""
        self._find_header_events()
        there = {event.tracepoint for event in self._header_events.events.values()}
        found = [(self._system(e), e) for e in self.reader.formats.values() if e.id not in there]
        return found + [(event.system, event.format) for event in self._header_events.events.values()]

    @property
    def selected_tracepoints(self) -> list[tuple[str, EventFormat]]:
        """System and format of all selected tracepoints, for a file with the original records: of EventHeader
        those with selected events."""
        self._find_header_events()
        there = {
            event.tracepoint
            for id_, event in self._header_events.events.items()
            if self.decoder(id_) is not None
        }
        return [
            (self._system(event), event)
            for event in self.reader.formats.values()
            if event.id in there or self.decoder(event.id) is not None
        ]

    def _find_header_events(self) -> None:
        """Read all records, up to an error, if there may be events of EventHeader."""
        if self._all_found:
            return
        self._all_found = True
        source, _ = self.reader.source()
        with contextlib.suppress(ValueError):
            Records(self._header_events.source(source), lambda _: None).events()

    def label(self, event_id: int) -> str:
        """Name of an event in a report: with the provider for one of EventHeader."""
        event = self.format_of(event_id)
        header_event = self._header_events.events.get(event_id)
        name = text_of(event.name)
        return name if header_event is None or header_event.opcode < 0 else f"{header_event.system}:{name}"

    def source(self, since_ns: int | None, until_ns: int | None) -> tuple[RecordSource, Callable[[], float]]:
        """A source of all records between these times (and possibly of others), and a function that returns
        the part read."""
        source, done = self.reader.source(self._selected.cpus, since_ns, until_ns, self.tgids)
        return self._header_events.source(source), done

    def whole_pages(self) -> tuple[MergedPages, Callable[[], float]] | None:
        """See `Recording.whole_pages`."""
        others = attrs.evolve(self._selected, cpus=None, raw_eventheader=False)
        if not isinstance(self.reader, TraceDatReader) or self.reader.offset_ns or others != Selected():
            return None
        return self.reader.source(self._selected.cpus, tgids=self.tgids)

    @property
    def clocked(self) -> Clocked:
        """Description of its times."""
        reader = self.reader
        return Clocked(self.path, reader.origin, reader.clock, reader.clock_in_ns, reader.offset_ns)

    def _name(self, event: EventFormat) -> EventName:
        return EventName(self._system(event), text_of(event.name))

    def _system(self, event: EventFormat) -> str:
        found = self._header_events.events.get(event.id)
        return self.reader.systems.get(event.id, "") if found is None else found.system

    def format_of(self, event_id: int) -> EventFormat:
        """The format of an event; if the file has none, one whose name says so."""
        found = self._header_events.events.get(event_id)
        if found is not None:
            return found.format
        return self.reader.formats.get(event_id) or EventFormat(b"[UNKNOWN EVENT]", event_id, (), b"")

    def decoder(self, event_id: int) -> EventDecoder | None:
        """The decoder of an event; None: it is not selected."""
        if event_id not in self._decoders:
            event = self.format_of(event_id)
            header_event = self._header_events.events.get(event_id)
            decoder = None
            if self.filter_error is None and self._is_wanted(event):
                decoder = (
                    header_event.decoder() if header_event else EventDecoder(*self._name(event), event.fields)
                )
            if decoder is not None and self._filters is not None:
                decoder.filter = self._filters.of(event)
                decoder = decoder if decoder.filter is not None else None
            self._decoders[event_id] = decoder
        return self._decoders[event_id]

    def _is_wanted(self, event: EventFormat) -> bool:
        patterns = self._selected.events
        names = [self._name(event)]
        header_event = self._header_events.events.get(event.id)
        if header_event is not None:
            names.append(self._name(self.reader.formats[header_event.tracepoint]))
        return not patterns or any(matches(pattern, name) for pattern in patterns for name in names)
