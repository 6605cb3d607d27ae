"""examples/monitoring: the real Prometheus scrapes the listener; rules and dashboard fit the metrics."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import utracefs
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from tests.judges import judge, run_judge
from utracefs.cli.metrics.families import FAMILIES, label_of
from utracefs_protocol.text import text_of

FOLDER = Path(__file__).parents[3] / "examples" / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
PROMETHEUS_OWN = {"up"}
Eventually = Callable[[Callable[[], object], str, float], None]


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\butracefs_\w+", text))


def test_the_dashboard() -> None:
    """The members that Grafana needs, panels that do not overlap, and metrics that exist."""
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and DASHBOARD["title"] == "utracefs"
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
        assert panel["type"] in ("stat", "timeseries") and panel["title"] and panel["datasource"]["uid"]
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert metrics_in(json.dumps(DASHBOARD)) <= set(FAMILIES)


def test_the_rules() -> None:
    run_judge("promtool", "check", "rules", FOLDER / "utracefs.rules.yml")
    run_judge("promtool", "test", "rules", FOLDER / "tests.yml")
    run_judge("promtool", "check", "config", FOLDER / "prometheus.yml")
    text = (FOLDER / "utracefs.rules.yml").read_text()
    assert metrics_in(text.replace("`utracefs_", "")) <= set(FAMILIES)
    assert text.count("- alert:") == 5


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def listener(directory: str, *options: str) -> Iterator[tuple[str, int]]:
    process = Popen(
        [
            sys.executable,
            "-m",
            "utracefs.cli",
            "--dir",
            directory,
            "metrics",
            "--listen",
            "127.0.0.1:0",
            *options,
        ],
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        found = re.search(rb"http://127\.0\.0\.1:(\d+)/metrics", process.stderr.readline())
        assert found
        yield found[0].decode(), int(found[1])
    finally:
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


class Prometheus:
    """A server that scrapes every second."""

    def __init__(self, folder: Path, target: int) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        config = (FOLDER / "prometheus.yml").read_text()
        config = config.replace("127.0.0.1:9847", f"127.0.0.1:{target}").replace("15s", "1s")
        config = config.replace("utracefs.rules.yml", str(FOLDER / "utracefs.rules.yml"))
        (folder / "prometheus.yml").write_text(f"global: {{evaluation_interval: 1s}}\n{config}")
        self.log = open(folder / "log", "w+b")  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [
                judge("prometheus"),
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={self.url.removeprefix('http://')}",
            ],
            stdout=self.log,
            stderr=self.log,
        )

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self.log.close()

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; None while it starts."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return json.load(answer)["data"]
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError) and error.code != 503:
                raise AssertionError(error.read()) from error
            return None

    def values(self, query: str) -> dict[str, float]:
        """Values of an instant query, by the label `event`, or all others."""
        data = self.get("query", query=query)
        return {
            one["metric"].get("event", str(one["metric"])): float(one["value"][1])
            for one in (data or {"result": []})["result"]
        }


@pytest.fixture
def prometheus(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Prometheus]:
    judge("prometheus")
    with listener(daemon.directory, "--spool", str(tmp_path / "spool")) as (_, port):
        server = Prometheus(tmp_path, port)
        try:
            yield server
        finally:
            server.end()


NAMES = [b'quo"te', rb"back\slash", rb"back\xffslash", b"back\xffslash", "é{}".encode(), b"a,b=c"]


def test_prometheus_scrapes_it(
    prometheus: Prometheus, daemon: DaemonProcess, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "spool").mkdir()
    status = {"records_read": 3, "records_sent": 2, "lost": {'a"': {"full": 1}}, "spool_bytes": 1, "lag_s": 0}
    (tmp_path / "spool" / "status.json").write_text(json.dumps(status))
    with utracefs.Session(daemon.directory) as session, daemon.tree() as tree:
        events = [session.event(f"{text_of(name)} u32 n") for name in NAMES]
        active = f"Active: {len(NAMES)}\n".encode()
        eventually(lambda: active in tree.read_file("user_events_status"), "they are registered", 60)
        tree.write_file("events/user_events/enable", b"1\n")
        eventually(lambda: all(events), "they are on", 60)
        for number, event in enumerate(events):
            for _ in range(number + 1):
                event.emit(7)
        assert session.flush(60)
        wanted = {f"user_events:{label_of(text_of(name))}": i + 1.0 for i, name in enumerate(NAMES)}
        eventually(
            lambda: prometheus.values("utracefs_event_emitted_records_total") == wanted, "it has all", 60
        )
        (target,) = prometheus.get("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")

        def rules() -> list[dict[str, Any]]:
            return [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]

        eventually(lambda: [rule["health"] for rule in rules()] == ["ok"] * 5, "rules run", 60)
        assert {rule.get("lastError", "") for rule in rules()} == {""}
        for expression in expressions():
            query = expression.replace("$instance", ".*").replace("$__rate_interval", "1m")
            eventually(lambda query=query: prometheus.values(query), query, 60)  # type: ignore[misc]
    daemon.stop(kill=True)
    eventually(lambda: list(prometheus.values("utracefs_up").values()) == [0], "the daemon is down", 60)
    daemon.start()
    eventually(
        lambda: list(prometheus.values("utracefs_daemon_restarts_total").values()) == [1], "it is back", 60
    )
    prometheus.log.seek(0)
    assert b"level=error" not in prometheus.log.read()
    assert b"level=warn" not in prometheus.log.read()
