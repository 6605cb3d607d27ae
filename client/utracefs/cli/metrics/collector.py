"""Reads the numbers of a daemon, and of forwarders, into Metrics.

The daemon counts everything already, in the files `daemon_stats`, and `stats` of events and of cpus. Each
scrape connects anew, so it finds the next daemon by itself.
"""

import json
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import utracefs
from utracefs.cli import Failure, error_text
from utracefs.cli.common import EventStats, available_events, buffer_numbers, connect, event_stats
from utracefs.cli.instance_option import TOP, Place, instance_names
from utracefs.cli.look.status import buffer_state, users_of
from utracefs.cli.losses import all_lost
from utracefs.cli.metrics.families import Metrics, label_of
from utracefs.tree.tracefs import Tracefs

ANSWER_S: Final = 5.0
"""Timeout for all answers of the daemon; a scrape of Prometheus lasts 10 s at most."""

MAX_INSTANCES: Final = 16
"""Instances with series of their own."""

OTHER: Final = "other"
"""The label `event` of the sum of the remaining events; no event has this name."""

OTHER_INSTANCES: Final = "/others"
"""The label `ftrace_instance` of the losses in the remaining instances, such as those of recorders; no
instance has this name."""

MAX_STATUS_BYTES: Final = 1 << 20

DAEMON: Final = {
    "faults": ("utracefs_daemon_faults_total", 1),
    "started, ms since 1970": ("utracefs_daemon_start_time_seconds", 1000),
    "restarts that took over the state": ("utracefs_daemon_restarts_total", 1),
    "cpu time, in ms": ("utracefs_daemon_cpu_seconds_total", 1000),
    "resident memory, in bytes": ("utracefs_daemon_resident_memory_bytes", 1),
    "memory of the state's files, in bytes": ("utracefs_state_bytes", 1),
    "free for the state's files, in bytes": ("utracefs_state_free_bytes", 1),
    "data rings": ("utracefs_data_rings", 1),
    "data rings that nobody keeps": ("utracefs_data_rings_unkept", 1),
    "data rings gone with their records, unknown how many": ("utracefs_data_rings_missing", 1),
    "records lost of unknown events": ("utracefs_unknown_event_lost_records_total", 1),
    "synthetic events that may be lost with the daemon before": ("utracefs_synthetic_records_unsure", 1),
    "idle events gone for want of room": ("utracefs_idle_events_removed_total", 1),
    "descriptors to be closed": ("utracefs_descriptors_closing", 1),
    "connections to be accepted": ("utracefs_connections_waiting", 1),
    "connections refused": ("utracefs_connections_refused_total", 1),
}
"""Line of `daemon_stats`: metric, and the divisor to its unit."""

RESOURCES: Final = {
    "connections to the data socket": "connections",
    "connections to the tree": "tree_connections",
    "descriptors of the daemon": "descriptors",
    "bytes of messages that are incomplete or not read": "message_bytes",
    "events": "events",
    "fields of large events": "fields",
    "ids of removed events with records": "old_ids",
    "registrations of events": "registrations",
    "enable words": "enable_words",
    "pages of enable words, mapped by the daemon": "enable_word_pages",
    "bytes of data rings": "data_ring_bytes",
    "data rings that the service manager keeps": "stored_data_rings",
}
"""Line of `daemon_stats`: the label `resource`."""

_LINE: Final = re.compile(r"(?P<name>.+?): (?P<held>\d+)(?: of (?P<limit>\d+))?")
_STREAMS: Final = re.compile(r"streams: (\d+) of (\d+), (\d+) of (\d+) bytes")
_OF_A_PROCESS: Final = re.compile(r"-\d+$")
"""Names of private instances of commands, `record-1234`: each would be a new series."""

EVENT_METRICS: Final = (
    ("utracefs_event_emitted_records_total",),
    ("utracefs_event_emitted_bytes_total",),
    ("utracefs_event_lost_records_total", "refused"),
    ("utracefs_event_lost_records_total", "data_ring"),
    ("utracefs_event_records_total", "recorded"),
    ("utracefs_event_records_total", "filtered"),
    ("utracefs_event_records_total", "lost"),
)
"""Metric, and label behind the event, of each number of `_numbers`."""

_Numbers = tuple[int, ...]


class Collector:
    """directory: of the daemon's sockets. max_events: the oldest so many events have series of their own.
    spools: folders of forwarders.

    The same object for many scrapes keeps the sum of the other events from falling when one of them is
    removed.
    """

    def __init__(
        self,
        directory: str | None,
        *,
        max_events: int,
        spools: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._max_events = max_events
        self._spools = spools
        self._clock = clock
        self.why = ""
        """Why the daemon did not answer the last scrape."""
        self._daemon: object = None
        self._seen: dict[str, _Numbers] = {}
        self._other = [0] * len(EVENT_METRICS)
        self._buffers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Ring buffers without series of their own, at the last scrape."""
        self._elsewhere: Counter[str] = Counter()
        """Their losses since the first scrape, also of removed ones."""

    def collect(self) -> Metrics:
        """One scrape; raises nothing for a missing or silent daemon."""
        began_s = self._clock()
        metrics = Metrics()
        try:
            self._collect_daemon(metrics, began_s + ANSWER_S)
            metrics.set("utracefs_up", 1)
            self.why = ""
        except (Failure, OSError) as error:
            self.why = error_text(error)
        if self.why:
            metrics = Metrics()
            metrics.set("utracefs_up", 0)
        metrics.set("utracefs_build_info", 1, utracefs.__version__)
        for spool in self._spools:
            _collect_spool(metrics, spool, self._max_events)
        metrics.set("utracefs_scrape_duration_seconds", round(self._clock() - began_s, 6))
        return metrics

    def _collect_daemon(self, metrics: Metrics, until_s: float) -> None:
        with connect(self._directory, hello_s=ANSWER_S) as tree:

            def limited() -> Tracefs:
                tree.set_timeout(max(0.01, until_s - self._clock()))
                return tree

            read_daemon_stats(limited().read_file("daemon_stats").decode("utf-8", "replace"), metrics)
            daemon = metrics.get("utracefs_daemon_start_time_seconds")
            stats = self._collect_events(metrics, limited, daemon)
            names = instance_names(limited())
            apart = [name for name in names if not _OF_A_PROCESS.search(name)][:MAX_INSTANCES]
            buffers = {}
            for place in (TOP, *map(Place, names)):
                try:
                    buffers[place.name] = buffer_numbers(limited(), place)
                    if place == TOP or place.name in apart:
                        _collect_buffer(metrics, limited(), place)
                except FileNotFoundError:  # removed meanwhile
                    if place == TOP:
                        raise
            others = {name: found for name, found in buffers.items() if name and name not in apart}
            for key, cause in (("overrun", "overwritten"), ("dropped events", "dropped")):
                gained = (max(0, one[key] - self._buffers[name][key]) for name, one in others.items())
                self._elsewhere[cause] += sum(gained)
                lost = self._elsewhere[cause]
                metrics.set("utracefs_ring_buffer_lost_records_total", lost, OTHER_INSTANCES, cause)
            self._buffers = defaultdict(Counter, others)
            lost_now, of = all_lost(stats, buffers)
            metrics.set("utracefs_lost_records_ratio", round(sum(lost_now.values()) / max(1, of), 6))

    def _collect_events(
        self, metrics: Metrics, tree: Callable[[], Tracefs], daemon: object
    ) -> Iterable[EventStats]:
        events = available_events(tree())
        users = users_of(tree())
        texts = tree().read_files(f"{event.directory}/stats" for event in events)
        stats = {
            label_of(str(event)): event_stats(text)
            for event, text in zip(events, texts, strict=True)
            if isinstance(text, bytes)  # else it was removed meanwhile
        }
        found = {label: _numbers(one) for label, one in stats.items()}
        metrics.set("utracefs_events", len(events))
        metrics.set("utracefs_events_enabled", sum(bool(users.get(event.name)) for event in events))
        metrics.set("utracefs_events_summed", max(0, len(found) - self._max_events))
        if daemon != self._daemon:
            self._daemon, self._seen, self._other = daemon, {}, [0] * len(EVENT_METRICS)
            self._buffers.clear()
            self._elsewhere.clear()
        for i, (label, numbers) in enumerate(found.items()):
            if i < self._max_events:
                _set_event(metrics, label, numbers)
            else:
                self._add_to_other(numbers, self._seen.get(label))
        if len(found) > self._max_events or any(self._other):
            _set_event(metrics, OTHER, self._other)
        self._seen = found
        return stats.values()

    def _add_to_other(self, numbers: _Numbers, before: _Numbers | None) -> None:
        """Add what was counted since the last scrape; all, if the event was declared anew."""
        if before is None or any(now < then for now, then in zip(numbers, before, strict=True)):
            before = (0,) * len(numbers)
        for i, (now, then) in enumerate(zip(numbers, before, strict=True)):
            self._other[i] += now - then


def _numbers(stats: EventStats) -> _Numbers:
    """In the order of EVENT_METRICS."""
    outcomes = [sum(counts[name] for counts in stats.consumers.values()) for name in _OUTCOMES]
    return (stats.emitted, stats.emitted_bytes, sum(stats.refused.values()), stats.lost_in_rings, *outcomes)


_OUTCOMES: Final = [labels[0] for name, *labels in EVENT_METRICS if name == "utracefs_event_records_total"]


def _set_event(metrics: Metrics, event: str, numbers: Sequence[int]) -> None:
    for (name, *labels), number in zip(EVENT_METRICS, numbers, strict=True):
        metrics.set(name, number, event, *labels)


def read_daemon_stats(text: str, metrics: Metrics) -> None:
    """Unknown lines are skipped, also those of single users: they would be a series for each."""
    resource = ""
    for line in text.splitlines():
        if streams := _STREAMS.fullmatch(line):
            used, most, used_bytes, most_bytes = map(int, streams.groups())
            _set_resource(metrics, "streams", used, most)
            _set_resource(metrics, "stream_bytes", used_bytes, most_bytes)
        elif found := _LINE.fullmatch(line):
            name, held = found["name"], int(found["held"])
            if name == "  refused" and resource:
                metrics.set("utracefs_refusals_total", held, resource)
            elif name in DAEMON and found["limit"] is None:
                family, divisor = DAEMON[name]
                metrics.set(family, held if divisor == 1 else held / divisor)
            elif not name.startswith(" ") and found["limit"] is not None:
                resource = RESOURCES.get(name, "")
                if resource:
                    _set_resource(metrics, resource, held, int(found["limit"]))


def _set_resource(metrics: Metrics, resource: str, used: int, limit: int) -> None:
    metrics.set("utracefs_resource_used", used, resource)
    metrics.set("utracefs_resource_limit", limit, resource)
    if resource not in ("streams", "stream_bytes", "tree_connections"):  # their refusals are not counted
        metrics.set("utracefs_refusals_total", 0, resource)


def _collect_buffer(metrics: Metrics, tree: Tracefs, place: Place) -> None:
    state = buffer_state(tree, place)
    size_kb = int(tree.read_file(place.path("buffer_total_size_kb")).split()[0])
    label = label_of(place.name)
    for name, value in (
        ("utracefs_tracing_on", int(state["tracing_on"])),
        ("utracefs_ring_buffer_size_bytes", size_kb << 10),
        ("utracefs_ring_buffer_used_bytes", state["bytes"]),
        ("utracefs_ring_buffer_records", state["entries"]),
        ("utracefs_ring_buffer_read_records_total", state["read"]),
        ("utracefs_ring_buffer_late_records_total", state["late"]),
    ):
        metrics.set(name, value, label)
    metrics.set("utracefs_ring_buffer_lost_records_total", state["overrun"], label, "overwritten")
    metrics.set("utracefs_ring_buffer_lost_records_total", state["dropped"], label, "dropped")


def _collect_spool(metrics: Metrics, folder: str, max_events: int) -> None:
    """The file `status.json` of a forwarder, which replaces it atomically."""
    spool = label_of(folder)
    try:
        fd = os.open(os.path.join(folder, "status.json"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            status = json.loads(file.read(MAX_STATUS_BYTES))
            age_s = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
    except (OSError, ValueError, RecursionError):
        status = None
    if not isinstance(status, dict):
        metrics.set("utracefs_forward_up", 0, spool)
        return
    metrics.set("utracefs_forward_up", 1, spool)
    metrics.set("utracefs_forward_status_age_seconds", round(age_s, 3), spool)
    for member, name in (
        ("records_read", "utracefs_forward_read_records_total"),
        ("records_sent", "utracefs_forward_sent_records_total"),
        ("lost_unknown", "utracefs_forward_unknown_losses_total"),
        ("spool_bytes", "utracefs_forward_spool_bytes"),
        ("spool_size", "utracefs_forward_spool_limit_bytes"),
        ("lag_s", "utracefs_forward_lag_seconds"),
    ):
        if _is_number(status.get(member)):
            metrics.set(name, status[member], spool)
    metrics.set("utracefs_forward_failing", int(bool(status.get("last_error"))), spool)
    by_event = status.get("lost")
    sums: dict[tuple[str, str], Any] = {}
    for i, (event, causes) in enumerate(by_event.items() if isinstance(by_event, dict) else ()):
        shown = label_of(event) if i < max_events else OTHER
        for cause, count in causes.items() if isinstance(causes, dict) else ():
            if _is_number(count):
                key = (shown, label_of(cause))
                sums[key] = sums.get(key, 0) + count
    for (event, cause), count in sums.items():
        metrics.set("utracefs_forward_lost_records_total", count, spool, event, cause)


def _is_number(value: object) -> bool:
    """Finite, and not below 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")
