"""`utracefs export --live`: JSON lines as records come, until a signal or for some time."""

import json
import signal
import subprocess

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_records_as_they_come(traced: Cli, eventually: Eventually, number: signal.Signals) -> None:
    for declaration in ("one u32 n", "two u32 n"):
        traced.run("reg", declaration)
    live = traced.start("export", "--live", "-e", "one")
    eventually(lambda: "one # Used by other" in traced.out("cat", "user_events_status"), "it listens")
    assert live.stdout is not None
    for n in range(3):
        traced.run("emit", "one", str(n))
        assert json.loads(live.stdout.readline())["fields"] == {"n": n}
    out, error = interrupt(live, number)
    assert (live.returncode, out, error) == (0, b"", b"")


def test_into_a_file_for_some_time(traced: Cli) -> None:
    done = traced.run("export", "--live", "--for", "0.5", "-o", "out.jsonl")
    assert done.stderr == b"out.jsonl: 0 records\n"
    assert (traced.home / "out.jsonl").read_bytes() == b""


def test_to_a_pipe_whose_reader_goes_away(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "one u32 n")
    live = traced.start("export", "--live")
    eventually(lambda: "one # Used by other" in traced.out("cat", "user_events_status"), "it listens")
    assert live.stdout is not None and live.stderr is not None
    live.stdout.close()
    traced.run("emit", "one", "1")
    try:
        assert live.wait(30) == 0
        assert live.stderr.read() == b""
    except subprocess.TimeoutExpired:
        live.kill()
        raise
    finally:
        live.stderr.close()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--live", "-o", "out.csv"], "--live writes JSON lines"),
        (["--live", "--since", "5"], "--live writes JSON lines"),
        (["--live", "--daemon"], "give INPUT, --daemon or --live"),
        (["--for", "5"], "--for goes with --live"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], says: str) -> None:
    assert says in cli.run("export", *words, status=2).stderr.decode()


def test_no_daemon(cli: Cli) -> None:
    assert "no daemon is there" in cli.fails("export", "--live")
