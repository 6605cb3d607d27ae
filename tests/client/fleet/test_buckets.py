"""examples/fleet/nats.conf on a real nats-server: what operators, hosts and readers may do."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.client.forward.kit import EVENT, batch
from tests.client.nats.server import WAIT_S, NatsServer, serving
from tests.judges import library
from utracefs.fleet.buckets import Fleet, connection_of
from utracefs.fleet.wish import Wish
from utracefs.forward.nats_messages import Reader
from utracefs.forward.target import Settings, open_target
from utracefs.nats.bucket import Value
from utracefs.nats.jetstream import JetStream

CONFIG = Path("examples/fleet/nats.conf").read_text()
WISH = Wish(("work",), 60).to_bytes()

As = Callable[[str], Fleet]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    for who in ("OPERATOR", "HOST", "READER"):
        monkeypatch.setenv(f"{who}_PASSWORD", f"secret-of-{who.lower()}")
    with serving(tmp_path / "nats", CONFIG) as server:
        yield server


@pytest.fixture
def as_(server: NatsServer, tmp_path: Path) -> Iterator[As]:
    made: list[Fleet] = []

    def as_(user: str) -> Fleet:
        path = tmp_path / "password"
        path.write_text(f"secret-of-{user.partition('-')[0]}\n")
        settings = Settings(timeout_s=3, secrets={"password": str(path)})
        fleet = Fleet(connection_of(f"nats://{user}@127.0.0.1:{server.port}", settings, user))
        fleet.connection.open()
        made.append(fleet)
        return fleet

    yield as_
    for fleet in made:
        fleet.close()


REFUSED = (PermissionError, TimeoutError)


def test_what_each_is_for(as_: As) -> None:
    operator, reader, host = map(as_, ("operator", "reader", "host"))
    operator.create()
    operator.create()
    operator.wishes.add("w", WISH)
    host.connection.close()
    host.watch_wishes()
    (value,) = host.wishes.values()
    assert value.data == WISH
    assert host.state(host.wishes).messages == 1
    assert abs(host.report("web1.example.org", b"{}") + 0) > 0
    assert host.connection.has_message(0) and not host.connection.has_message(0.1)
    operator.wishes.update("w", WISH, value.sequence)
    assert host.connection.has_message(20)
    for fleet in (operator, reader):
        assert [value.key for value in fleet.hosts.values()] == ["web1=2Eexample=2Eorg"]
        assert [value.key for value in fleet.wishes.values()] == ["w"]
    operator.wishes.delete("w")
    assert [value.is_deleted for value in reader.wishes.values()] == [True]
    assert reader.wishes.present() == []


def test_a_host_that_reports_while_all_are_read_is_there_once(
    as_: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator, host, reader = map(as_, ("operator", "host", "reader"))
    operator.create()
    for name in ("web", "shop"):
        host.hosts.put(name, b"first")
    read = reader.hosts.values

    def values() -> Iterator[Value]:
        for value in read():
            yield value
            if value.key == "web" and value.data == b"first":
                host.hosts.put("web", b"second")

    monkeypatch.setattr(reader.hosts, "values", values)
    found = [(value.key, value.data) for value in reader.hosts.present()]
    assert found == [("web", b"second"), ("shop", b"first")]


def test_records_of_a_forwarder(as_: As, server: NatsServer, tmp_path: Path) -> None:
    library("pyarrow")
    path = tmp_path / "host"
    path.write_text("secret-of-host")
    target = open_target(
        f"nats://host-records@127.0.0.1:{server.port}/utracefs",
        Settings({"max_bytes": "1M"}, secrets={"password": str(path)}),
    )
    try:
        assert not target.send([attrs.evolve(batch(), forwarder="f", sequence=1)])
    finally:
        target.close()
    with Reader(JetStream(as_("reader-records").connection), "utracefs") as reader:
        assert (arrived := reader.next(WAIT_S)) is not None and arrived.counts == {EVENT: 2}


@pytest.mark.parametrize("user", ["host", "reader", "host-records", "reader-records"])
def test_nobody_else_writes_wishes(as_: As, user: str) -> None:
    operator, other = as_("operator"), as_(user)
    operator.create()
    operator.wishes.put("w", WISH)
    state = operator.state(operator.wishes)
    for act in (
        lambda: other.wishes.put("w", b"{}"),
        lambda: other.wishes.delete("w"),
        lambda: other.connection.request("$JS.API.STREAM.DELETE.KV_utracefs_wishes"),
        lambda: other.connection.request("$JS.API.STREAM.PURGE.KV_utracefs_wishes"),
        lambda: _copy(other, "KV_utracefs_hosts"),
    ):
        with pytest.raises(REFUSED):
            act()
    assert operator.state(operator.wishes) == state


def said(server: NatsServer, user: str, lines: str) -> bytes:
    """The server's answer to these lines of its protocol."""
    login = {"user": user, "pass": f"secret-of-{user.partition('-')[0]}", "headers": True, "verbose": False}
    with (
        socket.create_connection((server.address, server.port), WAIT_S) as sock,
        sock.makefile("rb") as file,
    ):
        sock.sendall(f"CONNECT {json.dumps(login)}\r\n{lines}PING\r\n".encode())
        return b"".join(iter(file.readline, b"PONG\r\n"))


STREAMS = {"KV_utracefs_wishes": "reader", "KV_utracefs_hosts": "reader", "utracefs": "reader-records"}
VERBS = (
    *(
        "INFO",
        "LIST",
        "NAMES",
        "ACCOUNT.PURGE.WISHES",
        "SERVER.REMOVE",
        "STREAM.LIST",
        "CONSUMER.LIST.*",
        "DIRECT.GET.*",
    ),
    *(
        f"STREAM.{verb}.*"
        for verb in ("INFO", "MSG.GET", "MSG.DELETE", "DELETE", "PURGE", "UPDATE", "CREATE")
    ),
    *("STREAM.SNAPSHOT.*", "STREAM.RESTORE.*", "STREAM.LEADER.STEPDOWN.*", "CONSUMER.CREATE.*"),
    *("CONSUMER.CREATE.*.x", "CONSUMER.DURABLE.CREATE.*.x", "CONSUMER.MSG.NEXT.*.x", "CONSUMER.DELETE.*.x"),
)


@pytest.mark.parametrize(
    ("user", "own"),
    [
        ("operator", "KV_utracefs_wishes"),
        ("host", "KV_utracefs_hosts"),
        ("host-records", "utracefs"),
        ("reader", ""),
        ("reader-records", ""),
    ],
)
def test_no_answer_of_the_server_gets_where_its_asker_may_not_publish(
    as_: As, server: NatsServer, tmp_path: Path, user: str, own: str
) -> None:
    """Neither by the reply subject of a request, nor by subjects in its body."""
    operator, host = as_("operator"), as_("host")
    operator.create()
    operator.wishes.put("w", WISH)
    host.report("web1", b"{}")
    records = JetStream(as_("host-records").connection)
    records.create_stream({"name": "utracefs", "subjects": ["utracefs.records.>"]})
    records.publish("utracefs.records.web1.f", b"{}")

    def state() -> dict[str, Any]:
        found = {name: JetStream(as_(who).connection).stream(name) for name, who in STREAMS.items()}
        return {
            name: (one["created"], one["config"], one["state"]) for name, one in found.items() if name != own
        }

    before = state()
    lines = []
    targets = ["$KV.utracefs_wishes.w", "$KV.utracefs_wishes.new", "$KV.utracefs_hosts.web1"]
    targets += ["utracefs.records.web1.f", "$SYS.REQ.SERVER.PING"]
    targets += [
        f"$JS.API.STREAM.{verb}.{name}" for verb in ("DELETE", "PURGE") for name in STREAMS if name != own
    ]
    for subject in targets:
        config = {"deliver_subject": subject, "ack_policy": "none", "name": "x", "headers_only": True}
        config |= {"flow_control": True, "idle_heartbeat": 10**8}
        for name in STREAMS:
            bodies: tuple[dict[str, Any], ...] = (
                {},
                {"seq": 1},
                {"last_by_subj": ">"},
                {"stream_name": name, "config": config},
            )
            bodies += ({"deliver_subject": subject}, {"name": "new", "subjects": [subject]})
            for api in ("$JS.API", "$JS.fleet"):
                for verb in VERBS:
                    for body in bodies:
                        data = json.dumps(body) if body else ""
                        text = f"{api}.{verb}".replace("*", name)
                        lines.append(f"PUB {text} {subject} {len(data)}\r\n{data}\r\n")
        lines += [f"PUB {about} {subject} 1\r\nx\r\n" for about in targets[:4]]
    lines += [f"SUB $JS.API.STREAM.MSG.GET.{stream} 1\r\n" for stream in STREAMS]
    answer = said(server, user, "".join(lines))
    assert b"Violation" in answer
    time.sleep(0.3)  # heartbeats
    assert state() == before


def _copy(fleet: Fleet, stream: str) -> None:
    """Let the server publish what is in a stream as wishes."""
    config = {"deliver_subject": "$KV.utracefs_wishes.w", "ack_policy": "none", "name": "x"}
    fleet.connection.request(
        f"$JS.API.CONSUMER.CREATE.{stream}.x", json.dumps({"stream_name": stream, "config": config}).encode()
    )


def test_a_reader_only_reads(as_: As) -> None:
    operator, reader = as_("operator"), as_("reader")
    operator.create()
    with pytest.raises(REFUSED):
        reader.hosts.put("web1", b"{}")
    reader.close()
    reader.connection.subscribe("_INBOX.operator.>")
    with pytest.raises(REFUSED):
        reader.connection.open()
    with pytest.raises(REFUSED):
        as_("reader-records").connection.request("utracefs.records.a.b", b"x")
    with pytest.raises(REFUSED):
        as_("reader-records").wishes.put("w", WISH)


@pytest.mark.parametrize("address", ["host", "http://host", "nats://a:b@host", "nats://", "nats://h:x"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ValueError):
        connection_of(address, Settings(), "x")
