"""`utracefs hist`."""

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.integration.conftest import running
from utracefs.cli.live.hist import trigger_text

EMITTER = """
import sys, utracefs
event = utracefs.event("web u16 status; s32 left; __rel_loc char[] path")
bool(event)
for n in range(int(sys.argv[1])):
    event.emit(500 if n % 10 == 0 else 200, -n, "/even" if n % 2 == 0 else "/odd")
utracefs.flush(60)
"""


def emitter(count: int) -> list[str]:
    return ["--", sys.executable, "-c", EMITTER, str(count)]


def test_what_is_written_to_trigger() -> None:
    assert trigger_text(["a"], [], [], None, "") == "hist:keys=a:sort=hitcount.descending"
    assert trigger_text(["a", "b.log2"], [], [], None, "") == "hist:keys=a,b.log2:sort=hitcount.descending"
    assert trigger_text(["a.log2"], [], [], None, "") == "hist:keys=a.log2:sort=a"
    assert trigger_text(["a.buckets=10"], [], ["b"], None, "") == "hist:keys=a.buckets=10:sort=b"
    assert trigger_text(["a", "b.log2"], ["c", "d,e"], ["a", "c.descending"], 128, "x > 1 && y") == (
        "hist:keys=a,b.log2:vals=c,d,e:sort=a,c.descending:size=128 if x > 1 && y"
    )


def test_a_command_with_a_daemon_of_its_own(cli: Cli) -> None:
    """The event is declared by the command, and counted from its first record on."""
    done = cli.run("hist", "web", "status", "path", "--vals", "left", "--sort", "status,path", *emitter(1000))
    assert done.stdout.decode() == (
        "user_events:web by status,path\n"
        "STATUS  PATH   HITCOUNT     LEFT\n"
        "   200  /even       400  -200000\n"
        "   200  /odd        500  -250000\n"
        "   500  /even       100   -49500\n"
        "1000 records, 3 entries\n"
    )
    assert done.stderr == b""


def test_json_filter_and_size(cli: Cli) -> None:
    """With -e, as other commands have it."""
    out = cli.out(
        "hist", "-e", "web", "status", "--json", "--filter", "status >= 500", "--size", "128", *emitter(50)
    )
    (one,) = json.loads(out)
    assert one["trigger"].endswith("size=128 if status >= 500")
    assert (one["hits"], one["dropped"]) == (5, 0)
    assert one["entries"] == [{"keys": {"status": 500}, "values": {"hitcount": 5}}]


def test_more_keys_than_a_histogram_has(cli: Cli) -> None:
    said = cli.fails("hist", "web", "a", "b", "c", "d", status=2)
    assert "a histogram has at most 3 keys, not 4 (a b c d)" in said


def hist_instances(cli: Cli) -> str:
    return cli.out("instance", "list")


def wait_for_trigger(cli: Cli, eventually: Eventually, process: "subprocess.Popen[bytes]") -> None:
    path = f"instances/hist-{process.pid}/events/user_events/web/trigger"
    eventually(
        lambda: hist_instances(cli) and "hist:keys=" in cli.run("cat", path).stdout.decode(), "it counts"
    )


def test_until_a_signal(traced: Cli, eventually: Eventually) -> None:
    """Ctrl-C: test_on_a_terminal. Which signals there are: tests/client/cli/run/test_run_loop.py."""
    traced.run("reg", "web u16 status")
    process = traced.start("hist", "web", "status")
    wait_for_trigger(traced, eventually, process)
    assert "Used by ftrace" in traced.out("cat", "user_events_status")
    for status in ("200", "200", "404"):
        traced.run("emit", "web", status)
    out, error = interrupt(process, signal.SIGTERM)
    assert (process.returncode, error) == (0, b"")
    assert out.decode() == (
        "user_events:web by status\nSTATUS  HITCOUNT\n   200         2\n   404         1\n"
        "3 records, 2 entries\n"
    )
    assert hist_instances(traced) == ""
    assert "Used by" not in traced.out("cat", "user_events_status")
    assert "hist:" not in traced.out("cat", "events/user_events/web/trigger")


def test_it_continues_with_the_next_daemon(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually
) -> None:
    traced.run("reg", "web u16 status")
    process = traced.start("hist", "web", "status")
    wait_for_trigger(traced, eventually, process)
    traced.run("emit", "web", "200")
    daemon.kill()
    daemon.wait()
    with running(traced.home / "d"):
        eventually(lambda: "to the tree: 2 of" in traced.out("cat", "daemon_stats"), "it is connected")
        traced.run("emit", "web", "200")
        out, error = interrupt(process, signal.SIGTERM)
    assert (process.returncode, out.decode()) == (
        0,
        "user_events:web by status\nSTATUS  HITCOUNT\n   200         2\n2 records, 1 entry\n",
    )
    assert error.endswith(b"; waiting for the next\n") and error.count(b"\n") == 1, error


def test_no_daemon_comes_back(traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually) -> None:
    traced.run("reg", "web u16 status")
    process = traced.start("hist", "web", "status")
    wait_for_trigger(traced, eventually, process)
    daemon.kill()
    assert process.stderr is not None
    assert process.stderr.readline().endswith(b"; waiting for the next\n")
    out, error = interrupt(process, signal.SIGTERM)
    assert (process.returncode, out) == (1, b"")
    assert error.endswith(b"the daemon closed the connection; the last counts are lost\n"), error


def test_an_event_that_comes_later_and_renewing(traced: Cli, eventually: Eventually) -> None:
    process = traced.start("hist", "later_*", "status", "--interval", "0.05")
    eventually(
        lambda: (
            hist_instances(traced) and traced.out("cat", f"instances/hist-{process.pid}/standing_triggers")
        ),
        "it waits",
    )
    traced.run("emit", "later_one u16 status", "7")
    assert process.stdout is not None
    assert process.stdout.readline() == b"user_events:later_one by status\n"
    assert b"     7         1\n" in iter(process.stdout.readline, b"")  # after tables without a record
    interrupt(process)
    assert process.returncode == 0


def test_records_above_the_size_of_a_page(cli: Cli) -> None:
    program = "import utracefs; utracefs.event('big u32 n; __rel_loc char[] text').emit(1, 'x' * 7000)"
    words = ("hist", "big", "n")
    command = ("--", sys.executable, "-c", program)
    error = cli.run(*words, *command).stderr.decode()
    assert (
        "1 records were lost before they could be counted, 1 too large for a page (--subbuf-size KB)" in error
    )
    done = cli.run(*words, "--subbuf-size", "8K", *command)
    assert done.stdout.endswith(b"1 record, 1 entry\n") and not done.stderr, done


def test_for_a_while_and_once(traced: Cli) -> None:
    traced.run("reg", "web u16 status")
    for words in (["--duration", "0.2"], ["--once", "--interval", "0.2"]):
        assert traced.out("hist", "web", "status", *words).endswith("0 records, 0 entries\n")
    out = traced.out("hist", "web", "status", "--json", "--interval", "0.05", "--duration", "0.3")
    assert out.count('"hits": 0') >= 2, "a list each time, and at the end"
    error = traced.run("hist", "never", "status", "--duration", "0.2", status=1).stderr
    assert error == b"utracefs: never: no such event came\n"


@pytest.mark.parametrize("end", [b"q", signal.SIGINT])
def test_on_a_terminal(traced: Cli, eventually: Eventually, end: bytes | signal.Signals) -> None:
    traced.run("reg", "web u16 status")
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        traced.command("hist", "web", "status", "--interval", "0.05"),
        env={**traced.env, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    try:
        wait_for_trigger(traced, eventually, process)
        traced.run("emit", "web", "404")
        while b"404" not in shown:
            shown += os.read(controller, 4096)
        if isinstance(end, bytes):
            os.write(controller, end)
        else:
            process.send_signal(end)
        while True:
            try:
                data = os.read(controller, 4096)
            except OSError:  # EIO: nobody has the other end any more
                break
            shown += data
    finally:
        process.kill()
        assert process.wait(60) == 0
        os.close(controller)
    text = shown.decode()
    assert "user_events:web by status" in text and "█" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor is shown again"


def test_what_the_event_has_already(traced: Cli) -> None:
    traced.run("reg", "web u16 status")
    traced.run("instance", "create", "mine")
    traced.run("enable", "-B", "mine", "web", "-R", "hist:keys=status")
    traced.run("emit", "web", "404")
    assert traced.out("hist", "-B", "mine", "web").splitlines()[2].split() == ["404", "1"]
    assert json.loads(traced.out("hist", "-B", "mine", "web", "--json"))[0]["hits"] == 1
    assert "has no histogram" in traced.fails("hist", "web")
    assert "no such event" in traced.fails("hist", "nosuch")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hist", "web", "--vals", "x"], "give KEYS"),
        (["hist", "web", "--", "true"], "give KEYS"),
        (["hist", "web", "status", "-B", "mine"], "-B shows histograms"),
        (["hist"], "Missing argument 'EVENT'"),
        (["hist", "-e", "web", "--once"], "give KEYS"),
    ],
)
def test_wrong_usage(cli: Cli, words: list[str], says: str) -> None:
    assert says in cli.run(*words, status=2).stderr.decode()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["stauts"],
            ["user_events:web: trigger: Couldn't find field; it has status, total", "  hist:keys=stauts"],
        ),
        (
            ["status", "--filter", "stauts > 1"],
            ["user_events:web: trigger: Field not found; it has status, total", "  stauts > 1"],
        ),
    ],
)
def test_what_does_not_fit_the_event(traced: Cli, words: list[str], says: list[str]) -> None:
    traced.run("reg", "web u16 status; struct double total 8")
    error = traced.run("hist", "web", *words, status=1).stderr.decode()
    line, text, caret = error.splitlines()
    assert line.startswith(f"utracefs: {says[0]}")
    assert text.startswith(says[1])
    assert caret.strip() == "^"
    assert hist_instances(traced) == ""


@pytest.mark.parametrize(
    ("words", "says", "line"),
    [
        (["stauts"], "Couldn't find field", "  hist:keys=stauts"),
        (["status", "--filter", "stauts == 1"], "Field not found", "  stauts == 1"),
    ],
)
def test_what_does_not_fit_an_event_that_comes(cli: Cli, words: list[str], says: str, line: str) -> None:
    """Whether or not the event is still there."""
    done = cli.run("hist", "web", *words, *emitter(5), status=1)
    assert done.stdout == b""
    first, text, caret, last = done.stderr.decode().splitlines()
    assert re.match(rf"utracefs: (user_events:)?web: trigger: {says}", first)
    assert text.startswith(line) and caret.strip() == "^"
    assert f"web: is without the trigger 'hist:keys={words[0]}" in last


def test_no_such_event_came(cli: Cli) -> None:
    done = cli.run("hist", "wbe", "status", *emitter(5), status=1)
    assert done.stdout == b""
    assert done.stderr.startswith(b"utracefs: wbe: no such event came")
