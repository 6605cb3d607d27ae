"""`utracefs forward otlp://...` with a real agent between.

Collectors that fail, are slow or away, and ends of forwarder and daemon: tests/client/forward,
tests/client/cli/forward and test_away.py.
"""

from __future__ import annotations

import importlib.util
import socket
import subprocess
from pathlib import Path

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.otlp_server import Collector, collecting
from tests.integration.forward.conftest import WAIT_S, Start, stop
from tests.judges import LEFT_OUT
from utracefs import Session

RECORDS = 20_000


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_through_a_real_agent(session: Session, forward: Start, tmp_path: Path) -> None:
    """rotel passes on what it accepts in requests of this size."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        pytest.skip(LEFT_OUT + "rotel")
    collector, agent_port = Collector(), free_port()
    with collecting(collector) as port, (tmp_path / "rotel.log").open("wb") as log:
        words = ["start", "--otlp-http-endpoint", f"127.0.0.1:{agent_port}", "--exporter", "otlp"]
        words += ["--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--otlp-exporter-protocol", "http"]
        words += ["--otlp-exporter-endpoint", f"http://127.0.0.1:{port}"]
        agent = subprocess.Popen([Path(spec.origin).with_name("rotel-agent"), *words], stdout=log, stderr=log)
        try:
            forwarder = forward(f"otlp://127.0.0.1:{agent_port}", "-e", "work*")
            event = session.event("work u32 n; __rel_loc char[] text")
            wait_for(lambda: event.registered and event, WAIT_S)
            for n in range(RECORDS):
                event.emit(n, f"text {n}")
            assert session.flush(WAIT_S)
            wait_for(
                lambda: collector.arrived["work"] >= RECORDS,
                WAIT_S,
                what=lambda: (collector.arrived, (tmp_path / "rotel.log").read_text()),
            )
            stop(forwarder)
        finally:
            agent.terminate()
            agent.wait(WAIT_S)
    assert collector.arrived == {"work": RECORDS}
    assert not collector.lost
