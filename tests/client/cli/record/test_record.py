"""`utracefs record`: with a daemon of its own and with one that runs, however it ends."""

import fcntl
import functools
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import utracefs
from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.recordings.events import trace_cmd
from tests.integration.conftest import running
from tests.integration.mount.mounting import wait_for
from utracefs.cli import cli as cli_group

EMITTER = """
import signal, sys, time, utracefs
count, then = int(sys.argv[1]), sys.argv[2]
event = utracefs.event("ticks u32 n; s32 minus; __rel_loc char[] text")
bool(event)
for n in range(count):
    event.emit(n, -n, "text %d" % n)
utracefs.flush(60)
if then == "wait":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
    try:
        print("emitted", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        event.emit(10**6, 0, "last words")
        sys.exit(5)
print("emitted", flush=True)
if then == "stubborn":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("stubborn", flush=True)
    time.sleep(60)
sys.exit(int(then) if then.isdigit() else 0)
"""


def emitter(count: int, then: str = "0") -> list[str]:
    return ["--", sys.executable, "-c", EMITTER, str(count), then]


def fields(cli: Cli, file: str = "trace.dat") -> list[dict[str, object]]:
    found = [json.loads(line) for line in cli.out("report", "--json", file).splitlines()]
    assert not [one for one in found if "lost" in one]
    return [one["fields"] for one in found]


def test_a_daemon_of_its_own(cli: Cli) -> None:
    """Its files in /dev/shm: test_choose_daemon.py."""
    done = cli.run("record", *emitter(3000))
    assert os.listdir(cli.home) == ["trace.dat"]
    assert re.fullmatch(rb"utracefs: trace.dat: 3000 records, [\d.]+ k?MB?, nothing lost\n", done.stderr), (
        done.stderr
    )
    assert done.stdout == b"emitted\n"
    assert fields(cli) == [{"n": n, "minus": -n, "text": f"text {n}"} for n in range(3000)]


def test_trace_cmd_agrees(cli: Cli) -> None:
    cli.run("record", "-o", "out.dat", "-k", "mono", *emitter(500))
    path = str(cli.home / "out.dat")
    assert "is a valid trace-cmd file" in trace_cmd("dump", "--validate", "-i", path)
    for words in ([], ["-t"]):
        assert trace_cmd("report", *words, "-i", path) == cli.out("report", *words, path)
    assert "entries: 0" in trace_cmd("report", "--stat", "-i", path)
    assert "entries: 0" in cli.out("report", "--stat", path)


def test_the_exit_status_is_the_command_s(cli: Cli) -> None:
    """Others: test_run_loop.py."""
    done = cli.run("record", "--", "sh", "-c", "kill -9 $$", status=137)
    assert b": 0 records, " in done.stderr
    assert done.stderr.endswith(b", nothing lost; no record came from the command\n")
    assert re.fullmatch(r"cpus=\d+\n", cli.out("report"))


def test_commands_that_cannot_be_run(cli: Cli) -> None:
    assert cli.fails("record", "--", "nosuch", status=127) == "utracefs: nosuch: command not found\n"
    assert cli.fails("record", "--", "/etc/passwd", status=126).startswith("utracefs: /etc/passwd: ")
    assert os.listdir(cli.home) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["-o", "no/where.dat"], "utracefs: no/where.dat: No such file or directory"),
        (["-k", "nosuch"], "utracefs: trace_clock: "),
        (["-e", "fine", "-b", "99999999999"], "utracefs: buffer_size_kb: "),
        (
            ["-e", "later", "-R", "traceof if x > 1"],
            "utracefs: later: trigger: there is no trigger 'traceof'; ",
        ),
        (["--wall-clock", "-k", "counter"], "utracefs: trace_clock: counter does not tell times"),
        (["-k", "boot", "-o", "x.data"], "utracefs: x.data: perf.data needs times of CLOCK_MONOTONIC"),
    ],
)
def test_what_cannot_be_done_leaves_nothing(traced: Cli, words: list[str], says: str) -> None:
    state = traced.out("cat", "trace_clock", "standing_events", "set_event", "tracing_on")
    error = traced.run("record", *words, "--", "true", status=1).stderr
    assert error.decode().startswith(says)
    assert traced.out("cat", "trace_clock", "standing_events", "set_event", "tracing_on") == state
    assert [p.name for p in traced.home.iterdir()] == ["d"]


FILES = (
    "tracing_on",
    "trace_clock",
    "buffer_size_kb",
    "options/overwrite",
    "standing_events",
    "standing_filters",
    "standing_triggers",
    "set_event",
    "events/user_events/ticks/filter",
    "events/user_events/ticks/trigger",
)


def test_the_daemon_that_runs_is_left_as_it_was(traced: Cli) -> None:
    traced.run("reg", "kept u32 a")
    traced.run("reg", "ticks u32 n; s32 minus; __rel_loc char[] text")
    traced.run("enable", "kept")
    traced.run("emit", "kept", "1")
    traced.run("write", "tracing_on", "0")
    traced.run("enable", "--standing", "other*")
    before = traced.out("cat", *FILES, "trace")
    words = ["-e", "ticks", "--filter", "n < 1000", "-R", "traceoff if n == 5000", "-e", "kept"]
    traced.run("record", *words, "-k", "mono", "-b", "4000", "--no-overwrite", *emitter(1001))
    assert traced.out("cat", *FILES, "trace") == before
    assert traced.out("ls", "instances") == ""
    assert [one["n"] for one in fields(traced)] == list(range(1000))


def test_keep_what_is_in_the_buffer(traced: Cli) -> None:
    traced.run("reg", "kept u32 a")
    traced.run("enable", "kept")
    traced.run("emit", "kept", "1")
    done = traced.run("record", "--keep", "--duration", "0.1")
    assert b"1 record, " in done.stderr and b"nothing lost" in done.stderr, done.stderr
    assert fields(traced) == [{"a": 1}]
    assert traced.out("cat", "set_event") == "user_events:kept\n"
    assert (
        "--keep uses the instance unchanged"
        in traced.run("record", "--keep", "-e", "x", status=2).stderr.decode()
    )


def test_two_records_a_stream_and_a_clear(traced: Cli, eventually: Eventually) -> None:
    """Each has all records of the time in which it ran, and takes none from the others."""
    traced.run("reg", "shared u32 a")
    traced.run("enable", "shared")
    first = traced.start("record", "-o", "first.dat", "-e", "shared")
    stream = traced.start("stream")
    one = traced.start("stream", "-e", "shared")
    eventually(lambda: len(traced.out("ls", "instances").split()) == 2, "both are there")
    eventually(lambda: traced.standing().count("shared") == 2, "both want it")
    traced.run("emit", "shared", "1")
    traced.run("write", "trace", "")
    second = traced.start("record", "-o", "second.dat", "-e", "shared")
    eventually(lambda: traced.standing().count("shared") == 3, "the second began")
    traced.run("emit", "shared", "2")
    assert stream.stdout is not None
    assert one.stdout is not None
    for value in (1, 2):
        assert one.stdout.readline().endswith(b"a=0x%d (%d)\n" % (value, value))
    assert stream.stdout.readline().endswith(b"a=0x1 (1)\n")
    _, error = interrupt(first)
    assert b"2 records, " in error and b"nothing lost" in error
    _, error = interrupt(second)
    assert b"1 record, " in error and b"nothing lost" in error
    interrupt(stream)
    interrupt(one)
    assert fields(traced, "first.dat") == [{"a": 1}, {"a": 2}]
    assert fields(traced, "second.dat") == [{"a": 2}]
    assert traced.out("ls", "instances") == ""


def test_a_recorder_that_is_killed(traced: Cli, eventually: Eventually) -> None:
    """No instance is left; the written records are in NAME.part."""
    process = traced.recording("-o", "k.dat", event="ev u32 a")
    traced.run("emit", "ev", "7")
    part = traced.home / "k.dat.part"
    eventually(lambda: b"name: ev" in part.read_bytes(), "it has the record's event")
    eventually(
        lambda: " a=7" in traced.run("report", "--recover", str(part)).stdout.decode(), "and the record"
    )
    process.kill()
    process.communicate()
    assert " a=7" in traced.out("report", "--recover", str(part))
    assert "--recover" in traced.fails("report", str(part))
    eventually(lambda: not traced.out("ls", "instances"), "its instance is gone")
    assert "Used by" not in traced.out("cat", "user_events_status")


FULL = """
import utracefs
event = utracefs.event("ev u32 n; char[1000] text")
while not (event.registered and event):
    pass
for n in range(3000):
    event.emit(n, b"x")
    n % 100 or utracefs.flush(60)
utracefs.flush(60)
"""


def test_a_disk_that_is_full(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the records that fit, and all readers take it; the others are counted."""
    (cli.home / "f.dat").write_bytes(b"old")
    program = (
        "import resource, sys; from utracefs.cli import main; from utracefs.cli.record import record\n"
        "make = record.Recorder\n"
        "def limited(*args, **options):\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))\n"
        "    return make(*args, **options)\n"
        "record.Recorder = limited; main(sys.argv[1:])"
    )
    monkeypatch.setattr(cli, "command", lambda *words: [sys.executable, "-c", program, *words])
    words = ("record", "-b", "8192", "-o", "f.dat", "--", sys.executable, "-c", FULL)
    error = cli.run(*words, status=1).stderr.decode()
    found = re.search(r"f.dat: (\d+) records, .*, (\d+) lost: (\d+) without room on the disk\n", error)
    assert found, error
    kept, lost, no_room = map(int, found.groups())
    assert kept + lost == 3000 and lost == no_room and kept > 1000
    assert error.endswith(f"f.dat: File too large; it has what fitted, {no_room} records did not\n")
    assert cli.out("report", "f.dat").count(" ev: ") == kept
    assert trace_cmd("report", "-i", str(cli.home / "f.dat")).count(" ev: ") == kept
    assert f"no room on the disk: {no_room}\n" in cli.out("report", "--stat", "f.dat")
    assert sorted(os.listdir(cli.home)) == ["f.dat"]


def test_embedded_beside_a_running_one(traced: Cli) -> None:
    traced.run("record", "--embedded", *emitter(10))
    assert len(fields(traced)) == 10
    assert traced.out("list") == ""


def test_events_that_are_not_selected(cli: Cli) -> None:
    """No record: an error, and no empty file. Some records: a file, and an error."""
    said = b"utracefs: user_events:tocks t*ks: no such event came; trace.dat is not written; "
    said += b"without -e all are recorded\n"
    done = cli.run("record", "-e", "user_events:tocks", "-e", "t*ks", "--", "true", status=1)
    assert done.stderr == said
    assert cli.run("record", "-e", "user_events:tocks", "-e", "t*ks", "--", "false", status=1).stderr == said
    cli.run("record", "-e", "tocks", "--", "sh", "-c", "exit 7", status=7)
    assert os.listdir(cli.home) == []
    done = cli.run("record", "-e", "tocks", "-e", "ticks", *emitter(10), status=1)
    assert done.stderr.startswith(b"utracefs: tocks: no such event came\nutracefs: trace.dat: 10 records, ")
    assert len(fields(cli)) == 10


def test_no_record_from_the_daemon_that_runs(traced: Cli) -> None:
    """Only a running daemon can give the reason."""
    traced.run("reg", "tocks u32 n")
    done = traced.run("record", "-e", "tocks", "--", "true")
    assert b"; no record of tocks came, `utracefs doctor` may know why\n" in done.stderr


def test_until_ctrl_c_without_a_command(traced: Cli, eventually: Eventually) -> None:
    process = traced.start("record")
    try:
        eventually(lambda: "*" in traced.standing(), "it records")
        traced.run("emit", "later u32 a", "3")
    finally:
        _, error = interrupt(process)
    assert process.returncode == 0
    assert b"1 record, " in error
    assert fields(traced) == [{"a": 3}]
    assert traced.out("cat", "standing_events", "set_event") == ""


def test_for_some_time(traced: Cli) -> None:
    began = time.monotonic()
    traced.run("record", "--duration", "0.3")
    assert 0.3 <= time.monotonic() - began < 20
    traced.run("record", "--duration", "60", *emitter(5), status=0)  # ends when the command does
    assert len(fields(traced)) == 5
    traced.run("record", "--duration", "0.3", "--", "sleep", "60", status=0)


def started(cli: Cli, then: str, **options: object) -> "subprocess.Popen[bytes]":
    """A recording whose command has emitted 100 records."""
    process = cli.start("record", *emitter(100, then), **options)
    assert process.stdout is not None
    assert process.stdout.readline() == b"emitted\n"
    return process


def test_ctrl_c_in_the_terminal_goes_to_both(cli: Cli) -> None:
    terminal, end = os.openpty()
    try:
        process = started(
            cli,
            "wait",
            stdin=end,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(end, termios.TIOCSCTTY, 0),
        )
        os.write(terminal, b"\3")
        _, error = process.communicate(timeout=60)
    finally:
        os.close(terminal)
        os.close(end)
    assert process.returncode == 5
    assert fields(cli)[-1] == {"n": 10**6, "minus": 0, "text": "last words"}
    assert b"101 records" in error


def test_a_terminal_shows_which_events_are_not_there_yet(traced: Cli) -> None:
    terminal, end = os.openpty()
    try:
        process = traced.start("record", "-e", "tihs", "--duration", "0.1", stderr=end)
        assert process.wait(60) == 1
        said = os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.close(end)
    assert b"tihs: no such event yet; waiting for it" in said


def test_a_command_that_does_not_end(cli: Cli, eventually: Eventually) -> None:
    process = started(cli, "stubborn")
    assert process.stdout is not None
    assert process.stdout.readline() == b"stubborn\n"
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr

    def interrupted() -> bool:
        process.send_signal(signal.SIGINT)
        return bool(select.select([stderr], [], [], 0)[0])

    # Signals of one number at the same time are one.
    eventually(interrupted, "a second interrupt ends it")
    error = stderr.readline()
    goes_on = re.search(rb"continues unobserved \(pid (\d+)\)", error)
    assert goes_on, error
    os.kill(int(goes_on[1]), signal.SIGKILL)
    process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 130
    assert len(fields(cli)) == 100


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_next_daemon(
    traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually, end: signal.Signals
) -> None:
    """Also after a SIGTERM: the daemon leaves its state, since a program is connected."""
    with utracefs.Session(traced.env["UTRACEFS_DIR"]) as session:
        event = session.event("ev u32 a")
        process = traced.start("record", "--filter", "a < 9")
        eventually(lambda: "ftrace" in traced.out("cat", "user_events_status"), "it records")
        event.emit(7)
        event.emit(9)
        daemon.send_signal(end)
        daemon.wait()
        with running(traced.home / "d"):
            eventually(lambda: "ftrace" in traced.out("cat", "user_events_status"), "it does again")
            for value in ("9", "8"):
                traced.run("emit", "ev", value)
            _, error = interrupt(process)
            assert traced.out("ls", "instances") == ""
    assert process.returncode == 0 and b"the daemon closed the connection; waiting for the next\n" in error
    assert b"nothing lost as far as the daemon had reported before it ended\n" in error
    assert [one["a"] for one in fields(traced)] == [7, 8]


def test_a_snapshot_in_the_next_daemon(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    """It has the ring buffer."""
    process = traced.recording("--snapshot", event="ev u32 a")
    traced.run("emit", "ev", "7")
    daemon.kill()
    daemon.wait()
    with running(traced.home / "d"):
        traced.run("emit", "ev", "8")
        assert process.stderr is not None
        assert b"waiting for the next\n" in process.stderr.readline()
        _, error = interrupt(process)
    assert process.returncode == 0
    assert b"trace.dat: 2 records in the snapshot, " in error
    assert [one["a"] for one in fields(traced)] == [7, 8]


LARGE = """
import utracefs
utracefs.event("ev u32 a; __rel_loc char[] text").emit(7, "x" * 60000)
"""


@pytest.mark.parametrize(("options", "lost"), [([], True), (["--subbuf-size", "64"], False)])
def test_records_larger_than_a_page(traced: Cli, options: list[str], *, lost: bool) -> None:
    command = [sys.executable, "-c", LARGE]
    error = traced.run("record", *options, "--", *command).stderr.decode()
    assert ("1 too large for a page of the buffer (--subbuf-size KB)" in error) is lost
    assert [one["a"] for one in fields(traced)] == ([] if lost else [7])


def test_no_next_daemon(traced: Cli, daemon: "subprocess.Popen[bytes]", eventually: Eventually) -> None:
    process = started(traced, "wait")
    eventually(lambda: _read_events(process, traced) >= 100, "all pages are read")
    daemon.kill()
    assert process.stderr is not None
    assert b"the daemon closed the connection; waiting for the next\n" in process.stderr.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # the command is left alone
    _, error = interrupt(process)
    assert process.returncode == 1
    assert b"nothing lost as far as the daemon had reported before it ended\n" in error
    assert b"trace.dat has the records until then" in error
    assert len(fields(traced)) == 100


def _read_events(process: "subprocess.Popen[bytes]", cli: Cli) -> int:
    cpus = range(os.sysconf("SC_NPROCESSORS_CONF"))
    texts = cli.out("cat", *(f"instances/record-{process.pid}/per_cpu/cpu{cpu}/stats" for cpu in cpus))
    return sum(map(int, re.findall(r"^read events: (\d+)$", texts, re.MULTILINE)))


def test_a_killed_recorder_takes_its_daemon_with_it(cli: Cli, eventually: Eventually) -> None:
    process = started(cli, "wait")
    (directory,) = (path for path in cli.home.iterdir() if path.is_dir())
    pid = int((directory / "utracefsd.lock").read_text())
    child = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[-1])
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.communicate(timeout=60)
    eventually(lambda: not os.path.exists(f"/proc/{pid}") or _is_zombie(pid), "the daemon ended")
    assert not (cli.home / "trace.dat").exists()


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_wall_clock(cli: Cli) -> None:
    before = time.time()
    cli.run("record", "--wall-clock", *emitter(3))
    stamps = [json.loads(line)["time_ns"] / 1e9 for line in cli.out("report", "--json").splitlines()]
    assert all(before - 0.01 <= stamp <= time.time() + 0.01 for stamp in stamps)


def test_markers(traced: Cli, eventually: Eventually) -> None:
    process = traced.start("record")
    try:
        eventually(lambda: "*" in traced.standing(), "it records")
        traced.run("write", "trace_marker", "a marker")
    finally:
        interrupt(process)
    line = traced.out("report").splitlines()[1]
    assert re.search(r"-\d+ .*: print: +tracing_mark_write: a marker$", line), line


FLOOD = """
import sys, time, utracefs
event = utracefs.event("flood u64 n; u64 m")
bool(event)
n = 0
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    for _ in range(500):
        event.emit(n, n)
        n += 1
    time.sleep(0.002)
utracefs.flush(60)
print(n, utracefs.stats().lost)
"""


def test_a_busy_program_is_recorded_whole(cli: Cli) -> None:
    """About 200,000 records/s for 0.7 seconds: several times the ring buffer."""
    done = cli.run("record", "--", sys.executable, "-c", FLOOD, "0.7")
    emitted = int(done.stdout.split()[0])
    found = re.search(rb": (\d+) records, .*?, (nothing|\d+) lost", done.stderr)
    assert found, done.stderr
    assert found[2] == b"nothing", done.stderr
    assert int(found[1]) >= emitted - int(done.stdout.split()[1])
    assert len(cli.out("report").splitlines()) == int(found[1]) + 1


@pytest.mark.parametrize("words", ["record -e web", "perf record -e web", "perf stat -e web", "hist web n"])
def test_in_the_background_of_a_script_sigint_ends_it(traced: Cli, words: str) -> None:
    """As perf and trace-cmd. A COMMAND inherits that it is ignored."""
    traced.run("reg", "web u32 n")
    ignore = functools.partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    with subprocess.Popen(
        traced.command(*words.split()),
        env=traced.env,
        cwd=traced.home,
        stderr=subprocess.DEVNULL,
        preexec_fn=ignore,  # noqa: PLW1509
    ) as process:
        wait_for(lambda: "Used by" in traced.out("cat", "user_events_status"), "it is attached")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


MANY = """
import os, select, socket
found = [socket.socket(socket.AF_UNIX) for _ in range(40)]
for one in found:
    one.connect(os.environ["UTRACEFS_DIR"] + "/user_events_data")
select.select(found, [], [])  # which of them are refused is left to the daemon
"""


def test_programs_that_the_daemon_refused(cli: Cli) -> None:
    """Their records may be in no number, so "nothing lost" is not all."""
    few = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64))
    with cli.start("record", "--", sys.executable, "-c", MANY, preexec_fn=few) as process:
        _, error = process.communicate(timeout=60)
    assert re.search(rb"utracefs: \d+ connections of programs were refused; .* the daemon's log says", error)


WEB = """
import sys, utracefs
event = utracefs.event("web u16 status; __rel_loc char[] path")
bool(event)
for n in range(100):
    event.emit(500 if n % 10 == 0 else 200, "/%d" % n)
utracefs.flush(60)
"""


def web() -> list[str]:
    return ["--", sys.executable, "-c", WEB]


def test_a_filter_of_an_event_that_the_command_declares(cli: Cli) -> None:
    """Not one record gets past it."""
    done = cli.run("record", "-e", "we*", "--filter", "status >= 500", *web())
    assert re.fullmatch(
        rb"utracefs: trace.dat: 10 records, 90 filtered out, [\d.]+ [kM]B, nothing lost\n", done.stderr
    ), done.stderr
    assert [one["status"] for one in fields(cli)] == [500] * 10


def test_a_filter_of_an_event_that_exists(traced: Cli) -> None:
    traced.run("reg", "web u16 status; __rel_loc char[] path")
    done = traced.run("record", "-e", "*", "-e", "web", "-f", "status == 200", "-f", 'path ~ "*5"', *web())
    assert b"10 records, 90 filtered out" in done.stderr
    assert {str(one["path"])[-1] for one in fields(traced)} == {"5"}
    assert traced.out("cat", "events/user_events/web/filter") == "none\n"


def test_a_filter_that_does_not_fit_what_comes(cli: Cli) -> None:
    """It is reported, also at the end; a recording with too many records is better than none."""
    done = cli.run("record", "-e", "web", "--filter", "stauts >= 500", *web(), status=1)
    first, text, caret, again, last = done.stderr.decode().splitlines()
    assert (first, text) == (
        "utracefs: user_events:web: filter: Field not found; it has status, path",
        "  stauts >= 500",
    )
    assert caret == "         ^"
    assert again == "utracefs: user_events:web: recorded without the filter 'stauts >= 500': Field not found"
    assert "100 records, 0 filtered out" in last
    assert len(fields(cli)) == 100
    assert cli.run("record", "-e", "web", "-f", "x == 1", "--", "sh", "-c", "exit 7", status=7)


def test_a_trigger_ends_a_recording(cli: Cli) -> None:
    cli.run("record", "-e", "web", "-R", 'traceoff if path == "/29"', *web())
    assert [one["path"] for one in fields(cli)] == [f"/{n}" for n in range(30)]


def test_a_snapshot_that_a_trigger_takes(cli: Cli) -> None:
    """With a filter the record that takes it is its last."""
    words = ["--snapshot", "-e", "web", "-R", 'snapshot if path == "/29"']
    done = cli.run("record", *words, *web())
    assert [one["path"] for one in fields(cli)] == [f"/{n}" for n in range(30)]
    assert b": 30 records of 100 in the snapshot, " in done.stderr and b"nothing lost" in done.stderr


def test_a_snapshot_at_the_end(cli: Cli) -> None:
    done = cli.run("record", "--snapshot", "-e", "web", *web())
    assert len(fields(cli)) == 100
    assert b"100 records of 100 in the snapshot" in done.stderr


def test_a_snapshot_of_the_first_records(cli: Cli) -> None:
    """Its ring is swapped out, with the numbers that say why records were lost."""
    done = cli.run("record", "--snapshot", "--no-overwrite", "-b", "1", *emitter(5000))
    assert re.search(rb" (\d+) lost: \1 dropped by the full buffer", done.stderr), done.stderr


def test_a_snapshot_that_no_trigger_took(cli: Cli) -> None:
    done = cli.run("record", "--snapshot", "-e", "web", "-R", "snapshot if status == 7", *web())
    assert fields(cli) == []
    assert b"0 records of 100 in the snapshot" in done.stderr
    assert done.stderr.endswith(b"; no trigger took a snapshot\n")


@pytest.mark.parametrize("words", [("record", "--snapshot"), ("perf", "record", "-e", "ev")])
def test_sigusr2_writes_what_there_is_and_sigusr1_ends_it(
    traced: Cli, eventually: Eventually, words: tuple[str, ...]
) -> None:
    traced.run("reg", "ev u32 a")
    process = traced.start(*words, "-o", "out")
    eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")

    def written() -> list[Path]:
        return sorted(path for path in traced.home.glob("out.2*") if ".part" not in path.name)

    for number in range(2):
        traced.run("emit", "ev", str(number))
        process.send_signal(signal.SIGUSR2)
        eventually(lambda: len(written()) == number + 1, "it is written")  # noqa: B023
    traced.run("emit", "ev", "2")
    _, error = interrupt(process, signal.SIGUSR1)
    assert process.returncode == 0, error
    files = [*written(), traced.home / "out"]
    for number, file in enumerate(files):
        lines = traced.out("export", str(file)).splitlines()
        assert [json.loads(line)["fields"]["a"] for line in lines] == [number]
        assert file.name.encode() in error
    assert not list(traced.home.glob("*.part*"))


@pytest.mark.parametrize("words", [("record",), ("perf", "record")])
def test_standard_error_is_closed(traced: Cli, eventually: Eventually, words: tuple[str, ...]) -> None:
    """For example after the end of the terminal: the file is complete."""
    traced.run("reg", "ev u32 a")
    process = traced.start(*words, "-e", "ev", "-e", "nosuch", "-o", "out")
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    eventually(lambda: "Used by" in traced.out("cat", "user_events_status"), "it records")
    traced.run("reg", "late u32 a")
    traced.run("emit", "ev", "7")
    interrupt(process, signal.SIGHUP)
    assert " a=7" in traced.out(*(("perf", "script", "-i") if words[0] == "perf" else ("report",)), "out")
    assert not list(traced.home.glob("*.part*"))


def test_the_snapshot_of_an_instance_that_there_is(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    traced.run("instance", "create", "mine")
    traced.run("enable", "-B", "mine", "ev")
    traced.run("emit", "ev", "1")
    traced.run("write", "-B", "mine", "snapshot", "1")
    traced.run("emit", "ev", "2")
    traced.run("record", "--keep", "--snapshot", "-B", "mine", "--", "true")
    assert fields(traced) == [{"a": 1}]
    assert "ev: a=0x2 (2)" in traced.out("cat", "-B", "mine", "trace")


REFUSED = """
import utracefs
event = utracefs.event("http_request u32 usec; u8 kind")
bool(event)
for _ in range(3):
    event.emit(1.5, 0)
event.emit(1, 2)
"""


def test_what_the_program_s_client_refused(traced: Cli) -> None:
    done = traced.run("record", "--", sys.executable, "-W", "ignore", "-c", REFUSED)
    assert re.fullmatch(
        rb"utracefs: trace.dat: 1 record, [\d.]+ kB, nothing lost, 3 refused: http_request.usec was float\n",
        done.stderr,
    ), done.stderr
    done = traced.run("record", "--", sys.executable, "-W", "ignore", "-c", REFUSED + "event.emit(1, 256)\n")
    assert done.stderr.endswith(
        b", 4 refused: 3 http_request.usec was float, 1 http_request.kind was out of range\n"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--flight", "1M", "--snapshot"], "without --keep, --snapshot"),
        (["--flight", "1M", "--keep"], "without --keep, --snapshot"),
        (["--flight", "1M", "--lossless"], "without --lossless"),
        (["--snapshot", "--lossless"], "without --lossless"),
        (["--flight", "1M", "--no-overwrite"], "--no-overwrite"),
        (["--flight", "1M", "-b", "100"], "without -b"),
        (["--flight", "1M", "--switch-output", "1M"], "take one"),
        (["--flight", "64"], "is not SIZE"),
        (["--max-files", "3"], "goes with"),
        (["--flight", "1M", "--max-files", "0"], "max-files"),
        (["--switch-output", "1M", "--snapshot"], "take one"),
        (["--switch-output", "1M", "-o", "x.jsonl"], "utracefs export"),
        (["--compress", "-o", "x.jsonl"], "utracefs export"),
        (["--compress=lzma"], "lzma"),
    ],
)
def test_options_that_exclude_each_other(words: list[str], says: str) -> None:
    done = CliRunner().invoke(cli_group, ["record", *words, "--", "false"])
    assert (done.exit_code, says in done.output) == (2, True)


def test_processes(traced: Cli, eventually: Eventually) -> None:
    """With all their threads and children, until they have ended; a number without a process ends nothing."""
    program = (
        "import os, threading, utracefs\n"
        "e = utracefs.event('web u32 n')\n"
        "input()\n"
        "thread = threading.Thread(target=e.emit, args=(1,))\n"
        "thread.start(); thread.join()\n"
        "pid = os.fork()\n"
        "e.emit(2 if pid else 3)\n"
        "utracefs.flush(60)\n"
        "if pid: os.wait()\n"
    )
    words = [sys.executable, "-W", "ignore", "-c", program]
    with subprocess.Popen(words, env=traced.env, stdin=subprocess.PIPE) as process:
        recorder = traced.start("record", "-p", f"{process.pid},4194303", "-e", "web")
        eventually(lambda: "web" in traced.standing(), "it records")
        traced.run("emit", "web u32 n", "4")
        flight = traced.start("record", "--flight", "1M", "-p", str(process.pid), "-e", "web")
        eventually(lambda: traced.standing().count("web") == 2, "both record")
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.close()
        # They end with the last of them, also if nobody waits for it.
        for one in (recorder, flight):
            one.communicate(timeout=60)
    lines = traced.out("report", "--json").splitlines()
    assert sorted(json.loads(line)["fields"]["n"] for line in lines) == [1, 2, 3]
    recorder = traced.start("record", "-p", "4194303", "-e", "web")
    eventually(lambda: "web" in traced.standing(), "it records")
    traced.run("emit", "web u32 n", "5")
    told = interrupt(recorder)[1]
    assert b"utracefs: -p: there is no process 4194303 here\n" in told
    assert b"trace.dat: 0 records, 1 filtered out, " in told
