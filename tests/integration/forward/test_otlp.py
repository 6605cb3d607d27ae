"""`utracefs forward otlp://...` between real processes: a real agent, a collector that is killed, slow, away;
forwarder and daemon killed. Counted at the sink."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.forward.otlp_server import Collector, collecting
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess
from tests.integration.forward.conftest import WAIT_S
from tests.judges import LEFT_OUT
from utracefs import Session

RECORDS = 20_000


def wait_for(condition: Callable[[], Any], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class ForwardProcess:
    """`utracefs forward`, to be killed and started again."""

    def __init__(self, daemon: DaemonProcess, port: int, spool: Path, *words: str) -> None:
        self.words = ["--dir", daemon.directory, "forward", f"otlp://127.0.0.1:{port}", "--spool", str(spool)]
        self.words += ["-e", "work*", *words]
        self.spool = spool
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def status(self) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError):
            found: dict[str, Any] = json.loads((self.spool / "status.json").read_text())
            return found
        return {"attached": False, "records_read": 0}

    def start(self) -> None:
        (self.spool / "status.json").unlink(missing_ok=True)
        self.process = Popen([sys.executable, "-m", "utracefs.cli", *self.words], stderr=subprocess.PIPE)
        wait_for(lambda: self.status["attached"], lambda: "it is not attached")

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def stop(self) -> bytes:
        assert self.process is not None
        self.process.terminate()
        _, log = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0, log
        return log


@pytest.fixture
def forwarding(daemon: DaemonProcess, tmp_path: Path) -> Iterator[Callable[..., ForwardProcess]]:
    made: list[ForwardProcess] = []

    def forwarding(port: int, *words: str) -> ForwardProcess:
        made.append(ForwardProcess(daemon, port, tmp_path / "spool", *words))
        made[-1].start()
        return made[-1]

    yield forwarding
    for one in made:
        if one.process is not None and one.process.poll() is None:
            one.kill()


def emit(session: Session, count: int) -> None:
    event = session.event("work u32 n; __rel_loc char[] text")
    wait_for(lambda: event, lambda: "the event is off")
    for n in range(count):
        event.emit(n, f"text {n}")
    assert session.flush(WAIT_S)


def test_through_a_real_agent(
    session: Session, forwarding: Callable[..., ForwardProcess], tmp_path: Path
) -> None:
    """rotel passes on what it accepts in requests of this size."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        pytest.skip(LEFT_OUT + "rotel")
    collector, agent_port = Collector(), free_port()
    with collecting(collector) as port:
        with (tmp_path / "rotel.log").open("wb") as log:
            words = ["start", "--otlp-http-endpoint", f"127.0.0.1:{agent_port}"]
            words += ["--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--exporter", "otlp"]
            words += [
                "--otlp-exporter-protocol",
                "http",
                "--otlp-exporter-endpoint",
                f"http://127.0.0.1:{port}",
            ]
            agent = subprocess.Popen(
                [str(Path(spec.origin).with_name("rotel-agent")), *words], stdout=log, stderr=log
            )
        try:
            forward = forwarding(agent_port)
            emit(session, RECORDS)
            wait_for(lambda: forward.status.get("records_sent") == RECORDS, lambda: forward.status)
            wait_for(
                lambda: collector.arrived["work"] >= RECORDS,
                lambda: (collector.arrived, (tmp_path / "rotel.log").read_text()),
            )
            forward.stop()
        finally:
            agent.terminate()
            agent.wait(WAIT_S)
    assert collector.arrived == {"work": RECORDS}
    assert not collector.lost


def test_a_collector_that_fails_at_random(
    session: Session, forwarding: Callable[..., ForwardProcess]
) -> None:
    rnd = random.Random(3)
    collector = Collector()

    def answer(_path: str, _message: Any) -> Any:
        kind = rnd.choice(["good", "busy", "refused", "closed"])
        if kind == "closed":
            raise ConnectionError
        return {"busy": (503, {"Retry-After": "0"}, b""), "refused": (400, {}, b"")}.get(kind)

    collector.answer = answer
    with collecting(collector) as port:
        forward = forwarding(port, "--drain", str(WAIT_S))
        emit(session, RECORDS)
        wait_for(lambda: len(collector.requests) > 2, lambda: forward.status)
        collector.answer = lambda _path, _message: None
        forward.stop()
    assert collector.arrived["work"] + collector.lost.total() == RECORDS
    assert set(collector.lost) <= {("user_events:work", "refused")}


def test_a_collector_that_is_away_while_the_forwarder_is_killed(
    session: Session, forwarding: Callable[..., ForwardProcess]
) -> None:
    collector, port = Collector(), free_port()
    forward = forwarding(port)
    for count in (1, 2, 3):
        emit(session, 1000)
        wait_for(lambda: forward.status["records_read"] == 1000, lambda: forward.status)
        forward.kill()
        if count < 3:
            forward.start()
    with collecting(collector, port=port):
        forward.start()
        wait_for(lambda: collector.arrived["work"] >= 3000, lambda: (collector.arrived, forward.status))
        forward.stop()
    assert collector.arrived == {"work": 3000}
    assert not collector.lost


def test_the_daemon_is_killed(
    daemon: DaemonProcess, session: Session, forwarding: Callable[..., ForwardProcess]
) -> None:
    """Records that the forwarder has not seen are reported as an unknown number of the event."""
    collector = Collector()
    with collecting(collector) as port:
        forward = forwarding(port)
        emit(session, 1000)
        wait_for(lambda: collector.arrived["work"] == 1000, lambda: collector.arrived)
        daemon.stop(kill=True)
        daemon.start()
        event = session.event("work u32 n; __rel_loc char[] text")
        wait_for(lambda: event, lambda: "the event is off")
        emit(session, 1000)
        wait_for(lambda: ("user_events:work", "away") in collector.lost, lambda: collector.lost)
        forward.stop()
    assert 1000 < collector.arrived["work"] <= 2000


def test_a_slow_collector_and_a_small_spool(
    session: Session, forwarding: Callable[..., ForwardProcess]
) -> None:
    collector = Collector()
    collector.answer = lambda _path, _message: time.sleep(0.2)
    with collecting(collector) as port:
        forward = forwarding(port, "--spool-size", "1M", "--drain", str(WAIT_S))
        emitted = 0
        while not forward.status.get("lost"):
            emit(session, RECORDS)
            emitted += RECORDS
        collector.answer = lambda _path, _message: None
        forward.stop()
    assert collector.arrived["work"] + collector.lost.total() == emitted
    assert collector.lost["user_events:work", "spool"] > 0
