"""The texts of an instance that describe its records: formats of events, names of threads, the clock.

They are read repeatedly, since an event and a thread may be gone before the file is written. One object may
serve several files of an instance: the recordings of a flight recorder have the formats of all its events.
"""

import attrs

from utracefs.cli.instance_option import Place
from utracefs.recordings.origin import Origin
from utracefs.recordings.trace_dat.format import clock_in_use
from utracefs.recordings.trace_dat.texts import with_small_signs
from utracefs.recordings.trace_dat.writer import Contents
from utracefs.tree.event_names import EventName, parse_event_list
from utracefs.tree.tracefs import Tracefs
from utracefs_protocol.pages.subbuf import MARKER_IP
from utracefs_protocol.text import bytes_of, text_of

MARKER_SYMBOL = b"%x t tracing_mark_write\n" % MARKER_IP
"""The only line of the symbol table: readers resolve a marker's ip with it."""


class Texts:
    """The texts of one instance at the last `read`."""

    def __init__(self, tree: Tracefs, place: Place, *, of_all_events: bool = False) -> None:
        """of_all_events: also of events that are not enabled in the instance."""
        self._tree = tree
        self._events_file = "available_events" if of_all_events else place.path("set_event")
        internal = [
            f"events/ftrace/{name}/format" for name, kind in tree.list_dir("events/ftrace") if kind == "d"
        ]
        trace_clock = tree.read_file(place.path("trace_clock"))
        self.clock = clock_in_use(trace_clock)
        self.origin = Origin.here(self.clock)
        """Its pair of clocks is that of the begin."""
        self._contents = Contents(
            header_page=tree.read_file("events/header_page"),
            header_event=tree.read_file("events/header_event"),
            ftrace_formats=[text for text in tree.read_files(internal) if isinstance(text, bytes)],
            kallsyms=MARKER_SYMBOL,
            printk_formats=tree.read_file("printk_formats"),
            trace_clock=trace_clock,
            origin=self.origin,
        )
        self._formats: dict[bytes, EventName] = {}
        self.ids: set[int] = set()
        """Their ids."""
        self.there: set[EventName] = set()
        """All events that existed at a `read`, enabled or not: a requested name may be misspelt."""
        self.tgids: dict[int, int] = {}
        """Writing threads to their processes, as far as the daemon noted them (option record-tgid)."""

    @property
    def events(self) -> list[EventName]:
        """Events that were found enabled at some time."""
        return list(dict.fromkeys(self._formats.values()))

    @property
    def contents(self) -> Contents:
        formats: dict[bytes, list[bytes]] = {}
        for text, event in self._formats.items():
            formats.setdefault(bytes_of(event.system), []).append(text)
        return attrs.evolve(self._contents, formats=formats)

    def add_format(self, system: bytes, text: bytes) -> None:
        """Add a format that was not read from its file; with another id the same event may have several."""
        name, number = text.split(b"\n", 2)[:2]
        self._formats[with_small_signs(text)] = EventName(
            text_of(system), text_of(name.removeprefix(b"name: "))
        )
        self.ids.add(int(number.removeprefix(b"ID: ")))

    def read(self) -> None:
        """Read the texts that may change or vanish."""
        tree = self._tree
        self.there.update(parse_event_list(tree.read_file("available_events")))
        events = parse_event_list(tree.read_file(self._events_file))
        known = set(self.events)
        new = [event for event in events if event not in known]
        contents = tree.read_files(f"{event.directory}/format" for event in new)
        for event, content in zip(new, contents, strict=True):
            if isinstance(content, bytes):
                self.add_format(bytes_of(event.system), content)
        self._contents = attrs.evolve(self._contents, cmdlines=tree.read_file("saved_cmdlines"))
        for line in tree.read_file("saved_tgids").splitlines():
            tid, tgid = line.split()
            self.tgids[int(tid)] = int(tgid)
