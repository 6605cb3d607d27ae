"""`utracefs daemon` and `utracefs completion`."""

import signal
import subprocess
import sys

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


def complete(cli: Cli, line: str) -> list[str]:
    words = line.split(" ")
    env = {
        **cli.env,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
        "_UTRACEFS_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-c", "from utracefs.cli import main; main()"],
        env=env,
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
    return [text.partition(",")[2] for text in done.stdout.decode().splitlines()]


def test_completion_of_commands_and_options(cli: Cli) -> None:
    assert complete(cli, "utracefs re") == ["record", "report", "reg"]
    assert "--wall-clock" in complete(cli, "utracefs record --")
    assert complete(cli, "utracefs enable x") in ([], [""]), "no daemon, no events"


def test_completion_of_events(traced: Cli) -> None:
    traced.run("reg", "http_request u16 status")
    assert complete(traced, "utracefs record -e http") == ["http_request"]
    assert complete(traced, "utracefs enable user_ev") == ["user_events:http_request"]


def test_completion_of_paths_clocks_and_fields(traced: Cli) -> None:
    traced.run("reg", "http_request u16 status; char[8] from")
    assert complete(traced, "utracefs cat trace_p") == ["trace_pipe"]
    assert complete(traced, "utracefs cat events/user_events/http_request/fo") == [
        "events/user_events/http_request/format"
    ]
    assert "per_cpu/cpu0/" in complete(traced, "utracefs ls per_cpu/")
    assert complete(traced, "utracefs write nosuch/") in ([], [""])
    assert complete(traced, "utracefs record -C mono") == ["mono", "mono_raw"]
    assert complete(traced, "utracefs emit http") == ["http_request"]
    assert complete(traced, "utracefs emit http_request ") == ["<u16 status>"]
    assert complete(traced, "utracefs emit http_request 200 ") == ["<char[8] from>"]
