"""`utracefs cat`, `write`, `ls`, `stream`."""

import contextlib
import functools
import os
import re
import select
import signal
import subprocess

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.daemons.fake_daemon import wait_for
from tests.integration.conftest import running
from utracefs import Session
from utracefs.tree.tracefs import Tracefs


def test_files(traced: Cli) -> None:
    traced.run("write", "trace_clock", "mono")
    assert "[mono]" in traced.out("cat", "trace_clock")
    traced.run("write", "tracing_on", data=b"0\n")
    assert traced.out("cat", "tracing_on", "trace_clock").startswith("0\n")
    assert "tracing_on is 0" in traced.out("status")
    assert traced.fails("write", "trace_marker", "hello").startswith("utracefs: trace_marker: not recorded")
    traced.run("write", "tracing_on", "1")
    traced.run("reg", "a")
    traced.run("reg", "b")
    traced.run("echo", "--append", "set_event", "user_events:a", "user_events:b")
    assert traced.out("cat", "set_event") == "user_events:b\nuser_events:a\n"
    traced.run("write", "set_event", "user_events:a")
    assert traced.out("cat", "set_event") == "user_events:a\n"
    traced.run("write", "--no-newline", "trace_marker", "hello")
    assert "per_cpu/\n" in traced.out("ls")
    assert {"enable", "format", "id", "stats"} < set(traced.out("ls", "events/user_events/a/").split())
    assert "-rw-r----- enable\n" in traced.out("ls", "-l", "events/user_events/a")
    assert traced.out("ls", "trace") == "trace\n"
    assert traced.fails("cat", "nosuch").startswith("utracefs: nosuch: ")
    assert traced.fails("ls", "nosuch").startswith("utracefs: nosuch: ")
    assert traced.fails("write", "tracing_on", "x").startswith("utracefs: tracing_on: ")
    assert traced.fails("write", "nosuch/file", "x").startswith("utracefs: nosuch/file: ")
    assert (
        traced.fails("cat", "events") == "utracefs: events: is a directory; `utracefs ls events` lists it\n"
    )


def own(process: "subprocess.Popen[bytes]") -> str:
    return f"instances/stream-{process.pid}"


def shown(cli: Cli, path: str) -> str:
    """Empty while there is no such file."""
    with Tracefs(cli.env["UTRACEFS_DIR"], timeout_s=30) as tree, contextlib.suppress(FileNotFoundError):
        return tree.read_file(path).decode()
    return ""


def test_a_stream_with_filters(traced: Cli, eventually: Eventually) -> None:
    """A filter that does not fit a new event is reported at once, and at the end."""
    words = ["-e", "web", "-f", "status >= 500", "-e", "bad", "-f", "stauts == 1"]
    process = traced.start("stream", *words)
    assert process.stdout is not None and process.stderr is not None
    eventually(lambda: "bad" in shown(traced, f"{own(process)}/standing_events"), "stream began")
    traced.run("emit", "web u16 status", "200", status=0)
    traced.run("emit", "web u16 status", "500", status=0)
    assert process.stdout.readline().endswith(b"web: status=0x1f4 (500)\n")
    traced.run("emit", "bad u16 status", "7")
    assert process.stdout.readline().endswith(b"bad: status=0x7 (7)\n")
    assert process.stderr.readline() == b"utracefs: user_events:bad: filter: Field not found; it has status\n"
    for text in (b"  stauts == 1\n", b"         ^\n"):
        assert process.stderr.readline() == text
    _, error = interrupt(process)
    assert process.returncode == 1
    assert error.count(b"recorded without the filter") == 1


def test_a_stream_of_events_without_an_option(traced: Cli, eventually: Eventually) -> None:
    """A filter is about all of them."""
    for name in ("web", "other"):
        traced.run("reg", f"{name} u16 status")
    process = traced.start("stream", "web", "-f", "status >= 500", "other")
    eventually(lambda: "other" in shown(traced, f"{own(process)}/set_event"), "stream began")
    for status in ("200", "500"):
        for name in ("web", "other"):
            traced.run("emit", name, status)
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b" web: status=0x1f4 (500)\n")
    assert process.stdout.readline().endswith(b" other: status=0x1f4 (500)\n")
    interrupt(process)
    assert "give each EVENT a -e" in traced.fails("stream", "web", "-e", "other", status=2)
    done = traced.run("stream", "web", "--json", "-f", "status == 1", "--duration", "0.1")
    assert (done.stdout, done.stderr) == (b"", b"utracefs: stream: 0 records\n")


def test_a_stream_shows_the_selected_events(traced: Cli, eventually: Eventually) -> None:
    """And changes nothing else."""
    traced.run("reg", "kept u32 a")
    traced.run("reg", "other u32 a")
    traced.run("enable", "other")
    process = traced.start("stream", "-e", "kept", "-e", "later", "-e", "nosuch", "-e", "no*such")
    eventually(lambda: "no*such" in shown(traced, f"{own(process)}/standing_events"), "stream began")
    for event in ("other", "kept", "later u32 a"):
        traced.run("emit", event, "2")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"kept: a=0x2 (2)\n")
    assert process.stdout.readline().endswith(b"later: a=0x2 (2)\n")
    out, error = interrupt(process, signal.SIGTERM)
    assert (process.returncode, out) == (0, b"")
    assert error == (b"utracefs: nosuch: no such event came\nutracefs: no*such: no such event came\n")
    assert "other: a=0x2 (2)" in traced.out("cat", "trace"), "the others have theirs still"
    assert traced.out("cat", "standing_events", "set_event") == "user_events:other\n"
    assert traced.out("ls", "instances") == ""


def test_a_stream_of_nothing_says_so(traced: Cli, eventually: Eventually) -> None:
    done = traced.run("stream", "--duration", "0.2")
    assert done.stdout == b""
    assert done.stderr.startswith(b"utracefs: no event is enabled: `utracefs enable EVENT`")
    assert done.stderr.endswith(b"\nutracefs: no record came\n")
    traced.run("reg", "web u16 status")
    process = traced.start("stream", "web", "-f", "status >= 500")
    eventually(lambda: "web" in shown(traced, f"{own(process)}/set_event"), "stream began")
    traced.run("emit", "web", "200")
    assert interrupt(process) == (b"", b"utracefs: no record came, 1 filtered out\n")


def test_a_stream_continues_with_the_next_daemon(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually
) -> None:
    traced.run("reg", "kept u32 a")
    process = traced.start("stream", "kept")
    assert process.stdout is not None
    eventually(lambda: "kept" in shown(traced, f"{own(process)}/set_event"), "stream began")
    traced.run("emit", "kept", "1")
    assert process.stdout.readline().endswith(b"kept: a=0x1 (1)\n")
    daemon.kill()
    daemon.wait()
    with running(traced.home / "d") as next_daemon:
        eventually(lambda: "to the tree: 3 of" in traced.out("cat", "daemon_stats"), "it is connected")
        traced.run("emit", "kept", "2")
        assert process.stdout.readline().endswith(b"kept: a=0x2 (2)\n")
        assert next_daemon.process is not None
        next_daemon.process.send_signal(signal.SIGINT)  # leaves nothing
        next_daemon.process.wait(60)
        with running(traced.home / "d"):
            _, error = process.communicate(timeout=60)
    lines = error.decode().splitlines()
    assert [line.rpartition("; ")[2] for line in lines[:2]] == ["waiting for the next"] * 2
    assert lines[2].endswith(": the next daemon does not have it")
    assert process.returncode == 1


def test_a_stream_that_ends_before_the_next_daemon(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually
) -> None:
    process = traced.start("stream", "kept")
    eventually(lambda: "kept" in shown(traced, f"{own(process)}/standing_events"), "stream began")
    daemon.kill()
    assert process.stderr is not None
    assert process.stderr.readline().endswith(b"; waiting for the next\n")
    _, error = interrupt(process)
    assert error.endswith(b"utracefs: ended before the next daemon was found; later records are missing\n")


def test_other_commands_end_with_the_daemon(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    process = traced.start("cat", "trace_pipe")
    traced.run("write", "trace_marker", "a marker")
    assert process.stdout is not None
    assert process.stdout.readline().endswith(b"tracing_mark_write: a marker\n")
    daemon.kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and error.count(b"\n") == 1, error
    assert error.endswith(b"; give the command again when a daemon is there\n")


def test_a_stream_on_a_terminal_says_what_it_waits_for(traced: Cli) -> None:
    traced.run("reg", "here u8 x")
    terminal, end = os.openpty()
    process = traced.start("stream", "-e", "here", "-e", "never", "-e", "some*", stdout=end, stderr=end)
    os.close(end)
    shown = b""
    while not shown.endswith(b"\n"):
        shown += os.read(terminal, 4096)
    assert shown == b"utracefs: never: no such event yet; waiting for it\r\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    os.close(terminal)


def test_a_read_that_is_ended_returns_what_it_took_out(traced: Cli) -> None:
    with Tracefs(traced.env["UTRACEFS_DIR"]) as tree:
        handle = tree.open("trace_pipe")
        asked = tree.ask_read(handle, 1 << 16)
        assert tree.end_read(asked, handle) == b""
        handle = tree.open("trace_pipe")
        asked = tree.ask_read(handle, 1 << 16)
        traced.run("write", "trace_marker", "one")
        assert select.select([tree.fileno()], [], [], 60)[0]
        assert b": tracing_mark_write: one" in tree.end_read(asked, handle)


@pytest.mark.parametrize("to_a_full_pipe", [False, True])
def test_a_stream_that_ends_prints_or_counts_all(traced: Cli, to_a_full_pipe: bool) -> None:
    """Whatever moment the signal comes at."""
    out, out_w = os.pipe()
    words = traced.command("stream", "-e", "many")
    with (
        open(out, "rb") as file,
        Session(traced.env["UTRACEFS_DIR"]) as session,
        subprocess.Popen(words, stdout=out_w, stderr=subprocess.PIPE, env=traced.env) as process,
    ):
        os.close(out_w)
        event = session.event("many u32 n")
        wait_for(lambda: event.registered and event, timeout_s=60)
        for number in range(3000):
            event.emit(number)
        assert session.flush(60)
        text = b"" if to_a_full_pipe else os.read(out, 1 << 16)
        process.terminate()
        if to_a_full_pipe:
            assert process.wait(60) == 0
        text += file.read()
        assert process.stderr is not None
        error = process.stderr.read()
    left = re.search(rb"not printed when it ended: (\d+) more", error)
    assert text.count(b" many: ") + (int(left[1]) if left else 0) == 3000, error


def test_a_stream_in_the_background_of_a_script_ignores_ctrl_c(traced: Cli) -> None:
    out, out_w = os.pipe()
    words = traced.command("stream", "-e", "one")
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with (
        open(out, "rb", buffering=0) as file,
        Session(traced.env["UTRACEFS_DIR"]) as session,
        subprocess.Popen(words, stdout=out_w, env=traced.env, preexec_fn=ignore) as process,  # noqa: PLW1509
    ):
        os.close(out_w)
        event = session.event("one u32 n")
        wait_for(lambda: event.registered and event, timeout_s=60)
        for _ in range(2):
            event.emit(1)
            assert b" one: n=0x1 (1)" in file.read(4096)
            process.send_signal(signal.SIGINT)
        process.terminate()
