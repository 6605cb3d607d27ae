"""The server of `utracefs fleet`: its address, and errors of the connection."""

from __future__ import annotations

import socket

import pytest

from tests.client.cli.kit import Cli
from tests.client.nats.server import serving
from utracefs.cli.fleet.options import told_errors


def test_addresses(cli: Cli) -> None:
    assert "--server" in cli.fails("fleet", "status", status=2)
    assert "no address of NATS" in cli.fails("fleet", "status", "-s", "http://x", status=2)


def test_no_server_no_fleet(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "refused" in cli.fails("fleet", "status", "-s", f"nats://127.0.0.1:{port}")
    with serving(cli.home / "nats") as server:
        assert "no fleet yet" in cli.fails("fleet", "disable", "w", "-s", f"nats://127.0.0.1:{server.port}")
    with serving(cli.home / "nats2", 'authorization: {user: "a", password: "b"}') as server:
        words = ("fleet", "status", "-s", f"nats://a@127.0.0.1:{server.port}", "--secret")
        assert "Violation; no `--secret password=FILE` was given" in cli.fails(*words[:-1])
        assert "no secret 'pass'; there are: password, token" in cli.fails(*words, "pass=pw", status=2)
        (cli.home / "pw").write_text("wrong")
        assert cli.fails(*words, "password=pw").endswith("Authorization Violation\n")


def test_a_closed_stdout_is_no_error_of_the_server() -> None:
    with pytest.raises(BrokenPipeError), told_errors("nats://x"):
        raise BrokenPipeError
