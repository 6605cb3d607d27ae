"""`utracefs perf`: stat, record, script, top, trace."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.recordings.perf_data.test_writer import EVENTS, work
from utracefs.recordings.perf_data.writer import Contents, PerfDataWriter

REQUEST = "http_request u16 status; s32 usec; __rel_loc char[] path"
LINE = r" +python\S* +(\d+)/\1 +\[\d{3}\] +\d+\.\d{6}: "
LINE += r"user_events:http_request: status=200 usec=-5 path=/a b\n"


def test_perf_stat(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    emit = traced.command("emit", "ev", "5")
    done = traced.run("perf", "stat", "-e", "ev", "-e", "nosuch", "--", *emit, status=1)
    out = done.stdout.decode()
    assert re.search(r"^ +1  user_events:ev$", out, re.MULTILINE)
    assert re.search(r"<no such event>  nosuch$", out, re.MULTILINE)
    counted = json.loads(traced.out("perf", "stat", "--json", "--", *emit))
    assert counted["events"] == [{"system": "user_events", "name": "ev", "records": 1, "lost": 0}]
    assert counted["seconds"] > 0
    (event,) = json.loads(traced.out("perf", "stat", "--json", "--duration", "0.05"))["events"]
    assert event["records"] == 0
    traced.run("perf", "stat", "--", "sh", "-c", "exit 3", status=3)
    assert traced.out("cat", "user_events_status") == "ev\n\nActive: 1\nBusy: 0\n"


def test_perf_stat_counts_what_each_filter_takes(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    traced.run("reg", "other u32 b")
    words = [*traced.command("emit", "ev"), "$n", ";", *traced.command("emit", "other"), "$n"]
    loop = f"for n in 1 2 3; do {' '.join(words)}; done"
    filters = ["-e", "ev", "--filter", "a >= 2", "-e", "other", "--filter", "b == 1"]
    counted = json.loads(traced.out("perf", "stat", *filters, "--json", "--", "sh", "-c", loop))
    assert {one["name"]: one["records"] for one in counted["events"]} == {"ev": 2, "other": 1}
    error = traced.run("perf", "stat", "-e", "ev", "--filter", "b == 1", "--", "true", status=1).stderr
    assert error.startswith(b"utracefs: user_events:ev: filter: Field not found; `utracefs list --fields`")
    assert error.endswith(b"\n  b == 1\n    ^\n")
    assert "belongs to the -e before it" in traced.fails(
        "perf", "stat", "--filter", "a == 1", "-e", "ev", status=2
    )


def test_a_command_needs_no_daemon(cli: Cli) -> None:
    """It starts one for as long as it runs. It reports the number of records emitted before the event was
    opened."""
    emits = [*cli.command("emit", "ev u32 a", "5")]
    loop = f"{' '.join(emits[:-2])} '{emits[-2]}' 5; "
    keeps = f"{' '.join(cli.command('reg', 'ev'))} 'u32 a'; sleep 0.3; "
    command = ["sh", "-c", keeps.replace("ev 'u32", "'ev u32") + loop]
    late = (
        "utracefs: user_events:ev: declared meanwhile; records of the 20 ms or so before it was noticed"
        " are missing\n"
    )
    done = cli.run("perf", "stat", "-a", "-e", "ev", "--", *command)
    assert re.search(rb"^ +1  user_events:ev$", done.stdout, re.MULTILINE)
    assert done.stderr.decode() == late
    done = cli.run("perf", "trace", "-e", "ev", "--", *command)
    assert done.stderr.decode() == late + "utracefs: 1 sample, nothing else lost\n"
    assert "start one with `utracefs daemon`" in cli.fails("perf", "stat")


def test_perf_stat_repeats(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    out = traced.out("perf", "stat", "-r", "2", "--", *traced.command("emit", "ev", "5"))
    assert re.search(r"^ +1  user_events:ev  \( \+- 0.00% \)$", out, re.MULTILINE)
    assert re.search(r"^ +[0-9.]+  seconds  \( \+- [0-9.]+% \)$", out, re.MULTILINE)
    assert "goes with a COMMAND" in traced.fails("perf", "stat", "-r", "2", status=2)


def test_perf_stat_prints_in_intervals(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    emit = " ".join(traced.command("emit", "ev", "5"))
    out = traced.out("perf", "stat", "-I", "50", "--", "sh", "-c", f"{emit}; sleep 0.3; {emit}")
    rows = [line.split() for line in out.splitlines()]
    assert all(row[2] == "user_events:ev" for row in rows)
    assert [row[1] for row in rows].count("1") == 2
    assert len(rows) >= 4
    times = [float(row[0]) for row in rows]
    assert times == sorted(times)


def test_a_glob_without_an_event(traced: Cli) -> None:
    """Said like a name without one: the event of a short program may have come and gone unseen."""
    said = "utracefs: no_*: no such event came\n"
    done = traced.run("perf", "stat", "-e", "no_*", "--", "true", status=1)
    assert re.search(rb"<no such event>  no_\*$", done.stdout, re.MULTILINE)
    assert done.stderr.decode() == f"{said}utracefs: no event was opened\n"
    done = traced.run("perf", "trace", "-e", "no_*", "--", "true", status=1)
    assert done.stderr.decode() == f"{said}utracefs: 0 samples, no event was opened\n"
    done = traced.run("perf", "stat", "--", "true")
    assert done.stderr == b"utracefs: no event was opened\n"


def recorded(traced: Cli, *words: str) -> bytes:
    return traced.run("perf", "record", *words).stderr


def test_perf_record_and_script(traced: Cli) -> None:
    traced.run("reg", REQUEST)
    emit = traced.command("emit", "http_request", "200", "-5", "/a b")
    error = recorded(traced, "-e", "http*", "--", *emit)
    assert re.fullmatch(rb"utracefs: 1 sample, nothing lost; perf.data has \d+ bytes\n", error)
    assert re.fullmatch(LINE, traced.out("perf", "script"))
    assert re.search(r"\.\d{9}: user_events", traced.out("perf", "script", "--ns", "-i", "perf.data"))
    error = recorded(traced, "-F", "100", "--duration", "0.05", "-o", "other")
    assert error.startswith(b"utracefs: 0 samples, nothing lost; other has ")
    assert traced.out("perf", "script", "-i", "other") == ""
    assert "No such file" in traced.fails("perf", "script", "-i", "none")
    (traced.home / "bad").write_bytes(b"PERFILE2" + bytes(500))
    assert "utracefs did not write" in traced.fails("perf", "script", "-i", "bad")


@pytest.mark.parametrize("pattern", ["tipo", "t*po"])
def test_perf_record_without_an_event_replaces_no_recording(traced: Cli, pattern: str) -> None:
    (traced.home / "perf.data").write_bytes(b"an earlier one")
    before = sorted(os.listdir(traced.home))
    done = traced.run("perf", "record", "-e", pattern, "--", "true", status=1)
    assert done.stderr.endswith(b"utracefs: no event was opened; perf.data is not written\n")
    assert (traced.home / "perf.data").read_bytes() == b"an earlier one"
    assert sorted(os.listdir(traced.home)) == before
    failed = traced.run("perf", "record", "-e", pattern, "--", "sh", "-c", "exit 7", status=7)
    assert failed.stderr == done.stderr
    error = recorded(traced, "--", "true")  # without -e a program may have none
    assert error.startswith(b"utracefs: 0 samples, no event was opened; perf.data has ")


def test_perf_script_of_an_event_that_was_not_described_yet(cli: Cli) -> None:
    writer = PerfDataWriter(cli.home / "perf.data")
    writer.add(work(1_000_000_000, 1))
    writer.describe(Contents(events=[], header_page=b"", header_event=b""))
    writer.leave()
    done = cli.run("perf", "script", "--recover", "-i", "perf.data.part")
    assert done.stderr == b"utracefs: 1 samples are of events whose formats were not written yet\n"


def test_perf_script_tells_of_losses_and_of_damage(cli: Cli) -> None:
    path = cli.home / "perf.data"
    with PerfDataWriter(path) as writer:
        writer.add(work(1_000_000_000, 1))
        writer.add_lost(21, 5, 2_000_000_000)
        writer.add_lost(21, 0, 3_000_000_000)
        writer.finish(Contents(events=EVENTS, header_page=b"", header_event=b""))
    line = f"{':9':>16} {9:>7}/{9:<7} [000]     1.000000: user_events:work: n=1\n".encode()
    done = cli.run("perf", "script")
    assert done.stdout == line
    assert done.stderr.decode().splitlines() == [
        "utracefs: 5 samples were lost",
        "utracefs: the daemon was restarted meanwhile; records of that time are missing",
    ]
    data = bytearray(path.read_bytes())
    data[184 + 6 : 184 + 8] = b"\1\0"  # the size of the first LOST record
    path.write_bytes(data)
    done = cli.run("perf", "script", status=1)
    assert done.stdout == line
    assert done.stderr == b"utracefs: perf.data: is damaged: record at 184 has 1 bytes; 112 are left\n"


def test_perf_trace(traced: Cli) -> None:
    traced.run("reg", REQUEST)
    emit = traced.command("emit", "http_request", "200", "-5", "/a b")
    out = traced.out("perf", "trace", "-e", "http*", "--", *emit)
    assert re.fullmatch(LINE, out)
    done = traced.run("perf", "trace", "-F", "100", "--duration", "0.05")
    assert (done.stdout, done.stderr) == (b"", b"utracefs: 0 samples, nothing lost\n")


EMITTER = """
import sys, utracefs
e = utracefs.event("many u32 n")
bool(e)
for n in range(int(sys.argv[1])):
    e.emit(n)
utracefs.flush(60)
"""


def test_perf_trace_shows_what_was_lost(traced: Cli) -> None:
    traced.run("reg", "many u32 n")
    words = ["perf", "trace", "-e", "many", "-m", "1", "--", sys.executable, "-c", EMITTER, "20000"]
    lines = traced.out(*words).splitlines()
    samples = sum(": user_events:many: n=" in line for line in lines)
    lost = sum(
        int(m[1]) for line in lines if (m := re.fullmatch(r"user_events:many: LOST (\d+) SAMPLES", line))
    )
    stats = traced.out("cat", "events/user_events/many/stats")
    emitted = int(re.findall(r"emitted: (\d+)", stats)[0])
    assert samples
    assert samples + lost <= emitted <= 20000


def test_perf_record_takes_every_nth_that_the_filter_lets_pass(traced: Cli) -> None:
    traced.run("reg", "many u32 n")
    words = ["-e", "many", "--filter", "n >= 3000", "-c", "100"]
    error = recorded(traced, *words, "--", sys.executable, "-c", EMITTER, "5000")
    assert error.startswith(b"utracefs: 20 samples, nothing lost")
    numbers = [int(line.rpartition("=")[2]) for line in traced.out("perf", "script").splitlines()]
    assert numbers == list(range(3099, 5000, 100))


def test_perf_top(traced: Cli) -> None:
    traced.run("reg", "many u32 n")
    traced.run("reg", "ev u32 a")
    emit = " ".join(traced.command("emit", "ev", "5"))
    program = f"{emit}; {sys.executable} -c '{EMITTER}' 300"
    out = traced.out("perf", "top", "-d", "60", "--", "sh", "-c", program)
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["OVERHEAD", "SAMPLES", "PER", "S", "EVENT", "COMMAND", "PID"]
    assert rows[1][:2] == ["99.67%", "300"]
    assert rows[1][3] == "user_events:many"
    assert rows[2][:2] == ["0.33%", "1"]
    assert rows[3] == ["nothing", "lost"]


def test_ctrl_c_ends_a_recording_in_order(traced: Cli, eventually: Eventually) -> None:
    traced.run("reg", "ev u32 a")
    process = traced.start("perf", "record", "-o", "out.data")
    eventually(lambda: "Used by perf" in traced.out("cat", "user_events_status"), "it is attached")
    traced.run("emit", "ev", "7")
    _, error = interrupt(process)
    assert process.returncode == 0
    assert error.startswith(b"utracefs: 1 sample, nothing lost; out.data has ")
    assert "a=7" in traced.out("perf", "script", "-i", "out.data")
    assert sorted(path.name for path in Path(traced.home).iterdir() if "data" in path.name) == ["out.data"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["record", "-o", "-"], "-o needs a file"),
        (["record", "-m", "32768"], "32768"),
        (["record", "-F", "100001"], "100001"),
        (["stat", "-I", "1"], "-I"),
        (["stat", "--json", "-I", "100"], "--json"),
        (["top", "-d", "0"], "number of seconds"),
    ],
)
def test_words_that_are_refused(cli: Cli, words: list[str], says: str) -> None:
    assert says in cli.fails("perf", *words, status=2)


def test_what_cannot_be_recorded(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    assert (
        "no such file or directory"
        in traced.fails("perf", "record", "-o", "/no/such/x", "--", "true").lower()
    )
    assert "there is no process" in traced.fails("perf", "stat", "-p", "4194304", "--", "true")
    traced.fails("perf", "record", "--", "/no/such/command", status=127)
    assert not (traced.home / "perf.data.tmp").exists()
