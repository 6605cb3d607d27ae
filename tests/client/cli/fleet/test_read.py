"""`utracefs fleet stream` and `record`: records of forwarders, on a real nats-server."""

from __future__ import annotations

import itertools
import json
import select
import signal
from pathlib import Path
from typing import Any

import attrs

from tests.client.cli.kit import Cli
from tests.client.forward.kit import EVENT, batch, record
from tests.client.nats.server import WAIT_S, NatsServer
from tests.judges import library
from utracefs.forward.losses import Loss
from utracefs.forward.target import Settings, open_target

library("pyarrow")


def send(server: NatsServer, host: str, values: list[int], sequence: int = 1, **more: Any) -> None:
    target = open_target(f"nats://127.0.0.1:{server.port}/RECORDS", Settings({"max_bytes": "100M"}, WAIT_S))
    try:
        one = attrs.evolve(batch(values), host=host, forwarder=f"f-{host}", sequence=sequence, **more)
        assert not target.send([one])
    finally:
        target.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_stored(operator: Cli, server: NatsServer, tmp_path: Path) -> None:
    send(server, "web1", [1, 2])
    send(server, "web2", [3], losses=[Loss(EVENT, "ring", 7), Loss("*", "away", None)])
    path = tmp_path / "all.jsonl"
    said = operator.run("fleet", "record", "--stored", "-o", str(path), "RECORDS").stderr.decode()
    assert said == ("utracefs: 3 records of 2 hosts, 7 reported as lost, and 1 times an unknown number\n")
    found = lines(path)
    assert [(one["host"], one["fields"]["a"]) for one in found] == [("web1", 1), ("web1", 2), ("web2", 3)]
    assert list(found[0]) == ["host", "time_ns", "cpu", "pid", "tid", "comm", "system", "name", "fields"]
    assert found[0]["name"] == EVENT.partition(":")[2]
    assert found[0]["time_ns"] == 10**18 + 1000


def test_times_that_programs_invent(operator: Cli, server: NatsServer, tmp_path: Path) -> None:
    body = b"".join(record(1, time_ns=time_ns) for time_ns in (1000, 2**63 - 1, 2**64 - 1))
    send(server, "web1", [1, 1, 1], body=body)
    path = tmp_path / "all.jsonl"
    operator.run("fleet", "record", "--stored", "-o", str(path), "RECORDS")
    assert [one["time_ns"] for one in lines(path)] == [10**18 + 1000, None, None]


def test_selected(operator: Cli, server: NatsServer, tmp_path: Path) -> None:
    send(server, "web1", [1])
    send(server, "db1", [2])
    path = tmp_path / "some.jsonl"
    operator.out("fleet", "record", "--stored", "-o", str(path), "--host", "web*", "RECORDS")
    assert [one["host"] for one in lines(path)] == ["web1"]
    operator.out("fleet", "record", "--stored", "-o", str(path), "RECORDS", "other_*")
    assert lines(path) == []


def test_what_arrives(operator: Cli, server: NatsServer) -> None:
    """Not what was there before."""
    send(server, "web1", [0])
    process = operator.start("fleet", "stream", "RECORDS")
    assert process.stdout is not None
    for sequence in itertools.count(2):  # until it listens
        send(server, "web1", [sequence], sequence)
        if select.select([process.stdout], [], [], 0.1)[0]:
            break
        assert sequence < 500
    line = json.loads(process.stdout.readline())
    assert 2 <= line["fields"]["a"] <= sequence
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0


def test_mistakes(operator: Cli, server: NatsServer) -> None:
    (operator.home / "old.jsonl").write_text("x")
    operator.fails("fleet", "record", "-o", "old.jsonl", "NOSUCH")
    assert (operator.home / "old.jsonl").read_text() == "x"
    assert "NOSUCH: there is no such stream" in operator.fails("fleet", "stream", "NOSUCH")
