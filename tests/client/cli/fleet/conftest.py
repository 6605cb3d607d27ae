"""The commands of a fleet whose buckets a real nats-server has."""

from __future__ import annotations

import pytest

from tests.client.cli.kit import Cli
from tests.client.nats.server import NatsServer


@pytest.fixture
def operator(cli: Cli, server: NatsServer) -> Cli:
    cli.env["UTRACEFS_FLEET"] = f"nats://127.0.0.1:{server.port}"
    return cli
