"""Options of the connection to a server."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from utracefs.cli.forward.server_options import server_options


@pytest.mark.parametrize("secret", ["token", "=file"])
def test_secrets_have_a_name_and_a_file(secret: str) -> None:
    @click.command()
    @server_options
    def command(**options: object) -> None:
        click.echo(options)

    assert "has no NAME=" in CliRunner().invoke(command, ["--secret", secret]).output
    found = CliRunner().invoke(command, ["--secret", "token=a=b", "--timeout", "3"])
    assert "secrets={'token': 'a=b'}" in found.output and "timeout_s=3.0" in found.output
    assert "timeout_s=120.0" in CliRunner().invoke(command, ["--timeout", "2m"]).output
    assert "timeout_s=10.0" in CliRunner().invoke(command, []).output
    assert "is not a number of seconds above 0" in CliRunner().invoke(command, ["--timeout", "0"]).output
