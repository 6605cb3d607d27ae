"""All metrics; prometheus_client writes their text.

Names follow Prometheus' conventions: base units, `_total` for counters, which never fall while the daemon
runs.
"""

from collections.abc import Iterator
from typing import Final

import attrs
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics


@attrs.frozen
class Family:
    """A metric: all its time series."""

    name: str
    """Name of the metric; a counter's ends in `_total`."""
    help: str
    labels: tuple[str, ...] = ()


_E: Final = ("event",)
_B: Final = ("ftrace_instance",)
_S: Final = ("spool",)

FAMILIES: Final = {
    family.name: family
    for family in (
        Family("utracefs_up", "Whether the daemon answered; without an answer most metrics are missing."),
        Family("utracefs_build_info", "Version of the command that reads these numbers.", ("version",)),
        Family("utracefs_daemon_start_time_seconds", "Start of the daemon, since 1970."),
        Family("utracefs_daemon_restarts_total", "Daemons that took over the state of the one before."),
        Family("utracefs_daemon_cpu_seconds_total", "CPU time of the daemon."),
        Family("utracefs_daemon_resident_memory_bytes", "Memory of the daemon, with shared memory."),
        Family("utracefs_daemon_faults_total", "Unexpected errors in the daemon; its log has them."),
        Family("utracefs_state_bytes", "Memory of the daemon's files, ring buffers included."),
        Family("utracefs_state_free_bytes", "Free space beside these files, usually in /dev/shm."),
        Family("utracefs_events", "Declared events."),
        Family("utracefs_events_enabled", "Declared events that have a consumer."),
        Family("utracefs_events_summed", 'Events without series of their own, in event="other".'),
        Family("utracefs_event_emitted_records_total", "Records emitted while a consumer was attached.", _E),
        Family(
            "utracefs_event_emitted_bytes_total",
            "Payload bytes of emitted records, without the ones lost in data rings.",
            _E,
        ),
        Family(
            "utracefs_event_records_total",
            "Outcomes of emitted records, one for each consumer: recorded, filtered, lost.",
            ("event", "outcome"),
        ),
        Family(
            "utracefs_event_lost_records_total",
            "Records that no consumer could get: data_ring, refused.",
            ("event", "cause"),
        ),
        Family(
            "utracefs_unknown_event_lost_records_total",
            "Records lost in data rings, of events beyond a program's first 4095.",
        ),
        Family("utracefs_tracing_on", "Whether the ring buffer records.", _B),
        Family("utracefs_ring_buffer_size_bytes", "Size of the ring buffer, all cpus together.", _B),
        Family("utracefs_ring_buffer_used_bytes", "Bytes of unread records.", _B),
        Family("utracefs_ring_buffer_records", "Unread records.", _B),
        Family("utracefs_ring_buffer_read_records_total", "Records taken by readers.", _B),
        Family(
            "utracefs_ring_buffer_lost_records_total",
            "Records overwritten before they were read, or dropped because the buffer was full.",
            ("ftrace_instance", "cause"),
        ),
        Family(
            "utracefs_lost_records_ratio",
            "Share of records that a consumer lost since the daemon's start: 0 to 1.",
        ),
        Family(
            "utracefs_ring_buffer_late_records_total",
            "Records that came after later ones of their cpu and have the time of those.",
            _B,
        ),
        Family("utracefs_data_rings", "Data rings of programs."),
        Family("utracefs_data_rings_unkept", "Data rings that are lost if their program ends in a restart."),
        Family("utracefs_data_rings_missing", "Data rings that did not come back after a restart."),
        Family("utracefs_connections_waiting", "Connections that are not accepted yet."),
        Family("utracefs_connections_refused_total", "Connections of programs that were turned away."),
        Family("utracefs_descriptors_closing", "Descriptors of programs that are being closed."),
        Family("utracefs_idle_events_removed_total", "Idle events that gave way to new ones."),
        Family("utracefs_synthetic_records_unsure", "Synthetic records that the last restart may have lost."),
        Family("utracefs_resource_used", "How much of a limited resource all users hold.", ("resource",)),
        Family("utracefs_resource_limit", "The limit of the resource for all users.", ("resource",)),
        Family("utracefs_refusals_total", "Requests refused because of a limit.", ("resource",)),
        Family("utracefs_forward_up", "Whether the forwarder's status could be read.", _S),
        Family("utracefs_forward_status_age_seconds", "Time since the forwarder wrote its status.", _S),
        Family("utracefs_forward_read_records_total", "Records that the forwarder has read.", _S),
        Family("utracefs_forward_sent_records_total", "Records that the target has accepted.", _S),
        Family(
            "utracefs_forward_lost_records_total",
            "Records that were lost before they could be sent.",
            ("spool", "event", "cause"),
        ),
        Family("utracefs_forward_unknown_losses_total", "Times that an unknown number was lost.", _S),
        Family("utracefs_forward_spool_bytes", "Bytes of batches in the spool.", _S),
        Family("utracefs_forward_spool_limit_bytes", "Its maximum.", _S),
        Family("utracefs_forward_lag_seconds", "Age of the oldest batch that is not sent.", _S),
        Family("utracefs_forward_failing", "Whether the status has an error of target or disk.", _S),
        Family("utracefs_scrape_duration_seconds", "Time that reading these numbers took."),
    )
}
"""By name, in the order of output."""


class Metrics:
    """Values of one scrape; a collector for a registry of prometheus_client."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        """labels: values of the family's labels."""
        assert len(labels) == len(FAMILIES[name].labels), name
        self._values.setdefault(name, {})[labels] = value

    def get(self, name: str, *labels: str) -> float | None:
        return self._values.get(name, {}).get(labels)

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for them. Families without values are left out."""
        for family in FAMILIES.values():
            if values := self._values.get(family.name):
                kind = CounterMetricFamily if family.name.endswith("_total") else GaugeMetricFamily
                metric = kind(family.name, family.help, labels=family.labels)
                for labels, value in values.items():
                    metric.add_metric(labels, value)
                yield metric

    def text(self, *, is_new: bool = True) -> bytes:
        """OpenMetrics 1.0, or the older format, of promtool and of node_exporter's textfile collector."""
        registry = CollectorRegistry()
        registry.register(self)
        text: bytes = (openmetrics if is_new else exposition).generate_latest(registry)
        return text


def label_of(text: str) -> str:
    """A name as the value of a label: a backslash, and all that is not printable or not UTF-8, becomes an
    escape sequence of Python. Different names stay different."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        c if c.isprintable() and c != "\\" else c.encode("unicode_escape").decode("ascii") for c in text
    )
