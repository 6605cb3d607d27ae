"""`utracefs stream --json` and `export --live`: lines of a stream, and what they do not disturb."""

import fcntl
import json
import re
import signal
import subprocess
import sys
import termios

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from utracefs.tree.tracefs import Tracefs


def status(cli: Cli) -> str:
    with Tracefs(cli.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        return tree.read_file("user_events_status").decode()


def test_lines(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "web u32 status")
    process = traced.start("stream", "--json", "-e", "web*", "-f", "status >= 500")
    eventually(lambda: "web # Used by other" in status(traced), "stream began")
    for number in ("200", "503"):
        traced.run("emit", "web u32 status", number)
    traced.run("emit", "web_later u32 status", "507")
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [(line["name"], line["fields"]["status"]) for line in lines] == [("web", 503), ("web_later", 507)]
    out, error = interrupt(process)
    assert (process.returncode, out, error) == (0, b"", b"")


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("stream --json -e web", signal.SIGINT),
        ("stream --json -e web --duration 6", None),
        ("export --live -e web", signal.SIGTERM),
        ("cat trace_pipe", signal.SIGTERM),
    ],
)
def test_a_reader_that_takes_nothing_does_not_keep_it(
    traced: Cli, eventually: Eventually, words: str, number: signal.Signals | None
) -> None:
    """Some MB for a full pipe, then a signal, or the end of its time."""
    traced.run("reg", "web u32 status; char[1000] text")
    if words[0] == "c":
        traced.run("enable", "web")
    process = traced.start(*words.split())
    consumer = "ftrace" if words[0] == "c" else "other"
    eventually(lambda: f"web # Used by {consumer}" in status(traced), "it began")
    program = (
        "import utracefs; e = utracefs.event('web u32 status; char[1000] text')\n"
        "for n in range(1000): e.emit(n, 'x' * 999)\nutracefs.flush(60)"
    )
    subprocess.run([sys.executable, "-c", program], env=traced.env, check=True)
    assert process.stdout is not None and process.stderr is not None
    pipe = process.stdout
    eventually(
        lambda: int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, b"1234"), "little") > 1 << 15, "full"
    )
    if number:
        process.send_signal(number)
    assert process.wait(60) == 0
    if words[0] != "c":
        assert re.search(rb"not printed when it ended: \d+ more", process.stderr.read())


def test_it_says_what_it_waits_for(traced: Cli) -> None:
    done = traced.run("stream", "--json", "-e", "typo", "-e", "more*", "--duration", "0.1")
    says = b"utracefs: typo: no such event yet; waiting for it\nutracefs: stream: 0 records\n"
    assert (done.stdout, done.stderr) == (b"", says)


def test_its_time(traced: Cli) -> None:
    assert traced.out("stream", "--json", "--duration", "0.3") == ""
    assert traced.out("stream", "--duration", "0.3") == ""


def test_of_an_instance(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "web u32 status")
    traced.run("instance", "create", "mine")
    traced.run("enable", "-B", "mine", "web")
    process = traced.start("stream", "--json", "-B", "mine")
    eventually(lambda: "web # Used by ftrace other" in status(traced), "stream began")
    traced.run("emit", "web", "7")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["fields"] == {"status": 7}
    interrupt(process)
    assert "status=0x7" in traced.out("cat", "instances/mine/trace")


def test_what_is_refused(traced: Cli) -> None:
    traced.run("reg", "web u32 status")
    error = traced.run("stream", "--json", "-e", "web", "-f", "x == 1", status=1).stderr.decode()
    assert error.startswith(
        "utracefs: web: filter: Field not found; `utracefs list --fields` shows its fields"
    )
    assert error.endswith("\n  x == 1\n    ^\n")
    error = traced.run("stream", "--json", "-e", "a", "-f", "x == 1", "-e", "b", status=2).stderr.decode()
    assert "one --filter for all -e" in error
    assert "no such instance" in traced.fails("stream", "--json", "-B", "none")


def test_the_daemon_goes_away(traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually) -> None:
    traced.run("reg", "one u32 n")
    live = traced.start("stream", "--json", "-e", "one")
    eventually(lambda: "one # Used by other" in status(traced), "stream began")
    daemon.kill()
    daemon.wait()
    assert live.stderr is not None
    assert live.stderr.readline() == b"utracefs: the daemon has ended; waiting for the next one\n"
    out, error = interrupt(live, signal.SIGTERM)
    assert (live.returncode, out) == (0, b"")
    assert error.startswith(b"utracefs: no daemon came back; later records are missing\n")
    assert b"0 records, more lost that were not counted" in error


def test_into_a_file_for_some_time(traced: Cli) -> None:
    done = traced.run("export", "--live", "--duration", "0.5", "-o", "out.jsonl")
    assert done.stderr == b"out.jsonl: 0 records\n"
    assert (traced.home / "out.jsonl").read_bytes() == b""


def test_a_full_disk(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "one u32 n")
    with open("/dev/full", "wb") as full:
        live = traced.start("export", "--live", stdout=full)
        eventually(lambda: "one # Used by other" in traced.out("cat", "user_events_status"), "it listens")
        traced.run("emit", "one", "1")
        _, error = live.communicate(timeout=60)
    assert live.returncode == 1 and b"not printed: up to 1 record, and all later ones\n" in error
    assert b"No space left on device" in error


def test_to_a_pipe_whose_reader_goes_away(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "one u32 n")
    live = traced.start("export", "--live")
    eventually(lambda: "one # Used by other" in traced.out("cat", "user_events_status"), "it listens")
    assert live.stdout is not None and live.stderr is not None
    live.stdout.close()
    traced.run("emit", "one", "1")
    try:
        assert live.wait(60) == 0
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
        (["--duration", "5"], "--duration goes with --live"),
    ],
)
def test_mistakes(cli: Cli, words: list[str], says: str) -> None:
    assert says in cli.run("export", *words, status=2).stderr.decode()


def test_no_daemon(cli: Cli) -> None:
    assert "no daemon is there" in cli.fails("export", "--live")
