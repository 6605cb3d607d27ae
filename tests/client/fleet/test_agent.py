"""The loop of a host between a real server, a real daemon and a forwarder: wishes, ends, faults of each."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.daemons.fake_daemon import wait_for
from tests.client.forward.kit import Store
from tests.client.nats.server import NatsServer
from tests.integration.conftest import DaemonProcess
from utracefs import Session
from utracefs.fleet import agent as agent_module
from utracefs.fleet import buckets, report
from utracefs.fleet.agent import Agent
from utracefs.fleet.buckets import Fleet
from utracefs.fleet.instance import instance_name
from utracefs.fleet.report import Host
from utracefs.fleet.wish import Wish, key_of
from utracefs.forward import forwarder as forwarder_module
from utracefs.forward.forwarder import Forwarder, Wanted
from utracefs.forward.policy import Policy
from utracefs.forward.spool import MIN_SIZE, Spool
from utracefs.nats.errors import ApiError
from utracefs.tree.tracefs import Tracefs

WAIT_S = 30
HOST = "web1.example.org"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder_module, "GATHER_S", 0.02)
    monkeypatch.setattr(forwarder_module, "WAIT_FOR_DAEMON_S", 0.02)
    monkeypatch.setattr(agent_module, "LOOK_S", 0.02)
    monkeypatch.setattr(agent_module, "BACK_OFF_S", (0.02, 0.1))
    monkeypatch.setattr(report, "PERIOD_S", 0.2)


class Operator:
    def __init__(self, server: NatsServer) -> None:
        self.fleet = Fleet(server.connection())
        self.fleet.create()

    def wish(self, name: str, *events: str, duration_s: float = 600, **members: Any) -> None:
        self.fleet.wishes.put(name, Wish(events, duration_s, **members).to_bytes())

    @property
    def host(self) -> Host:
        return Host.of(self.fleet.hosts.last(key_of(HOST)))

    def wait(self, condition: Callable[[Host], Any]) -> Host:
        """For such a report."""

        def met() -> Host | None:
            with contextlib.suppress(ApiError, OSError):
                host = self.host
                return host if condition(host) else None
            return None

        def told() -> str:
            with contextlib.suppress(ApiError, OSError):
                return json.dumps(self.host.members, indent=1)
            return "no report"

        found = wait_for(met, WAIT_S, what=told)
        assert isinstance(found, Host)
        return found


@pytest.fixture
def operator(server: NatsServer) -> Iterator[Operator]:
    operator = Operator(server)
    yield operator
    operator.fleet.close()


class OnHost:
    def __init__(self, agent: Agent, store: Store, directory: str) -> None:
        self.agent = agent
        self.store = store
        self.directory = directory
        self.told: list[str] = []

    def enabled(self) -> list[str]:
        with Tracefs(self.directory) as tree:
            return tree.read_file(f"instances/{instance_name()}/set_event").decode().split()


@pytest.fixture
def on_host(directory: Path, tmp_path: Path, server: NatsServer) -> Any:
    @contextlib.contextmanager
    def on_host(**policy: Any) -> Iterator[OnHost]:
        store = Store()
        told: list[str] = []
        agent = Agent(
            Fleet(server.connection(timeout_s=2)),
            HOST,
            {"site": "north"},
            policy=Policy(**policy),
            directory=str(directory),
            tell=told.append,
        )
        spool = Spool(tmp_path / "spool", MIN_SIZE)
        wanted = Wanted(instances=[instance_name()], directory=str(directory), filtered=True)
        forwarder = Forwarder(store, spool, wanted, drain_s=WAIT_S, host=HOST, sample=agent.sample)
        thread = threading.Thread(target=forwarder.run)
        try:
            with agent.running(forwarder.status):
                thread.start()
                host = OnHost(agent, store, str(directory))
                host.told = told
                yield host
                forwarder.stop()
                thread.join()
        finally:
            forwarder.stop()
            thread.join()
            spool.close()

    return on_host


Emit = Callable[..., None]


@pytest.fixture
def emit(utracefsd: DaemonProcess, new_session: Callable[..., Session]) -> Emit:
    """By a program of the daemon."""
    session: list[Session] = []

    def emit(*numbers: int, name: str = "work", wait: bool = True) -> None:
        session[:] = session or [new_session()]
        event = session[0].event(f"{name} u32 a")
        if wait:
            wait_for(lambda: event.registered and event, WAIT_S)
        for number in numbers:
            event.emit(number)
        assert session[0].flush(60)

    return emit


def test_a_wish_with_filter_and_sample(operator: Operator, on_host: Any, emit: Emit) -> None:
    with on_host() as host:
        operator.wait(lambda one: one.members["attached"])
        emit(1, 2, wait=False)
        operator.wish("w", "work*", filter="a >= 10", labels={"site": "n*"})
        operator.wish("other", "work*", labels={"site": "south"})
        told = operator.wait(lambda one: "user_events:work" in one.names("enabled"))
        assert told.wishes == {"w": "obeyed"}
        assert told.labels == {"site": "north", "host": HOST}
        emit(*range(20))
        wait_for(lambda: host.store.arrived.total() == 10, WAIT_S)
        emit(5, 15, name="work_later")
        wait_for(lambda: host.store.arrived["user_events:work_later"] == 1, WAIT_S)

        operator.fleet.wishes.delete("w")
        operator.wish("tenth", "work", sample=10)
        operator.wait(
            lambda one: one.wishes == {"tenth": "obeyed"} and one.names("enabled") == ["user_events:work"]
        )
        emit(*range(100))
        operator.wait(lambda one: one.lost == {"user_events:work": 90})
        wait_for(lambda: host.store.arrived["user_events:work"] == 20, WAIT_S)
        assert host.store.lost["user_events:work", "sample"] == 90

        operator.fleet.wishes.delete("tenth")
        operator.wait(lambda one: not one.names("enabled") and not one.wishes)
        emit(1, wait=False)
    assert host.store.arrived["user_events:work"] == 20
    assert operator.host.members["is_ended"]
    assert next(iter(host.store.batches.values())).host == HOST
    with Tracefs(host.directory) as tree:
        assert tree.list_dir("instances") == []


def test_a_wish_with_triggers(operator: Operator, on_host: Any, emit: Emit) -> None:
    emit(wait=False)
    with on_host() as host:
        path = f"instances/{instance_name()}/events/user_events/work/"
        operator.wish("counts", "work", filter="a > 90", triggers=("hist:keys=a", "hist:keys=no"))
        told = operator.wait(lambda one: one.names("enabled"))
        assert "not by user_events:work trigger 'hist:keys=no'" in told.wishes["counts"]
        operator.wish("others", "work", filter="no == 1", triggers=("hist:keys=a",))
        told = operator.wait(lambda one: "Field not found" in one.wishes.get("others", ""))
        assert "hist:keys=no" not in told.wishes["others"] and "no == 1" not in told.wishes["counts"]
        operator.fleet.wishes.delete("others")
        operator.wish("named", "work", triggers=("hist:name=all:keys=a",))
        told = operator.wait(lambda one: "named" in one.wishes)
        assert told.wishes["named"].startswith("refused: the policy allows no trigger with 'name'")
        emit(1, 1, 2)
        with Tracefs(host.directory) as tree:
            assert b"Hits: 3\n" in tree.read_file(f"{path}hist")
            operator.fleet.wishes.delete("counts")
            operator.wait(lambda one: "counts" not in one.wishes and not one.names("enabled"))
            assert tree.read_file(f"{path}hist") == b""
    assert host.store.arrived.total() == 0


def test_wishes_end_by_themselves(operator: Operator, on_host: Any, emit: Emit) -> None:
    emit(wait=False)
    with on_host() as host:
        operator.wish("short", "work", duration_s=2)
        operator.wait(lambda one: one.names("enabled"))
        operator.wait(lambda one: one.wishes == {"short": "ended"})
        assert host.enabled() == []
        operator.wish("short", "work", duration_s=600)
        operator.wait(lambda one: one.names("enabled"))


def test_the_time_of_day_of_host_and_operator_does_not_matter(
    operator: Operator, on_host: Any, monkeypatch: pytest.MonkeyPatch, emit: Emit
) -> None:
    emit(wait=False)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 10**6)
    with on_host():
        operator.wish("w", "work", duration_s=30)
        operator.wait(lambda one: one.names("enabled"))


def test_refusals_are_reported(utracefsd: DaemonProcess, operator: Operator, on_host: Any) -> None:
    with on_host(events=("user_events:work*",), max_wish_s=100):
        operator.wish("long", "work", duration_s=101)
        operator.wish("others", "secret*", duration_s=50)
        operator.fleet.wishes.put("bad", b"{")
        operator.fleet.wishes.put("dots.in.it", b"{}")
        operator.fleet.wishes.put("huge", b"x" * 100_000)
        told = operator.wait(lambda one: len(one.wishes) == 5)
        assert all(text.startswith("refused: ") for text in told.wishes.values()), told.wishes
        operator.wish("bad", "work", duration_s=50)
        operator.wait(lambda one: one.wishes["bad"] == "obeyed")


def test_names_that_the_policy_does_not_allow_stay_on_the_host(
    operator: Operator, on_host: Any, emit: Emit
) -> None:
    emit(wait=False)
    emit(wait=False, name="secret")
    with on_host(events=("user_events:work",)):
        operator.wish("w", "*", filter="b == 1")
        told = operator.wait(lambda one: one.names("enabled"))
        assert "Field not found" in told.wishes["w"]
        assert "secret" not in json.dumps(told.members)
        assert told.names("events") == told.names("enabled") == ["user_events:work"]


def test_thousands_of_wishes(operator: Operator, on_host: Any, emit: Emit) -> None:
    emit(wait=False)
    begun = [
        operator.fleet.wishes.jetstream.begin(f"$KV.utracefs_wishes.w{n}", Wish(("work",), 600).to_bytes())
        for n in range(2000)
    ]
    for one in begun:
        operator.fleet.wishes.jetstream.end(one)
    with on_host():
        told = operator.wait(lambda one: "*" in one.wishes)
        assert sum(text == "obeyed" for text in told.wishes.values()) == 32
        assert told.names("enabled") or operator.wait(lambda one: one.names("enabled"))
        for n in range(1500):
            operator.fleet.wishes.delete(f"w{n}")
        operator.wait(lambda one: "*" not in one.wishes)
        operator.fleet.connection.request(
            "$JS.API.STREAM.PURGE.KV_utracefs_wishes", json.dumps({"keep": 400}).encode()
        )
        operator.wait(lambda one: "*" not in one.wishes and "w1999" not in one.wishes)


def test_deleted_and_ended_wishes_do_not_count(
    utracefsd: DaemonProcess, operator: Operator, on_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "MAX_READ", 5)
    for n in range(8):
        operator.wish(f"deleted{n}", "work")
        operator.fleet.wishes.delete(f"deleted{n}")
        operator.wish(f"ended{n}", "work", duration_s=0.01)
    with on_host():
        for n in range(6):
            operator.wish(f"brief{n}", "work", duration_s=1)
        operator.wait(lambda one: "*" in one.wishes)
        operator.wish("new", "work")  # (the brief ones have ended by then, or later wishes say so)
        time.sleep(1)
        operator.wish("newer", "work")
        operator.wait(lambda one: one.wishes.get("newer") == one.wishes.get("new") == "obeyed")
        monkeypatch.setattr(buckets, "MAX_ENDED", 5)
        operator.fleet.sweep(time.time() + 2 * buckets.ENDED_S)
        assert [value.key for value in operator.fleet.wishes.values()] == []
        operator.wish("last", "work")
        operator.wait(lambda one: one.wishes == {"last": "obeyed"})


def test_the_first_contact_is_no_error(utracefsd: DaemonProcess, server: NatsServer, on_host: Any) -> None:
    with on_host() as host:
        wait_for(lambda: host.agent.fleet.connection.is_open, WAIT_S)
        time.sleep(0.3)
        operator = Operator(server)
        operator.wish("w", "work")
        assert operator.wait(lambda one: one.wishes).members["is_new"] in (True, False)
        operator.wait(lambda one: one.members["is_new"] is False)
        operator.fleet.close()
        assert host.told == []


def test_a_change_is_read_at_once(
    utracefsd: DaemonProcess, operator: Operator, on_host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "PERIOD_S", 10 * WAIT_S)
    with on_host():
        operator.wish("w", "work")
        operator.wait(lambda one: one.wishes.get("w") == "obeyed")
        operator.wish("v", "work")
        operator.wait(lambda one: one.wishes.get("v") == "obeyed")


def test_the_bucket_is_gone(operator: Operator, on_host: Any, emit: Emit) -> None:
    emit(wait=False)
    with on_host(lease_s=1) as host:
        operator.wish("w", "work")
        operator.wait(lambda one: one.names("enabled"))
        operator.fleet.connection.request("$JS.API.STREAM.DELETE.KV_utracefs_wishes", b"")
        wait_for(lambda: not host.enabled(), WAIT_S)
        operator.fleet.create()
        operator.wish("again", "work")
        operator.wait(lambda one: one.wishes == {"again": "obeyed"})


def test_the_server_is_away_and_comes_back_empty(
    server: NatsServer, operator: Operator, on_host: Any, emit: Emit
) -> None:
    emit(wait=False)
    with on_host(lease_s=2) as host:
        for n in range(5):
            operator.wish(f"w{n}", "work")
        operator.wait(lambda one: one.names("enabled"))
        server.kill()
        wait_for(lambda: not host.enabled(), WAIT_S)
        server.start()
        wait_for(lambda: host.enabled(), WAIT_S)
        server.kill()
        server.empty()
        server.start()
        wait_for(lambda: not host.enabled(), WAIT_S)
        operator.fleet.create()
        operator.wish("new", "work")
        operator.wait(lambda one: one.wishes == {"new": "obeyed"} and one.names("enabled"))


def test_the_daemon_is_killed(utracefsd: DaemonProcess, operator: Operator, on_host: Any, emit: Emit) -> None:
    emit(wait=False)
    with on_host() as host:
        operator.wish("w", "work")
        emit(1)
        wait_for(lambda: host.store.arrived.total() == 1, WAIT_S)
        assert utracefsd.process is not None
        utracefsd.process.kill()
        utracefsd.stop()
        utracefsd.start()

        def arrives() -> bool:
            emit(2, wait=False)
            return bool(host.store.arrived.total() > 1)

        wait_for(arrives, WAIT_S)
        assert host.told[0].startswith(f"fleet: daemon: {host.directory}/tracefs: ")
    assert any(loss.count is None for one in host.store.batches.values() for loss in one.losses)
