"""The how-to of docs/fleet.md: three hosts, a nats-server with its example of users, a folder of Parquet
files, a wish with a filter, a host that is killed, and the page's query.

Hosts are directories of one machine, or network namespaces with a name of their own, at one bridge:

    10.99.0.10 ── web0.north ┐
    10.99.0.11 ── web1.north ┼── switch ── 10.99.0.1, nats-server, operator
    10.99.0.12 ── web2.north ┘
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.client.nats.server import NatsServer, serving
from tests.forked import Popen
from tests.integration.conftest import DaemonProcess, own_directory
from tests.integration.pages import blocks
from tests.judges import library
from utracefs import Session
from utracefs.forward.forwarder import STATUS_FILE

duckdb = library("duckdb")
library("pyarrow.parquet")

WAIT_S = 90
(QUERY,) = (block.text for block in blocks(Path("docs/fleet.md").read_text()) if block.kind == "sql")
USERS = ("OPERATOR", "HOST", "READER")
NAMES = ("web0.north", "web1.north", "web2.north")
EVENT = "user_events:http_request"


def wait_for(condition: Callable[[], Any], what: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def run(within: Sequence[str], *words: str, status: tuple[int, ...] = (0,)) -> str:
    command = [*within, sys.executable, "-m", "utracefs.cli", *words]
    with Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        out, error = process.communicate(timeout=WAIT_S)
    assert process.returncode in status, error
    return str(out)


Namespaces = dict[str, list[str]]
"""Name of a host, or `switch`, to the words in front of a command that runs there."""


def address_of(name: str) -> str:
    return f"10.99.0.{10 + NAMES.index(name) if name in NAMES else 1}"


@contextlib.contextmanager
def namespaces() -> Iterator[Namespaces]:
    """They are gone with their processes."""
    with contextlib.ExitStack() as stack:
        found: Namespaces = {}
        for name in ("switch", *NAMES):
            holder = subprocess.Popen(
                ["unshare", "--net", "--uts", "sh", "-c", "echo made; exec sleep 1000"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            stack.callback(holder.communicate)
            stack.callback(holder.kill)
            assert holder.stdout is not None
            if holder.stdout.readline() != b"made\n":
                pytest.skip("namespaces may not be made here")
            enter = found[name] = ["nsenter", "--net", "--uts", "--target", str(holder.pid)]
            commands = ["ip link set lo up"]
            if name == "switch":
                commands += ["ip link add hub type bridge", "ip link set hub up"]
                commands += [f"ip addr add {address_of(name)}/24 dev hub"]
            else:
                port = name.partition(".")[0]
                made = ["ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns"]
                _must([*found["switch"], *made, str(holder.pid)])
                _must([*found["switch"], "ip", "link", "set", port, "master", "hub", "up"])
                commands += [f"hostname {name}", f"ip addr add {address_of(name)}/24 dev eth0"]
                commands += ["ip link set eth0 up"]
            for command in commands:
                _must([*enter, *command.split()])
        yield found


def _must(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=WAIT_S, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(words)}: {done.stderr}")


class Host:
    """A daemon and a forwarder. within: words that run them there; empty: here, under this name."""

    def __init__(
        self, name: str, directory: str, folder: Path, server: NatsServer, within: Sequence[str]
    ) -> None:
        self.name = name
        self.daemon = DaemonProcess(directory)
        self.daemon.within = self.within = within
        self.words = ["--dir", directory, "forward", f"parquet:{folder / 'events'}", "-O", "gather=0.05"]
        self.words += ["--drain", "60s"]  # of a busy machine
        self.words += ["--fleet", f"nats://host@{server.address}:{server.port}"]
        self.words += [] if within else ["--host-name", name]
        self.words += ["--label", "site=north", "--secret", f"password={folder / 'host'}"]
        self.words += ["--spool", str(folder / name)]
        self.forwarder: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.daemon.start()
        words = [*self.within, sys.executable, "-m", "utracefs.cli", *self.words]
        self.forwarder = Popen(words, stderr=subprocess.PIPE)

    def end(self, *, kill: bool = False) -> None:
        forwarder, self.forwarder = self.forwarder, None
        if forwarder is not None:
            (forwarder.kill if kill else forwarder.terminate)()
            _, log = forwarder.communicate(timeout=WAIT_S)
            assert kill or forwarder.returncode == 0, log
        self.daemon.stop(kill=kill)

    def emit(self, number: int, *, wait: bool = True) -> int:
        """Returns the number of those with an error."""
        with Session(self.daemon.directory) as session:
            event = session.event("http_request u32 status; u64 usec")
            if wait:
                wait_for(lambda: event.registered and event)
            for n in range(number):
                event.emit(500 if n % 4 == 0 else 200, n)
            assert session.flush(WAIT_S)
        return (number + 3) // 4


@pytest.fixture(params=["directories", "namespaces"])
def within(request: pytest.FixtureRequest) -> Iterator[Namespaces]:
    """Empty: all is here."""
    if request.param == "directories":
        yield {}
        return
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("namespaces and their links need root, unshare and ip")
    with namespaces() as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, within: Namespaces, monkeypatch: pytest.MonkeyPatch) -> Iterator[NatsServer]:
    for user in USERS:
        monkeypatch.setenv(f"{user}_PASSWORD", f"secret-{user}")
        (tmp_path / user.lower()).write_text(f"secret-{user}\n")
    config = Path("examples/fleet/nats.conf").read_text()
    address = address_of("switch") if within else "127.0.0.1"
    with serving(tmp_path / "nats", config, within.get("switch", ()), address) as server:
        yield server


@pytest.fixture
def hosts(tmp_path: Path, server: NatsServer, within: Namespaces) -> Iterator[list[Host]]:
    with contextlib.ExitStack() as stack:
        made = []
        for name in NAMES:
            directory = stack.enter_context(own_directory())
            host = Host(name, directory, tmp_path, server, within.get(name, ()))
            stack.callback(host.end, kill=True)
            made.append(host)
        yield made


def test_three_hosts(
    hosts: list[Host],
    server: NatsServer,
    within: Namespaces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UTRACEFS_FLEET", f"nats://operator@{server.address}:{server.port}")
    operator = within.get("switch", ())
    secret = ["--secret", f"password={tmp_path / 'operator'}"]
    enable = ["fleet", "enable", "http_*", "-f", "status >= 500", "--label", "site=n*", "--name", "errors"]
    run(operator, *enable, *secret)

    def reports() -> dict[str, Any]:
        told = json.loads(run(operator, "fleet", "status", "--json", *secret, status=(0, 1)))
        return {host["host"]: host for host in told["hosts"]}

    def all_obey() -> bool:
        those = reports()
        return len(those) == 3 and all(
            not one["is_ended"]
            and one["attached"]
            and one["wishes"].get("errors") == "obeyed"
            and one["enabled"]
            for one in those.values()
        )

    for host in hosts:
        host.start()
        host.emit(1, wait=False)  # registers the event
    with contextlib.ExitStack() as programs:
        for host in hosts:
            programs.enter_context(Session(host.daemon.directory)).event("http_request u32 status; u64 usec")
        wait_for(all_obey, reports)
    emitted = {host.name: host.emit(1000) for host in hosts}
    spool = tmp_path / "web2.north" / STATUS_FILE
    wait_for(lambda: spool.exists() and json.loads(spool.read_text())["records_read"])
    emitted["web2.north"] += hosts[2].emit(1000)
    hosts[2].end(kill=True)
    killed_ns = spool.stat().st_mtime_ns
    emitted["web0.north"] += hosts[0].emit(1000)
    hosts[2].start()
    wait_for(lambda: spool.stat().st_mtime_ns > killed_ns)  # it has its handler of SIGTERM
    hosts[2].emit(1, wait=False)
    emitted["web2.north"] += 2  # the records of the two registrations may be recorded, or not
    for host in hosts:
        host.end()

    found = duckdb.execute(QUERY.replace("/data/events", str(tmp_path / "events"))).fetchall()
    rows = {host: row for host, *row in found}
    assert rows.keys() == emitted.keys()
    for name in ("web0.north", "web1.north"):
        event, p99, records, arrived, lost, is_unknown = rows[name]
        assert event == EVENT and not is_unknown
        assert records == arrived and arrived + lost == emitted[name], (name, rows, emitted)
        assert 980 <= p99 <= 996
    _, _, records, arrived, lost, is_unknown = rows["web2.north"]
    assert is_unknown
    assert records == arrived and 0 < arrived + lost <= emitted["web2.north"]
