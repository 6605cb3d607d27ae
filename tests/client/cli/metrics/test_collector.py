"""Numbers of a daemon and of forwarders."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.client.cli.kit import Cli
from tests.client.daemons.fake_daemon import wait_for
from utracefs.cli.metrics.collector import DAEMON, RESOURCES, Collector, read_daemon_stats
from utracefs.cli.metrics.families import FAMILIES, Metrics
from utracefs.tree.tracefs import Tracefs
from utracefsd.machine.shares import LIMITS


@pytest.fixture
def collector(traced: Cli) -> Collector:
    return Collector(traced.env["UTRACEFS_DIR"], max_events=2)


def test_every_line_of_the_daemon_is_known(traced: Cli) -> None:
    """A resource or number that is new in the daemon gets its metric."""
    assert {str(resource) for resource in LIMITS} <= set(RESOURCES)
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        lines = tree.read_file("daemon_stats").decode().splitlines()
    names = {line.partition(":")[0] for line in lines if not line.startswith(" ")}
    assert names - {*DAEMON, *RESOURCES} == {"pid", "streams", "time of the daemon lately, in ms"}
    assert {*DAEMON, *RESOURCES} <= names


def test_a_daemon_with_events(traced: Cli, collector: Collector) -> None:
    with utracefs.Session(traced.env["UTRACEFS_DIR"]) as session:
        event = session.event('quo"te u32 n')
        wait_for(lambda: not event)
        traced.run("enable", 'quo"te')
        for number in range(5):
            event.emit(number)
        assert session.flush(60)
        metrics = collector.collect()
    label = 'user_events:quo"te'
    assert metrics.get("utracefs_up") == 1
    assert metrics.get("utracefs_event_emitted_records_total", label) == 5
    assert metrics.get("utracefs_event_emitted_bytes_total", label) == 20
    assert metrics.get("utracefs_event_records_total", label, "recorded") == 5
    assert metrics.get("utracefs_event_records_total", label, "lost") == 0
    assert metrics.get("utracefs_ring_buffer_records", "") == 5
    assert (metrics.get("utracefs_ring_buffer_used_bytes", "") or 0) > 5 * 12
    assert metrics.get("utracefs_events_enabled") == 1
    assert metrics.get("utracefs_resource_used", "connections") == 1
    assert metrics.get("utracefs_data_rings") == 1
    assert metrics.get("utracefs_daemon_restarts_total") == 0
    assert abs((metrics.get("utracefs_daemon_start_time_seconds") or 0) - time.time()) < 3600
    text = metrics.text().decode()
    for name in FAMILIES:
        assert name in text or name.startswith("utracefs_forward_"), name
    assert '{event="user_events:quo\\"te",outcome="recorded"} 5.0\n' in text


def test_instances_but_those_of_commands(traced: Cli, collector: Collector) -> None:
    for name in ("mine", "record-123"):
        traced.run("instance", "create", name)
    text = collector.collect().text()
    assert b'utracefs_tracing_on{ftrace_instance="mine"} 1' in text
    assert b"record-123" not in text


def emit(cli: Cli, name: str, number: int) -> None:
    for _ in range(number):
        cli.run("emit", name)


def test_the_sum_of_other_events_does_not_fall(traced: Cli, collector: Collector) -> None:
    def other() -> float | None:
        return collector.collect().get("utracefs_event_emitted_records_total", "other")

    for name in "abcd":
        traced.run("reg", name)
    traced.run("enable", "user_events:*")
    emit(traced, "c", 2)
    emit(traced, "d", 1)
    assert other() == 3
    emit(traced, "c", 1)
    assert other() == 4
    assert (
        Collector(traced.env["UTRACEFS_DIR"], max_events=9)
        .collect()
        .get("utracefs_event_emitted_records_total", "user_events:c")
        == 3
    )
    traced.run("disable", "c")
    traced.run("reg", "--delete", "c")
    metrics = collector.collect()
    assert metrics.get("utracefs_event_emitted_records_total", "other") == 4
    assert metrics.get("utracefs_events_summed") == 1
    traced.run("reg", "c")
    traced.run("enable", "c")
    emit(traced, "c", 1)
    assert other() == 5


def test_without_a_daemon(cli: Cli) -> None:
    done = cli.run("metrics", status=1)
    assert b"\nutracefs_up 0.0\n" in done.stdout
    assert done.stdout.endswith(b"# EOF\n")
    assert b"start one with `utracefs daemon`" in done.stderr


def test_a_stopped_daemon(
    traced: Cli, daemon: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes soon, and says so."""
    daemon.send_signal(signal.SIGSTOP)
    try:
        with monkeypatch.context() as patched:
            patched.setattr("utracefs.cli.metrics.collector.ANSWER_S", 0.1)
            metrics = collector.collect()
    finally:
        daemon.send_signal(signal.SIGCONT)
    assert metrics.get("utracefs_up") == 0
    assert "does not answer within 0.1 s; is it stopped?" in collector.why
    assert collector.collect().get("utracefs_up") == 1
    assert not collector.why


def test_lines_of_users_and_unknown_ones_are_skipped() -> None:
    metrics = Metrics()
    text = (
        "events: 7 of 8\n  user 1: 4 of 4\n  refused: 5\n  refused to user 1: 2\n"
        "new thing: 7 of 8\n  refused: 9\nfaults: 3 of 4\nfaults: many\nnothing\n"
    )
    read_daemon_stats(text, metrics)
    assert metrics.get("utracefs_refusals_total", "events") == 5
    assert metrics.get("utracefs_daemon_faults_total") is None
    assert b"9" not in metrics.text()


def of_spool(folder: Path, cli: Cli) -> Metrics:
    return Collector(cli.env["XDG_RUNTIME_DIR"], max_events=2, spools=[str(folder)]).collect()


def test_a_forwarder(tmp_path: Path, cli: Cli) -> None:
    status = {
        "records_read": 10,
        "records_sent": 7,
        "lost": {"user_events:a": {"spool full": 1}, "b": {"x": 1}, "c": {"x": 1}, "d": {"x": 4}},
        "lost_unknown": 2,
        "spool_bytes": 4096,
        "spool_size": 1 << 20,
        "lag_s": 1.5,
        "last_error": "",
    }
    (tmp_path / "status.json").write_text(json.dumps(status))
    metrics, spool = of_spool(tmp_path, cli), str(tmp_path)
    assert metrics.get("utracefs_forward_up", spool) == 1
    assert metrics.get("utracefs_forward_read_records_total", spool) == 10
    assert metrics.get("utracefs_forward_sent_records_total", spool) == 7
    assert metrics.get("utracefs_forward_lost_records_total", spool, "user_events:a", "spool full") == 1
    assert metrics.get("utracefs_forward_lost_records_total", spool, "other", "x") == 5
    assert metrics.get("utracefs_forward_unknown_losses_total", spool) == 2
    assert metrics.get("utracefs_forward_spool_limit_bytes", spool) == 1 << 20
    assert metrics.get("utracefs_forward_lag_seconds", spool) == 1.5
    assert metrics.get("utracefs_forward_failing", spool) == 0
    assert metrics.get("utracefs_forward_status_age_seconds", spool) is not None


@pytest.mark.parametrize(
    "text",
    [None, b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"lost": ' + b" " * (1 << 20) + b"{}}"],
)
def test_no_status_of_a_forwarder(text: bytes | None, tmp_path: Path, cli: Cli) -> None:
    if text is not None:
        (tmp_path / "status.json").write_bytes(text)
    assert of_spool(tmp_path, cli).get("utracefs_forward_up", str(tmp_path)) == 0


def test_a_status_with_other_values(tmp_path: Path, cli: Cli) -> None:
    text = '{"records_read": "7", "spool_bytes": NaN, "lag_s": -1, "records_sent": true, "lost": {"a": 1}}'
    (tmp_path / "status.json").write_text(text)
    metrics = of_spool(tmp_path, cli)
    assert metrics.get("utracefs_forward_up", str(tmp_path)) == 1
    assert b"records" not in metrics.text() and b"lag" not in metrics.text()


def test_a_fifo_in_place_of_a_status(tmp_path: Path, cli: Cli) -> None:
    os.mkfifo(tmp_path / "status.json")
    assert of_spool(tmp_path, cli).get("utracefs_forward_up", str(tmp_path)) == 0
