"""Plug-ins: consumers that other distributions bring along, attached by name.

A distribution declares an entry point of the group `utracefs.consumers`:

    [project.entry-points."utracefs.consumers"]
    count = "utracefs_count:Counter"

and the daemon has `consumers/count/set_event` and `consumers/count/report`. Nothing is imported until
somebody attaches the plug-in or reads its report; a broken one costs nothing to those who do not use it.

    record ──> BatchProbe, one per event: kept in memory, in the core
                    │  flush, once after each pump of the daemon
                    v
               take(batch), once for each event that has records

A plug-in cannot hurt the record path. What does not fit into a probe until the next flush is lost and
counted. A `take` that raises loses its batch, counted as lost; the plug-in stays attached and is tried again
with the next. The first failure of each of its methods is logged in one line, the others are only counted.
"""

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterable
from importlib import metadata
from typing import Any

from utracefs_protocol.errors import TraceError
from utracefs_protocol.layout import Layout
from utracefsd.consumers.plugins._batch import BatchProbe
from utracefsd.consumers.plugins.contract import ENTRY_POINT_GROUP, Consumer, ConsumerError, Record
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable

logger = logging.getLogger("utracefsd")

MAX_PENDING = 65536
"""Records of one event that wait for the next flush; a pump takes in a few thousand."""

_Taken = tuple[int, int, int, int, bytes]
"""What a BatchProbe keeps of a record: ts_ns, cpu, pid, tgid, payload."""


class Plugin:
    """One plug-in of the daemon: its object, made at the first use, and what it is attached to."""

    def __init__(
        self, name: str, load: Callable[[], object], table: EventTable, max_pending: int = MAX_PENDING
    ) -> None:
        self.name = name
        self.failures = 0
        """Calls of the plug-in that raised."""
        self._load = load
        self._table = table
        self._max_pending = max_pending
        self._object: Consumer | None = None
        self._probes: dict[Event, BatchProbe] = {}
        self._logged: set[str] = set()

    def attach(self, event: Event) -> None:
        """Attach to `event`; already attached is success. ConsumerError(EIO) when the plug-in cannot be
        loaded."""
        if event in self._probes:
            return
        consumer = self._consumer()
        layout = Layout(event.declaration.fields)

        def deliver(batch: list[_Taken]) -> None:
            name, system = event.tracepoint_name, event.system
            records = [Record(name, system, ts, cpu, pid, data, layout) for ts, cpu, pid, _, data in batch]
            try:
                consumer.take(records)
            except Exception as error:
                self._failed("take", error)
                raise  # the probe counts the batch as lost

        probe = BatchProbe(self.name, deliver, self._max_pending)
        self._table.attach(event, probe)
        self._probes[event] = probe
        self._tell("attached", event)

    def detach(self, event: Event, now_ns: int) -> None:
        """Hand over what waits, then detach; not attached is success."""
        probe = self._probes.pop(event, None)
        if probe is not None:
            self._table.detach(event, probe, now_ns)
            self._tell("detached", event)

    def events(self) -> list[Event]:
        """What it is attached to, in the order of attaching."""
        return list(self._probes)

    def flush(self) -> None:
        """Hand over everything that waits."""
        for probe in self._probes.values():
            probe.flush()

    def report(self) -> str:
        """The text of its report; empty when it makes none. ConsumerError(EIO) when that fails."""
        self.flush()
        make = getattr(self._consumer(), "report", None)
        if make is None:
            return ""
        try:
            return str(make())
        except Exception as error:
            self._failed("report", error)
            raise ConsumerError(errno.EIO, f"plug-in {self.name}: report failed: {error!r}") from error

    def _consumer(self) -> Consumer:
        """The plug-in's object, made now if it was not; ConsumerError(EIO)."""
        if self._object is None:
            try:
                made: Any = self._load()
                consumer = made()
            except Exception as error:
                raise ConsumerError(errno.EIO, f"plug-in {self.name} cannot be loaded: {error!r}") from error
            if not isinstance(consumer, Consumer):
                raise ConsumerError(errno.EIO, f"plug-in {self.name} has no method take(batch)")
            self._object = consumer
        return self._object

    def _tell(self, method: str, event: Event) -> None:
        """Call an optional method. What it raises does not undo what it is told of."""
        call = getattr(self._object, method, None)
        if call is not None:
            try:
                call(event.tracepoint_name, event.system)
            except Exception as error:  # noqa: BLE001 - as in flush
                self._failed(method, error)

    def _failed(self, method: str, error: Exception) -> None:
        self.failures += 1
        if method not in self._logged:
            self._logged.add(method)
            logger.warning(
                "plug-in %s: %s raised %r; its further failures are only counted", self.name, method, error
            )


class Plugins:
    """All plug-ins; the files below `consumers/` are made from this (tree/consumer_files.py).

    entry_points: where plug-ins are looked up; called for every question, so that one that is installed while
    the daemon runs is found.
    """

    def __init__(
        self,
        table: EventTable,
        *,
        entry_points: Callable[[], Iterable[metadata.EntryPoint]] | None = None,
        max_pending: int = MAX_PENDING,
    ) -> None:
        self._table = table
        self._entry_points = entry_points or Installed()
        self._max_pending = max_pending
        self._used: dict[str, Plugin] = {}

    def names(self) -> list[str]:
        """Every plug-in that is installed or in use, sorted; nothing is loaded for that."""
        return sorted(
            {point.name for point in self._entry_points() if _usable(point.name)} | self._used.keys()
        )

    def get(self, name: str) -> Plugin:
        """The plug-in `name`, not loaded yet. TraceError(ENOENT) when there is none."""
        plugin = self._used.get(name)
        if plugin is None:
            found = [point for point in self._entry_points() if point.name == name and _usable(name)]
            if not found:
                there = ", ".join(self.names()) or "none"
                raise TraceError(errno.ENOENT, f"no plug-in is called {name!r}; installed: {there}")
            plugin = self._used[name] = Plugin(name, found[0].load, self._table, self._max_pending)
        return plugin

    def attach(self, name: str, event: Event) -> None:
        """Attach plug-in `name` to `event`. TraceError: ENOENT (no such plug-in), EIO (it cannot be loaded),
        ENODEV."""
        self.get(name).attach(event)

    def detach(self, name: str, event: Event, now_ns: int) -> None:
        """Detach plug-in `name` from `event`. TraceError(ENOENT): no such plug-in."""
        self.get(name).detach(event, now_ns)

    def attached(self, name: str) -> list[Event]:
        """What plug-in `name` is attached to, in the order of attaching."""
        return self.get(name).events()

    def report(self, name: str) -> str:
        """The plug-in's own text. TraceError: ENOENT, EIO (it cannot be loaded, or its report fails)."""
        return self.get(name).report()

    def flush(self) -> None:
        """Hand every plug-in what waits for it; after each pump of the daemon, and before anything reads the
        tree."""
        for plugin in self._used.values():
            plugin.flush()

    def close(self, now_ns: int) -> None:
        """Hand over the rest and detach everything."""
        for plugin in self._used.values():
            for event in plugin.events():
                plugin.detach(event, now_ns)


class Installed:
    """The entry points of every distribution that this interpreter finds.

    Reading them takes tens of milliseconds where much is installed, so they are kept as long as no folder of
    sys.path has changed.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[str, int]] | None = None
        self._points: tuple[metadata.EntryPoint, ...] = ()

    def __call__(self) -> Iterable[metadata.EntryPoint]:
        now = [(folder, _changed_ns(folder)) for folder in sys.path]
        if now != self._seen:
            self._points = tuple(metadata.entry_points(group=ENTRY_POINT_GROUP))
            self._seen = now
        return self._points


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _usable(name: str) -> bool:
    """Whether a directory below consumers/ can have this name, and `stats` a line that is not taken for
    another's."""
    return (
        bool(name) and name not in (".", "..", "ftrace") and not set("/: ") & set(name) and name.isprintable()
    )
