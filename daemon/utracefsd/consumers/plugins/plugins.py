"""Plug-ins: consumers of other distributions, attached by name.

A distribution declares an entry point of the group `utracefs.consumers`:

    [project.entry-points."utracefs.consumers"]
    count = "utracefs_count:Counter"

and the daemon has `consumers/count/set_event` and `consumers/count/report`. Nothing is imported until an
administrator attaches the plug-in or reads its report, so a broken one does no harm while unused.

    record ──> StreamProbe, one per event ──> ring of the plug-in ──> its thread: take(batch), take_raw(batch)

A plug-in cannot affect the record path, nor block the daemon, in whose thread its code never runs: records
that do not fit into its ring while it is busy are lost and counted. (One that holds the GIL in C for long
delays everything. Python's threads switch every sys.getswitchinterval(), which `main` makes short.) A `take`
that raises loses its batch, counted as lost; the plug-in stays attached and gets the next batch. The first
failure of each of its methods is logged in one line, the others are only counted; so are batches that take
longer than SLOW_S.
"""

import errno
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from importlib import metadata
from typing import Any, Final, TypeVar

import attrs

from utracefs_protocol.errors import TraceError
from utracefs_protocol.events._fields import Fields
from utracefs_protocol.events.event_format import distinct_fields
from utracefs_protocol.limits import STREAM_RING_SIZE
from utracefs_protocol.pages._stream_ring import StreamRing
from utracefsd.consumers.plugins.contract import (
    ENTRY_POINT_GROUP,
    ConsumerError,
    Known,
    RawBatch,
    is_consumer,
)
from utracefsd.consumers.stream._sink import StreamProbe, StreamSink
from utracefsd.daemon_log import daemon_log
from utracefsd.events.event import Event
from utracefsd.events.event_table import EventTable

SLOW_S: Final = 0.05
"""A batch that takes a plug-in longer than this is logged."""

_BELLS: Final = 4096

T = TypeVar("T")


@attrs.frozen
class _Job:
    """A function to be called by the thread when it is at this position of the ring."""

    position: int
    do: Callable[[], Any]
    done: Future[Any] = attrs.field(factory=Future)

    def run(self) -> None:
        try:
            self.done.set_result(self.do())
        except Exception as error:  # noqa: BLE001 - the Future raises it
            self.done.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - also for sys.exit(): no thread ends
            self.done.set_exception(RuntimeError(f"it raised {error!r}"))


class Worker:
    """Reads the ring of `sink` in a thread of its own and calls `take` for each batch, which must not raise.
    `close` ends it.

    slow: called, in that thread or by `look`, with the seconds that a batch took, or has taken so far; once
    for each such batch.
    """

    def __init__(
        self,
        name: str,
        sink: StreamSink,
        take: Callable[[StreamRing], None],
        slow: Callable[[float], None],
        now_ns: Callable[[], int],
    ) -> None:
        self.sink = sink
        self._ring = StreamRing(sink.memory_fd)
        self._bell = os.dup(sink.bell_fd)
        self._take = take
        self._slow = slow
        self._now_ns = now_ns
        self._jobs: deque[_Job] = deque()
        self._busy_since: int | None = None
        self._is_reported = False
        self._telling = threading.Lock()
        """Held briefly: decides which of the two threads reports a batch."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, do: Callable[[], T]) -> Future[T]:
        """Call `do` in the thread, after all records that are in the ring now."""
        self.sink.publish()
        job = _Job(self.sink.position, do)
        self._jobs.append(job)
        self.sink.ring_bell()
        return job.done

    def look(self) -> None:
        """Report a batch that has already taken too long."""
        if self._busy_since is not None:
            with self._telling:
                self._tell_if_slow()

    def close(self, timeout_s: float) -> bool:
        """Close the sink after the last posted jobs, and wait for the thread. False: it is still busy."""
        self.sink.close()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        try:
            over = False
            while not over:
                poll.poll()
                over = not os.read(self._bell, _BELLS)
                self._work()
        finally:
            self._ring.close()
            os.close(self._bell)

    def _work(self) -> None:
        """Take everything that is there now."""
        while True:
            head = self._ring.head  # before looking for the job: records of later posts are behind it
            job = self._jobs[0] if self._jobs else None
            if self._ring.next_batch(head if job is None else min(head, job.position)):
                if self._ring.records:
                    self._take_batch()
            elif job is not None and self._ring.position >= job.position:
                self._jobs.popleft()
                job.run()
            else:
                return

    def _take_batch(self) -> None:
        with self._telling:
            self._is_reported = False
            self._busy_since = self._now_ns()
        self._take(self._ring)
        with self._telling:
            self._tell_if_slow()
            self._busy_since = None

    def _tell_if_slow(self) -> None:
        since = self._busy_since
        if since is not None and not self._is_reported and (took := (self._now_ns() - since) / 1e9) > SLOW_S:
            self._is_reported = True
            self._slow(took)


LOAD_S = 2.0
REPORT_S = 0.25
CLOSE_S = 1.0
"""How long an operation waits for a plug-in to load, report or end."""


@attrs.define(eq=False)
class Plugin:
    """One plug-in of the daemon: its object, made at the first use, and its events."""

    name: str
    _load: Callable[[], Any]
    _table: EventTable
    _now_ns: Callable[[], int]
    _options: dict[str, str] = attrs.Factory(dict)
    failures: int = 0
    """Calls of the plug-in that raised."""
    slow: int = 0
    """Batches that took longer than SLOW_S."""
    _object: Any = None
    _worker: Worker | None = None
    _loading: Future[Any] | None = None
    _probes: dict[Event, StreamProbe] = attrs.Factory(dict)
    _known: dict[int, Known] = attrs.Factory(dict)
    """By event id: properties of events for records that the thread reads now."""
    _taken: dict[int, StreamProbe] = attrs.Factory(dict)
    """Their probes, which count."""
    _logged: set[str] = attrs.Factory(set)

    def attach(self, event: Event) -> None:
        """Already attached is success. ConsumerError: EIO when the plug-in cannot be loaded, EBUSY when that
        takes long."""
        if event in self._probes:
            return
        worker = self._ready()
        known = Known(event.tracepoint_name, event.system, Fields(distinct_fields(event.declaration.fields)))
        probe = StreamProbe(worker.sink, self.name, event.id, bytes)

        def begin() -> None:
            self._known[event.id] = known
            self._taken[event.id] = probe
            self._tell("attached", event)

        worker.post(begin)
        self._table.attach(event, probe)
        self._probes[event] = probe

    def detach(self, event: Event) -> None:
        """Hand over waiting records, then detach; not attached is success."""
        probe = self._probes.get(event)
        if probe is None or self._worker is None:
            return
        self.drain(SLOW_S)  # so that its counts are final
        del self._probes[event]
        self._table.detach(event, probe)
        self._worker.post(lambda: self._tell("detached", event))

    def events(self) -> list[Event]:
        """Its events, in the order of attaching."""
        return list(self._probes)

    def flush(self) -> None:
        """Publish new records to its thread."""
        if self._worker is not None:
            self._worker.sink.publish()
            self._worker.look()

    def drain(self, timeout_s: float) -> bool:
        """Wait until it has taken all records; returns whether it has."""
        return self._worker is None or bool(wait([self._worker.post(lambda: None)], timeout_s).done)

    def report(self) -> str:
        """Its report; empty when it makes none. ConsumerError: EIO when that fails, EBUSY after REPORT_S."""
        worker = self._ready()
        make = getattr(self._object, "report", None)
        if make is None:
            return ""
        try:
            return worker.post(lambda: str(make())).result(REPORT_S)
        except TimeoutError:
            raise ConsumerError(
                errno.EBUSY, f"plug-in {self.name} is busy; ask for its report again"
            ) from None
        except Exception as error:
            self._failed("report", error)
            raise ConsumerError(errno.EIO, f"plug-in {self.name}: report failed: {error!r}") from error

    def close(self) -> None:
        """Hand over the rest, detach everything, end."""
        worker = self._worker
        if worker is None:
            return
        for event in self.events():
            self.detach(event)
        close = getattr(self._object, "close", None)
        if close is not None:
            worker.post(lambda: self._call("close", close))
        self._worker = self._loading = self._object = None
        if not worker.close(CLOSE_S):
            daemon_log("plugin-left", plugin=self.name)

    def _ready(self) -> Worker:
        """Its thread, after making its object. ConsumerError: EIO, EBUSY."""
        if self._worker is None:
            try:
                sink = StreamSink(STREAM_RING_SIZE)
            except OSError as error:
                raise ConsumerError(error.errno or errno.ENOMEM, f"no ring: {error.strerror}") from error
            self._worker = Worker(f"plug-in {self.name}", sink, self._take, self._note_slow, self._now_ns)
        if self._object is None:
            if self._loading is None:
                self._loading = self._worker.post(self._make)
            try:
                self._object = self._loading.result(LOAD_S)
            except TimeoutError:
                raise ConsumerError(errno.EBUSY, f"plug-in {self.name} is being loaded; try again") from None
            except Exception as error:
                self._loading = None
                worker, self._worker = self._worker, None
                worker.close(CLOSE_S)
                if isinstance(error, ConsumerError):
                    raise
                raise ConsumerError(errno.EIO, f"plug-in {self.name} cannot be loaded: {error!r}") from error
        return self._worker

    def _make(self) -> Any:
        made = self._load()()
        if not is_consumer(made):
            raise ConsumerError(errno.EIO, f"plug-in {self.name} has no method take(batch)")
        start = getattr(made, "start", None)
        if start is not None:
            start(self._options)
        elif self._options:
            raise ConsumerError(errno.EIO, f"plug-in {self.name} takes no options: it has no method start")
        return made

    def _take(self, ring: StreamRing) -> None:
        """In its thread: hand over a batch."""
        batch = RawBatch(ring, self._known)
        take_raw = getattr(self._object, "take_raw", None)
        try:
            if take_raw is not None:
                take_raw(batch)
            else:
                self._object.take(list(batch))
        except BaseException as error:  # noqa: BLE001 - a plug-in may raise anything, SystemExit included
            for id_, count in ring.counts().items():
                self._taken[id_].fail(count)
            self._failed("take", error)

    def _note_slow(self, took_s: float) -> None:
        self.slow += 1
        if "slow" not in self._logged:
            self._logged.add("slow")
            daemon_log("plugin-slow", plugin=self.name, took_ms=took_s * 1000)

    def _tell(self, method: str, event: Event) -> None:
        """Call an optional method of the plug-in. Its exception is counted and has no other effect."""
        call = getattr(self._object, method, None)
        if call is not None:
            self._call(method, lambda: call(event.tracepoint_name, event.system))

    def _call(self, method: str, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - as in _take
            self._failed(method, error)

    def _failed(self, method: str, error: BaseException) -> None:
        self.failures += 1
        if method not in self._logged:
            self._logged.add(method)
            daemon_log("plugin-failed", plugin=self.name, method=method, error=error)


@attrs.define(eq=False)
class Plugins:
    """All plug-ins."""

    _table: EventTable
    _now_ns: Callable[[], int]
    _entry_points: Callable[[], Iterable[metadata.EntryPoint]]
    """Returns the installed ones; called at each use: one may be installed while the daemon runs."""
    _options: Mapping[str, Mapping[str, str]] = attrs.Factory(dict)
    """By plug-in, the argument of its `start`."""
    _used: dict[str, Plugin] = attrs.Factory(dict)

    def names(self) -> list[str]:
        """Every plug-in that is installed or in use, sorted; loads nothing."""
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
            options = dict(self._options.get(name, {}))
            plugin = self._used[name] = Plugin(name, found[0].load, self._table, self._now_ns, options)
        return plugin

    def flush(self) -> None:
        """Publish new records to every plug-in."""
        for plugin in self._used.values():
            plugin.flush()

    def close(self) -> None:
        """Hand over the rest, detach everything, and end all of them."""
        for plugin in self._used.values():
            plugin.close()


class Installed:
    """The entry points of every distribution that this interpreter finds.

    Reading them takes tens of milliseconds where much is installed, so they are cached until a folder of
    sys.path changes. names: of usable ones, None for all.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self._names = names
        self._seen: list[tuple[str, int]] | None = None
        self._points: tuple[metadata.EntryPoint, ...] = ()

    def __call__(self) -> Iterable[metadata.EntryPoint]:
        now = [(folder, _changed_ns(folder)) for folder in sys.path]
        if now != self._seen:
            points = metadata.entry_points(group=ENTRY_POINT_GROUP)
            self._points = tuple(p for p in points if self._names is None or p.name in self._names)
            self._seen = now
        return self._points


def _changed_ns(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _usable(name: str) -> bool:
    """Whether this can be the name of a directory below consumers/ and unambiguous in a line of `stats`."""
    return (
        bool(name) and name not in (".", "..", "ftrace") and not set("/: ") & set(name) and name.isprintable()
    )
