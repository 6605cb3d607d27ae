"""Each command against the real daemon."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.client.cli.kit import Cli, interrupt
from utracefs.tracefs import PerfAttr, Tracefs

Eventually = Callable[[Callable[[], object], str], None]

REQUEST = "http_request u16 status; s32 usec; __rel_loc char[] path"


def tree(cli: Cli) -> Tracefs:
    return Tracefs(cli.env["UTRACEFS_DIR"], timeout_s=30)


def test_declare_enable_emit_look_delete(traced: Cli) -> None:
    traced.run("reg", REQUEST)
    assert traced.out("list") == "user_events:http_request\n"
    assert traced.out("list", "-F", "http*") == f"user_events:{REQUEST}\n"
    (described,) = json.loads(traced.out("list", "--json"))
    assert (described["system"], described["name"], described["enabled"]) == (
        "user_events",
        "http_request",
        False,
    )
    assert described["fields"][1] == {"type": "s32", "name": "usec", "offset": 10, "size": 4, "signed": True}

    assert (
        traced.fails("emit", "http_request", "200", "5", "/")
        == "utracefs: http_request: nobody listens to it\n"
    )
    traced.run("enable", "http_request")
    assert traced.out("cat", "set_event") == "user_events:http_request\n"
    traced.run("emit", "http_request", "0xc8", "-5", "/größer")
    traced.run("emit", REQUEST, "404", "7", "/none")
    lines = traced.out("cat", "trace").splitlines()
    assert lines[-2].endswith("http_request: status=0xc8 (200) usec=0xfffffffb (-5) path=/größer")
    assert "does not fit u16" in traced.fails("emit", "http_request", "70000", "1", "/")
    assert "no such event" in traced.fails("emit", "nosuch", "70000")

    status = traced.out("status")
    assert re.search(r"^user_events:http_request +ftrace +2 +2 +0 +0$", status, re.MULTILINE)
    assert "recording, clock local, 1410 KiB" in status
    state = json.loads(traced.out("status", "--json", "http_request"))
    assert state["events"][0]["consumers"]["ftrace"] == {"recorded": 2, "filtered": 0, "lost": 0}
    assert state["buffer"]["entries"] == 2

    assert "user_events:http_request" in traced.out("list", "user_events:h*")
    assert "http_request" in traced.fails("reg", "-d", "http_request")  # enabled: EBUSY
    traced.run("disable", "user_events:*")
    traced.run("reg", "-d", "http_request")
    assert traced.out("list") == ""
    assert "no such event" in traced.fails("reg", "-d", "http_request")
    assert "no such event" in traced.fails("enable", "http_request")
    assert "no such event" in traced.fails("status", "http_request")


def test_an_event_without_fields(traced: Cli) -> None:
    traced.run("reg", "tick")
    traced.run("enable", "tick")
    traced.run("emit", "tick")
    assert "nobody listens" in traced.fails("emit", "tock")
    assert "tick:" in traced.out("cat", "trace")


def test_a_declaration_that_differs(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    assert traced.fails("reg", "ev u64 a").startswith("utracefs: ev: ")
    assert traced.fails("emit", "ev u64 a", "1").startswith("utracefs: ev: ")


def test_standing_events(traced: Cli) -> None:
    traced.run("enable", "--standing", "user_events:later*")
    assert traced.out("cat", "standing_events") == "user_events:later*\n"
    traced.run("emit", "later_one u32 a", "1")
    assert "later_one: a=0x1 (1)" in traced.out("cat", "trace")
    traced.run("disable", "user_events:later*")
    assert traced.out("cat", "standing_events", "set_event") == ""


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
    traced.run("echo", "-a", "set_event", "user_events:a", "user_events:b")
    assert traced.out("cat", "set_event") == "user_events:b\nuser_events:a\n"
    traced.run("write", "set_event", "user_events:a")
    assert traced.out("cat", "set_event") == "user_events:a\n"
    traced.run("write", "-n", "trace_marker", "hello")
    assert "per_cpu/\n" in traced.out("ls")
    assert traced.out("ls", "events/user_events/a/") == "enable\nformat\nid\nstats\n"
    assert "-rw-r----- enable\n" in traced.out("ls", "-l", "events/user_events/a")
    assert traced.out("ls", "trace") == "trace\n"
    assert traced.fails("cat", "nosuch").startswith("utracefs: nosuch: ")
    assert traced.fails("ls", "nosuch").startswith("utracefs: nosuch: ")
    assert traced.fails("write", "tracing_on", "x").startswith("utracefs: tracing_on: ")
    assert traced.fails("write", "nosuch/file", "x").startswith("utracefs: nosuch/file: ")
    assert traced.fails("cat", "events").startswith("utracefs: events: ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stream_and_what_it_changes_back(traced: Cli, eventually: Eventually, number: signal.Signals) -> None:
    traced.run("reg", "kept u32 a")
    traced.run("enable", "kept")
    process = traced.start("stream", "-e", "later", "-e", "kept")
    try:
        eventually(lambda: "later" in traced.out("cat", "standing_events"), "stream began")
        traced.run("emit", "later u32 a", "7")
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"later: a=0x7 (7)\n")
    finally:
        out, error = interrupt(process, number)
    assert (process.returncode, out, error) == (0, b"", b"")
    assert traced.out("cat", "standing_events", "set_event") == "user_events:kept\n"


def test_streams_exclude_each_other(traced: Cli) -> None:
    process = traced.start("stream")
    try:
        # Its first line says that it reads; asking by opening trace_pipe could keep it out.
        traced.run("write", "trace_marker", "anybody there")
        assert process.stdout is not None
        assert process.stdout.readline().endswith(b"tracing_mark_write: anybody there\n")
        assert traced.fails("stream").startswith("utracefs: trace_pipe: ")
    finally:
        interrupt(process)


def test_perf_stat(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    emit = traced.command("emit", "ev", "5")
    out = traced.out("perf", "stat", "-e", "ev", "-e", "nosuch", "--", *emit)
    assert re.search(r"^ +1  user_events:ev$", out, re.MULTILINE)
    assert re.search(r"<no such event>  nosuch$", out, re.MULTILINE)
    counted = json.loads(traced.out("perf", "stat", "--json", "--", *emit))
    assert counted["events"] == {"user_events:ev": 1}
    assert counted["seconds"] > 0
    assert json.loads(traced.out("perf", "stat", "--json", "--duration", "0.05"))["events"] == {
        "user_events:ev": 0
    }
    traced.run("perf", "stat", "--", "sh", "-c", "exit 3", status=3)
    assert traced.out("cat", "user_events_status") == "ev\n\nActive: 1\nBusy: 0\n"


def test_perf_record(traced: Cli) -> None:
    traced.run("reg", REQUEST)
    emit = traced.command("emit", "http_request", "200", "-5", "/a b")
    out = traced.out("perf", "record", "-e", "http*", "--", *emit)
    assert re.fullmatch(
        r" +python\S* +(\d+)/\1 +\[\d{3}\] +\d+\.\d{6}: user_events:http_request: status=200 usec=-5 path=/a b\n",
        out,
    )
    assert traced.out("perf", "record", "-F", "100", "--duration", "0.05") == ""


EMITTER = """
import sys, utracefs
e = utracefs.event("many u32 n")
bool(e)
for n in range(int(sys.argv[1])):
    e.emit(n)
utracefs.flush(20)
"""


def test_perf_record_shows_what_was_lost(traced: Cli) -> None:
    traced.run("reg", "many u32 n")
    words = ["perf", "record", "-e", "many", "-m", "1", "--", sys.executable, "-c", EMITTER, "20000"]
    lines = traced.out(*words).splitlines()
    samples = sum(": user_events:many: n=" in line for line in lines)
    lost = sum(
        int(m[1]) for line in lines if (m := re.fullmatch(r"user_events:many: LOST (\d+) SAMPLES", line))
    )
    stats = traced.out("cat", "events/user_events/many/stats")
    emitted = int(re.findall(r"emitted: (\d+)", stats)[0])
    assert samples
    assert samples + lost <= emitted <= 20000


def test_attach(traced: Cli) -> None:
    assert "tally" in traced.out("attach", "--list").split()
    traced.run("reg", "ev u32 a")
    traced.run("attach", "tally", "-e", "user_events:*")
    assert "tally user_events:ev" in traced.out("attach", "--list")
    assert "ev # Used by other" in traced.out("cat", "user_events_status")
    traced.run("emit", "ev", "5")
    assert traced.out("attach", "tally", "--report") == "1 records\n"
    assert traced.out("attach", "tally", "-e", "ev", "--detach", "--report") == "1 records\n"
    assert traced.out("cat", "consumers/tally/set_event") == ""
    assert traced.fails("attach", "nosuch", "--report").startswith("utracefs: consumers/nosuch/report: ")
    assert traced.fails("attach", "tally", "-e", "nosuch").startswith("utracefs: nosuch: no such event")
    traced.run("attach", "tally", status=2)


def test_attach_for_a_while(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    emit = traced.command("emit", "ev", "5")
    assert traced.out("attach", "tally", "--", *emit) == "1 records\n"
    assert traced.out("attach", "tally", "-e", "ev", "--duration", "0.1") == "1 records\n"
    assert traced.out("cat", "consumers/tally/set_event") == ""
    traced.run("attach", "tally", "--", "sh", "-c", "exit 4", status=4)


def test_the_same_tree_for_programs(traced: Cli) -> None:
    directory = traced.env["UTRACEFS_DIR"]
    with Tracefs(directory, timeout_s=30) as tree:
        assert tree.directory == directory
        assert tree.read_file("tracing_on") == b"1\n"
        tree.write_file("tracing_on", b"0")
        assert tree.read_file("/tracing_on") == b"0\n"
        assert ("trace", "f") in tree.list_dir("")
        assert tree.stat("events").kind == "d"
        with pytest.raises(OSError) as caught:
            tree.write_file("tracing_on", b"x")
        assert caught.value.errno == errno.EINVAL
        pipe = tree.open("trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        with pytest.raises(BlockingIOError):
            tree.read(pipe, 100)
        with pytest.raises(OSError) as caught:
            tree.open("trace_pipe")
        assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, "trace_pipe")
        tree.close_handle(pipe)
        tree.write_file("dynamic_events", b"u:ev u32 a\n", truncate=False)
        handle, fd = tree.perf_event_open(PerfAttr(name=b"user_events:ev", data_pages=2, sample_period=1))
        assert fd is not None
        assert os.fstat(fd).st_size == 3 * 4096
        os.close(fd)
        assert tree.read(handle, 8) == bytes(8)
        with pytest.raises(FileNotFoundError) as caught_missing:
            tree.perf_event_open(PerfAttr(name=b"user_events:nosuch"))
        assert caught_missing.value.filename == "user_events:nosuch"


def levels(cli: Cli, *words: str, status: int) -> dict[str, str]:
    found = json.loads(cli.run("doctor", "--json", *words, status=status).stdout)
    return {one["what"]: f"{one['level']} {one['text']}" for one in found}


def test_doctor_without_a_daemon(cli: Cli) -> None:
    said = levels(cli, status=1)
    assert said["sockets"].startswith("FAIL none in ")
    assert "utracefs daemon" in said["sockets"]


def test_doctor_finds_what_is_wrong(traced: Cli) -> None:
    directory = traced.env["UTRACEFS_DIR"]
    said = levels(traced, status=0)
    assert said["sockets"] == f"ok in {directory}"
    assert said["UTRACEFS_DIR"].startswith(f"note is {directory}")
    assert said[f"{directory}/user_events_data"].startswith(
        "ok applications can connect; status page of 4095"
    )
    assert said["events"].startswith("note none")
    traced.run("reg", "ev u32 a")
    assert levels(traced, status=1)["enabled"].startswith("FAIL nobody listens to user_events:ev")
    assert levels(traced, "ev", status=1)["user_events:ev"].startswith("FAIL nobody listens")
    assert levels(traced, "nosuch", status=1)["nosuch"].startswith("FAIL no program")
    traced.run("enable", "ev")
    assert levels(traced, "ev", status=0)["user_events:ev"].startswith("note nothing was emitted")
    traced.run("emit", "ev", "1")
    assert levels(traced, "ev", status=0)["user_events:ev"] == "ok 1 emitted, all recorded"
    traced.run("write", "tracing_on", "0")
    traced.run("emit", "ev", "1")
    said = levels(traced, "ev", status=1)
    assert said["tracing_on"].startswith("FAIL 0")
    assert said["user_events:ev"].startswith("note ftrace kept 1 away")
    traced.run("write", "set_event_pid", "1")
    assert "only 1 threads" in levels(traced, status=1)["set_event_pid"]
    assert traced.run("doctor", status=1).stdout.startswith(b"ok    client: utracefs ")


def test_doctor_of_a_daemon_that_is_gone(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    daemon.kill()
    daemon.wait()
    said = levels(traced, status=1)
    assert "no daemon answers there any more" in " ".join(said.values())
    assert "no daemon answers there any more" in traced.fails("status")


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
