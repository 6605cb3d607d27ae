"""`utracefs daemon` and `utracefs completion`."""

import signal

import pytest
from click.testing import CliRunner

from tests.client.cli.kit import Cli, Eventually, interrupt
from utracefs.cli import cli as cli_group


def test_daemon_is_utracefsd(cli: Cli, eventually: Eventually) -> None:
    directory = cli.home / "mine"
    process = cli.start("--dir", str(directory), "daemon", "--log-level", "warning")
    try:
        eventually(lambda: (directory / "tracefs").exists(), "the daemon listens")
        assert cli.out("--dir", str(directory), "cat", "tracing_on") == "1\n"
    finally:
        out, error = interrupt(process, signal.SIGTERM)
    assert (process.returncode, out, error) == (0, b"", b"")
    assert b"--ready-fd" in cli.run("daemon", "--help").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(cli_group, ["completion", shell])
    assert result.exit_code == 0
    assert f"_UTRACEFS_COMPLETE={shell}_complete" in result.output
