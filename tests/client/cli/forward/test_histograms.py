"""Histograms of a daemon, sent to a collector."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.kit import Cli
from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.otlp_server import Collector, attributes, collecting
from utracefs import Session

WAIT_S = 30


def points(collector: Collector, at: int = -1) -> dict[str, Any]:
    """Name to data points, of one request."""
    found = {}
    (resource,) = [one[2] for one in collector.requests if one[0] == "/v1/metrics"][at].resource_metrics
    for metric in resource.scope_metrics[0].metrics:
        found[metric.name] = list(metric.sum.data_points or metric.histogram.data_points)
    return found


@pytest.mark.parametrize("is_hidden", [False, True])
def test_a_histogram(traced: Cli, tmp_path: Path, is_hidden: bool) -> None:
    collector = Collector()
    policy = tmp_path / "policy.toml"
    hidden = '[fields."*"]\nusec = "redact"\n' if is_hidden else ""
    policy.write_text('events = ["user_events:work"]\n' + hidden)
    with Session(traced.env["UTRACEFS_DIR"]) as session, collecting(collector) as port:
        work, other = session.event("work u32 status; u32 usec"), session.event("other u32 status")
        assert session.flush(20)
        path = "events/user_events/work/trigger"
        for file, text in ((path, "hist:keys=status"), (path, "hist:keys=usec.log2:vals=usec")):
            traced.run("write", "-a", file, text)
        traced.run("write", "-a", "events/user_events/other/trigger", "hist:keys=status")
        words = ["forward", f"otlp://127.0.0.1:{port}", "-o", "metrics=1", "-e", "none"]
        words += ["--policy", str(policy), "--spool", str(tmp_path / "spool")]
        before_ns = time.time_ns()
        forwarder = traced.start(*words)
        try:
            wait_for(lambda: work and other, WAIT_S)
            for usec in (1, 5, 8):
                work.emit(200, usec)
                other.emit(1)
            assert session.flush(20)
            wait_for(lambda: collector.requests and points(collector)["work.hitcount"][0].as_int == 3, WAIT_S)
            first = points(collector)
            traced.run("write", "-a", path, "hist:keys=status:clear")
            work.emit(500, 1)
            assert session.flush(20)
        finally:
            forwarder.send_signal(signal.SIGTERM)
            _, told = forwarder.communicate(timeout=WAIT_S)
        assert forwarder.returncode == 0, told
    last = points(collector)
    assert ("work.usec" in first) == (not is_hidden)
    assert not any(name.startswith("other") for name in (*first, *last))
    (begun,), (again,) = first["work.hitcount"], last["work.hitcount"]
    assert attributes(begun)["status"] == 200
    assert (again.as_int, attributes(again)["status"]) == (1, 500)
    assert before_ns < begun.start_time_unix_nano < begun.time_unix_nano <= again.start_time_unix_nano
    if not is_hidden:
        (usec,) = last["work.usec"]
        assert list(usec.explicit_bounds) == [1, 2, 4, 8] and list(usec.bucket_counts) == [2, 0, 0, 2, 0]
        assert (usec.count, usec.sum) == (4, 15)
