"""Histograms as OTLP metrics, as opentelemetry-proto reads them."""

from __future__ import annotations

from typing import Any

from tests.client.forward.otlp_server import attributes, metrics_service
from utracefs.forward.otlp import Encoder
from utracefs.forward.otlp_metrics import MAX_POINTS, Counted
from utracefs.tree.histogram import Entry, Histogram

START_NS = 1_700_000_000_000_000_000
NOW_NS = START_NS + 10**9


def encoded(*counted: Counted) -> dict[str, Any]:
    """Metrics by name; parts of one are put together."""
    found: dict[str, Any] = {}
    for request in Encoder({"service.name": "shop"}).metrics("web1", "boot", counted, NOW_NS):
        assert (request.path, request.counts) == ("v1/metrics", {})
        assert request.items <= MAX_POINTS
        (resource,) = metrics_service.ExportMetricsServiceRequest.FromString(request.body).resource_metrics
        assert attributes(resource.resource) == {
            "service.name": "shop",
            "host.name": "web1",
            "utracefs.boot_id": "boot",
        }
        (scope,) = resource.scope_metrics
        assert scope.scope.name == "utracefs"
        for metric in scope.metrics:
            if metric.name in found:
                found[metric.name].MergeFrom(metric)
            else:
                found[metric.name] = metric
    return found


def counted(trigger: str, *entries: Entry, dropped: int = 0, signed: frozenset[str] = frozenset()) -> Counted:
    hits = sum(int(one.values.get("hitcount", 0)) for one in entries)
    return Counted("work", Histogram(trigger, False, entries, hits, dropped), START_NS, signed)


def test_sums() -> None:
    trigger = "hist:keys=status,path:vals=hitcount,usec,delta:sort=hitcount:size=2048"
    found = encoded(
        counted(
            trigger,
            Entry({"status": 200, "path": "/\udcff"}, {"hitcount": 3, "usec": 2**63, "delta": -5}),
            Entry({"status": -1, "path": ""}, {"hitcount": 1, "usec": 7, "delta": 1}),
            dropped=9,
            signed=frozenset({"delta"}),
        )
    )
    assert sorted(found) == ["work.delta", "work.dropped", "work.hitcount", "work.usec"]
    assert [one.sum.is_monotonic for _, one in sorted(found.items())] == [False, True, True, True]
    for metric in found.values():
        assert metric.sum.aggregation_temporality == 2  # AGGREGATION_TEMPORALITY_CUMULATIVE
        for point in metric.sum.data_points:
            assert (point.start_time_unix_nano, point.time_unix_nano) == (START_NS, NOW_NS)
            assert attributes(point)["utracefs.trigger"] == trigger
    hits = found["work.hitcount"]
    assert hits.unit == "{record}"
    assert [point.as_int for point in hits.sum.data_points] == [3, 1]
    assert attributes(hits.sum.data_points[1]) == {"status": -1, "path": "", "utracefs.trigger": trigger}
    assert [point.as_double for point in found["work.usec"].sum.data_points] == [2.0**63, 0]
    assert [point.as_int for point in found["work.delta"].sum.data_points] == [-5, 1]
    assert [point.as_int for point in found["work.dropped"].sum.data_points] == [9]


def test_log2() -> None:
    trigger = "hist:keys=status,usec.log2:vals=hitcount,usec,size:sort=hitcount:size=2048"
    found = encoded(
        counted(
            trigger,
            Entry({"status": 200, "usec": "2^3"}, {"hitcount": 3, "usec": 20, "size": 1}),
            Entry({"status": 200, "usec": "2^5"}, {"hitcount": 1, "usec": 30, "size": 2}),
            Entry({"status": 500, "usec": "2^0"}, {"hitcount": 4, "usec": 4, "size": 3}),
        )
    )
    assert sorted(found) == ["work.dropped", "work.size", "work.usec"]
    told = found["work.usec"].histogram
    assert told.aggregation_temporality == 2
    ok, failed = told.data_points
    assert attributes(ok) == {"status": 200, "utracefs.trigger": trigger}
    assert (ok.count, ok.sum) == (4, 50.0)
    # (4, 8]: 3, (16, 32]: 1
    assert list(ok.explicit_bounds) == [4, 8, 16, 32]
    assert list(ok.bucket_counts) == [0, 3, 0, 1, 0]
    assert list(failed.explicit_bounds) == [1]
    assert list(failed.bucket_counts) == [4, 0]
    assert [attributes(one)["usec"] for one in found["work.size"].sum.data_points] == ["2^3", "2^5", "2^0"]
    (alone,) = encoded(counted("hist:keys=usec.log2", Entry({"usec": "2^64"}, {"hitcount": 1})))[
        "work.usec"
    ].histogram.data_points
    assert not alone.HasField("sum") and list(alone.explicit_bounds) == [2.0**63, 2.0**64]


def test_large_and_empty_ones() -> None:
    many = [Entry({"a": n}, {"hitcount": 1}) for n in range(2 * MAX_POINTS + 1)]
    found = encoded(counted("hist:keys=a", *many))
    assert len(found["work.hitcount"].sum.data_points) == len(many)
    assert list(encoded(counted("hist:keys=a"))) == ["work.dropped"]
    assert encoded() == {}
