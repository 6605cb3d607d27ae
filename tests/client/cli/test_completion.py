"""Completion in the shell; without a daemon it is empty, and nothing is ever written to stderr."""

import signal
import subprocess
import time

from tests.client.cli.kit import Cli
from tests.forked import Popen


def complete(cli: Cli, line: str, place: int | None = None) -> list[str]:
    """place: of the word that is not ended yet, where blanks in quotes are in front of it."""
    words = line.split(" ")
    env = {
        **cli.env,
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1 if place is None else place),
        "_UTRACEFS_COMPLETE": "bash_complete",
    }
    with Popen(cli.command(), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        out, error = process.communicate(timeout=60)
    assert error == b""
    return [text.partition(",")[2] for text in out.decode().splitlines()]


def test_completion_of_commands_and_options(cli: Cli) -> None:
    assert complete(cli, "utracefs re") == ["record", "report", "reg"]
    assert "--wall-clock" in complete(cli, "utracefs record --")
    assert complete(cli, "utracefs enable x") in ([], [""]), "no daemon, no events"


def test_completion_of_events(traced: Cli) -> None:
    traced.run("reg", "http_request u16 status")
    assert complete(traced, "utracefs record -e http") == ["http_request"]
    assert complete(traced, "utracefs record -e other,http") == ["other,http_request"]
    assert complete(traced, "utracefs enable user_ev") == ["user_events:http_request"]


def test_completion_of_paths_clocks_and_fields(traced: Cli) -> None:
    traced.run("reg", "http_request u16 status; char[8] from")
    assert complete(traced, "utracefs cat trace_p") == ["trace_pipe"]
    assert complete(traced, "utracefs cat events/user_events/http_request/fo") == [
        "events/user_events/http_request/format"
    ]
    assert "per_cpu/cpu0/" in complete(traced, "utracefs ls per_cpu/")
    assert complete(traced, "utracefs write nosuch/") in ([], [""])
    assert complete(traced, "utracefs record -k mono") == ["mono", "mono_raw"]
    assert complete(traced, "utracefs emit http") == ["http_request"]
    assert complete(traced, "utracefs emit http_request ") == ["<u16 status>"]
    assert complete(traced, "utracefs emit http_request 200 ") == ["<char[8] from>"]


def test_completion_of_instances_and_what_is_in_them(traced: Cli) -> None:
    traced.run("instance", "create", "one", "other")
    assert complete(traced, "utracefs instance re") == ["remove"]
    assert complete(traced, "utracefs instance remove o") == ["one", "other"]
    assert complete(traced, "utracefs status -B on") == ["one"]
    assert complete(traced, "utracefs cat -B one trace_p") == ["trace_pipe"]
    assert "per_cpu/cpu0/" in complete(traced, "utracefs ls --instance one per_cpu/")


def test_completion_of_options_of_targets(cli: Cli) -> None:
    assert complete(cli, "utracefs forward nats://h/S -O max_") == ["max_age=", "max_bytes="]
    assert complete(cli, "utracefs forward otlp://h -O ") == ["compression=", "metrics=", "service.name="]
    assert complete(cli, "utracefs forward -O ga") == ["gather="]
    assert complete(cli, "utracefs forward otlp://h --secret ") == ["headers="]
    assert complete(cli, "utracefs forward none:x -O ") in ([], [""])


def test_completion_of_fields(traced: Cli) -> None:
    traced.run("reg", "web u16 status; u32 size; __rel_loc char[] path")
    traced.run("reg", "other u32 x")
    assert complete(traced, "utracefs record -e web --filter s") == ["size", "status"]
    assert complete(traced, "utracefs record -e web,other -f ") == ["x", "common_pid", "CPU", "COMM"]
    assert complete(traced, "utracefs stream -e web --filter=p") == ["path"]
    begun = 'utracefs record -e web -f \'path ~ "x" && !(st'
    assert complete(traced, begun, 5) == ['path ~ "x" && !(status']
    for value in ("'status ==", "'status & ", "'path == \"st", "'status >= s"):
        assert complete(traced, f"utracefs record -e web -f {value}", 5) in ([], [""])
    assert complete(traced, "utracefs hist web st") == ["status"]
    assert complete(traced, "utracefs hist web path status,s") == ["status,size", "status,status"]
    assert complete(traced, "utracefs hist web path --vals hit") == ["hitcount"]
    assert complete(traced, "utracefs hist web path,size.b") == ["path,size.buckets="]
    assert complete(traced, "utracefs hist web path --sort size.") == ["size.ascending", "size.descending"]
    assert complete(traced, "utracefs hist we") == ["web"]
    assert complete(traced, "utracefs hist nosuch x") in ([], [""])


def test_commands_to_run(cli: Cli) -> None:
    for line in ("record --", "record -e x --", "perf stat", "mount /m --", "attach count --"):
        assert "sh" in complete(cli, f"utracefs {line} s"), line
        assert complete(cli, f"utracefs {line} sh x") == ["x"]  # the shell completes files


def test_a_daemon_that_does_not_answer(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    daemon.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert complete(traced, "utracefs enable x") in ([], [""])
        assert time.monotonic() - began < 10
    finally:
        daemon.send_signal(signal.SIGCONT)
