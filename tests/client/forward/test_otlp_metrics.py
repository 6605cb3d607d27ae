"""Histograms as OTLP metrics, as opentelemetry-proto reads them."""

from __future__ import annotations

import contextlib
from typing import Any

from tests.client.forward.otlp_server import Answer, Collector, attributes, collecting, metrics_service
from utracefs.forward.otlp import Encoder, OtlpTarget
from utracefs.forward.otlp_metrics import MAX_POINTS, Counted
from utracefs.forward.target import Settings
from utracefs.tree.histogram import Entry, Histogram

START_NS = 1_700_000_000_000_000_000
NOW_NS = START_NS + 10**9


def encoded(*counted: Counted) -> dict[str, Any]:
    """Metrics by scope and name; parts of one are put together, names in user_events are short."""
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
        for scope in resource.scope_metrics:
            assert scope.scope.name in ("user_events", "synthetic")
            for metric in scope.metrics:
                found.setdefault(f"{scope.scope.name}:{metric.name}", type(metric)()).MergeFrom(metric)
    for metric in found.values():
        points = metric.sum.data_points or metric.histogram.data_points
        # One point for each identity.
        assert len({str(sorted(attributes(point).items())) for point in points}) == len(points)
    return {name.removeprefix("user_events:"): metric for name, metric in found.items()}


def counted(
    trigger: str,
    *entries: Entry,
    dropped: int = 0,
    signed: frozenset[str] = frozenset(),
    system: str = "user_events",
) -> Counted:
    hits = sum(int(one.values.get("hitcount", 0)) for one in entries)
    return Counted(system, "work", Histogram(trigger, False, entries, hits, dropped), START_NS, signed)


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
    assert sorted(found) == ["work.delta.sum", "work.dropped", "work.hitcount", "work.usec.sum"]
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
    assert [point.as_double for point in found["work.usec.sum"].sum.data_points] == [2.0**63, 0]
    assert [point.as_int for point in found["work.delta.sum"].sum.data_points] == [-5, 1]
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
    assert sorted(found) == ["work.dropped", "work.size.sum", "work.usec"]
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
    assert [attributes(one)["usec"] for one in found["work.size.sum"].sum.data_points] == [
        "2^3",
        "2^5",
        "2^0",
    ]
    (alone,) = encoded(counted("hist:keys=usec.log2", Entry({"usec": "2^64"}, {"hitcount": 1})))[
        "work.usec"
    ].histogram.data_points
    assert not alone.HasField("sum") and list(alone.explicit_bounds) == [2.0**63, 2.0**64]


def test_negative_numbers_are_in_the_lowest_bucket() -> None:
    """The kernel has them in 2^64."""
    signed = frozenset({"delta"})

    def buckets(**hits: int) -> tuple[list[float], list[int]]:
        entries = [
            Entry({"delta": f"2^{power[1:]}"}, {"hitcount": n, "delta": -1}) for power, n in hits.items()
        ]
        found = encoded(counted("hist:keys=delta.log2:vals=hitcount,delta", *entries, signed=signed))
        (point,) = found["work.delta"].histogram.data_points
        assert point.count == sum(hits.values()) and not point.HasField("sum")
        return list(point.explicit_bounds), list(point.bucket_counts)

    assert buckets(_64=5, _3=2) == ([4, 8], [5, 2, 0])
    assert buckets(_64=5, _0=1, _1=2) == ([1, 2], [6, 2, 0])
    assert buckets(_64=5) == ([1], [5, 0])


def test_entries_with_the_same_attributes_are_added_up() -> None:
    entries = [Entry({"s": text, "us": "2^1"}, {"hitcount": 2, "n": 3}) for text in ("\udcff", "\udcfe", "a")]
    sums = encoded(counted("hist:keys=s,us:vals=hitcount,n", *entries))
    assert [point.as_int for point in sums["work.hitcount"].sum.data_points] == [4, 2]
    assert [point.as_int for point in sums["work.n.sum"].sum.data_points] == [6, 3]
    found = encoded(counted("hist:keys=s,us.log2:vals=hitcount,n", *entries))
    assert [point.count for point in found["work.us"].histogram.data_points] == [4, 2]


def test_a_field_that_is_two_keys_has_no_buckets() -> None:
    for keys in ("us.log2,us.buckets=10", "us,us.log2"):
        entries = [Entry({"us": "0-9"}, {"hitcount": 2})]
        assert sorted(encoded(counted(f"hist:keys={keys}:vals=hitcount", *entries))) == [
            "work.dropped",
            "work.hitcount",
        ]


def test_events_of_one_name_in_two_systems() -> None:
    one, other = (
        counted("hist:keys=a", Entry({"a": 1}, {"hitcount": n}), system=system)
        for n, system in ((1, "user_events"), (2, "synthetic"))
    )
    found = encoded(one, other)
    assert found["work.hitcount"].sum.data_points[0].as_int == 1
    assert found["synthetic:work.hitcount"].sum.data_points[0].as_int == 2


def test_requests_are_at_most_a_megabyte() -> None:
    trigger = "hist:keys=s if a == 1" + 200 * " || a == 1"
    many = counted(trigger, *(Entry({"s": f"{n:0200}"}, {"hitcount": 1}) for n in range(MAX_POINTS)))
    sizes = [len(one.body) for one in Encoder().metrics("web1", "boot", [many, many], NOW_NS)]
    assert sum(sizes) > 4 << 20 and (1 << 20) - 4096 < max(sizes) <= 1 << 20
    assert len(encoded(many)["work.hitcount"].sum.data_points) == MAX_POINTS


def test_too_large_requests_are_halved() -> None:
    collector = Collector()

    def answer(_path: str, message: Any) -> Answer | None:
        is_large = len(str(message)) > 9000
        return (413, {}, b"") if is_large else None

    collector.answer = answer
    many = counted("hist:keys=a", *(Entry({"a": n}, {"hitcount": 1}) for n in range(100)))
    with (
        collecting(collector) as port,
        contextlib.closing(OtlpTarget(f"otlp://127.0.0.1:{port}", Settings())) as target,
    ):
        assert target.send_metrics("web1", "boot", [many], NOW_NS) == ""
    found = {
        attributes(point)["a"]
        for _, _, message in collector.requests
        for metric in message.resource_metrics[0].scope_metrics[0].metrics
        for point in metric.sum.data_points
        if metric.name == "work.hitcount"
    }
    assert found == {*range(100)}


def test_a_refused_request_does_not_stop_the_others() -> None:
    """And data points that the collector drops are reported."""
    collector = Collector()
    partial = metrics_service.ExportMetricsServiceResponse()
    partial.partial_success.rejected_data_points = 7
    answers: dict[int, Answer] = {0: (400, {}, b""), 1: (200, {}, partial.SerializeToString())}
    asked: list[Any] = []

    def answer(_path: str, message: Any) -> Answer | None:
        asked.append(message)
        return answers.get(len(asked) - 1)

    collector.answer = answer
    many = counted("hist:keys=a", *(Entry({"a": n}, {"hitcount": 1}) for n in range(2 * MAX_POINTS)))
    with (
        collecting(collector) as port,
        contextlib.closing(OtlpTarget(f"otlp://127.0.0.1:{port}", Settings())) as target,
    ):
        assert target.send_metrics("web1", "boot", [many], NOW_NS) == f"7 of {MAX_POINTS} data points"
        assert len(asked) == 3
        assert target.send_metrics("web1", "boot", [many], NOW_NS) == ""
