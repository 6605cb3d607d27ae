"""`utracefs status` and `utracefs list`."""

import contextlib
import json
import re
import subprocess
import sys

import pytest

import utracefs
from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.client.daemons.fake_daemon import wait_for
from utracefs.cli.instance_option import Place
from utracefs.cli.losses import larger_buffer, share
from utracefs.tree.tracefs import PerfAttr, Tracefs


def test_status_of_a_daemon_without_events(traced: Cli) -> None:
    lines = traced.out("status").splitlines()
    assert lines[0] == f"daemon    {traced.env['UTRACEFS_DIR']}"
    assert re.fullmatch(
        r"buffer    recording, clock local, .* KiB on each of \d+ cpus: 0 records, 0 overwritten, 0 dropped",
        lines[1],
    )
    assert lines[2:] == ["events    none"]


def test_columns_are_as_wide_as_they_must_be(traced: Cli) -> None:
    traced.run("reg", "a")
    traced.run("reg", "a_longer_name")
    traced.run("enable", "--standing", "user_events:*")
    traced.run("emit", "a_longer_name")
    lines = traced.out("status").splitlines()
    assert lines[2] == "standing  user_events:*"
    assert lines[3:] == [
        "EVENT                      USED BY  CONSUMER  EMITTED  RECORDED  FILTERED  LOST",
        "user_events:a              ftrace   ftrace          0         0         0     0",
        "user_events:a_longer_name  ftrace   ftrace          1         1         0     0",
    ]


def test_a_line_for_each_consumer(traced: Cli) -> None:
    """Sums over several would be more than was emitted."""
    traced.run("reg", "a")
    assert traced.out("status").splitlines()[-1].split() == ["user_events:a", "-", "-", *"0000"]
    traced.run("enable", "a")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        tree.perf_event_open(PerfAttr(name=b"user_events:a"))
        traced.run("emit", "a")
        first, second = traced.out("status").splitlines()[-2:]
    assert first.split() == ["user_events:a", "ftrace", "perf", "ftrace", "1", "1", "0", "0"]
    assert second.split()[0].startswith("perf:")
    assert second.split()[1:] == ["1", "0", "0"]


def test_consumers_that_are_gone(traced: Cli) -> None:
    traced.run("reg", "a")
    traced.run("enable", "a")
    traced.run("perf", "stat", "-e", "a", "--", *traced.command("emit", "a"))
    first, second = traced.out("status").splitlines()[-2:]
    assert first.split() == ["user_events:a", "ftrace", "ftrace", "1", "1", "0", "0"]
    assert second.split()[1:] == ["(detached)", "1", "0", "0"]
    traced.run("disable", "a")
    (row,) = json.loads(traced.out("status", "--json"))["events"]
    assert set(row["detached"]) == set(row["consumers"]) and "ftrace" in row["detached"]
    line = traced.out("status").splitlines()[-1]
    assert line.split() == ["user_events:a", "-", "2", "(detached)", "1", "0"]
    assert traced.out("status", "a").count("(detached)  ") == 2


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_that_clients_refused(traced: Cli) -> None:
    with utracefs.Session(traced.env["UTRACEFS_DIR"]) as session:
        event = session.event("a u32 usec")
        wait_for(lambda: not event)
        traced.run("enable", "a")
        for value in (1.5, 1.5, None):
            event.emit(value)  # type: ignore[arg-type]
        assert session.flush(60)
        assert traced.out("status", "a").splitlines()[-2:] == [
            "refused   2 of user_events:a: usec was float",
            "refused   1 of user_events:a: usec was None",
        ]
        (row,) = json.loads(traced.out("status", "--json"))["events"]
        assert row["refused"] == {"usec was float": 2, "usec was None": 1}
        said = traced.run("doctor", "a", status=1).stdout.decode()
        assert "FAIL  user_events:a: 2 refused by the program's own client: usec was float; a Python" in said
        assert "nothing was emitted" not in said


def test_json(traced: Cli) -> None:
    traced.run("reg", "a")
    traced.run("enable", "--standing", "user_events:later*")
    state = json.loads(traced.out("status", "--json"))
    assert state["directory"] == traced.env["UTRACEFS_DIR"]
    assert state["standing_events"] == ["user_events:later*"]
    assert state["buffer"]["tracing_on"] is True
    assert state["events"] == [
        {
            "system": "user_events",
            "name": "a",
            "used_by": [],
            "emitted": 0,
            "lost_in_rings": 0,
            "refused": {},
            "detached": [],
            "consumers": {},
        }
    ]


def test_list(traced: Cli) -> None:
    assert traced.out("list") == ""
    assert json.loads(traced.out("list", "--json")) == []
    for declaration in ("b u32 n; struct s two 2", "a"):
        traced.run("reg", declaration)
    assert traced.out("list") == "user_events:b\nuser_events:a\n", "oldest first"
    assert traced.out("list", "--fields") == "user_events:b u32 n; struct s two\nuser_events:a\n"
    assert traced.out("list", "b") == "user_events:b\n"
    assert "no such event" in traced.fails("list", "c")


def test_losses_in_every_place(traced: Cli, eventually: Eventually) -> None:
    """Those of the ring buffer of another instance, which no event knows; nobody reads `latest`."""
    traced.run("reg", "ev u64 n; char[500] text")
    for name in ("record-1", "mine", "latest"):
        traced.run("instance", "create", name)
        traced.run("write", "-B", name, "buffer_size_kb", "8")
        traced.run("enable", "-B", name, "ev")
    traced.run("emit", "ev", "0", "x")
    for name in ("record-1", "mine"):
        with contextlib.closing(Tracefs(traced.env["UTRACEFS_DIR"])) as tree:
            assert tree.read(tree.open(f"instances/{name}/trace_pipe"), 4096)
    top = traced.start("top", "-d", "1000", "-e", "ev")
    eventually(lambda: "Used by ftrace other" in traced.out("cat", "user_events_status"), "top counts")
    program = (
        "import utracefs; e = utracefs.event('ev u64 n; char[500] text')\n"
        "for n in range(1000): e.emit(n, 'x' * 499)"
    )
    subprocess.run([sys.executable, "-c", program], env=traced.env, check=True)
    state = json.loads(traced.out("status", "--json"))
    lost = state["lost"]["overwritten"]
    assert lost == state["overwritten"]["record-1"] + state["overwritten"]["mine"] > 1800
    assert state["lost"]["share"] == round(lost / 3003, 6)
    percent = share(lost, 3003)
    assert f"losses    {lost} lost: {lost} overwritten in ring buffers" in traced.out("status")
    assert f"that is {percent}" in traced.out("status")
    assert re.search(rf"record-1 \({lost // 2} overwritten, ", traced.out("status"))
    doctor = traced.out("doctor")
    assert f"note  mine: overrun: {lost // 2} records" in doctor
    assert f"note  losses: {lost} lost: " in doctor and percent in doctor
    metrics = traced.out("metrics")
    assert f"utracefs_lost_records_ratio {round(lost / 3003, 6)}\n" in metrics
    for name in ("mine", "/others"):
        assert (
            f'lost_records_total{{cause="overwritten",ftrace_instance="{name}"}} {lost // 2}.0\n' in metrics
        )
    error = interrupt(top)[1].decode()
    assert f"; of all consumers {lost} lost: " in error and share(lost, 3000) in error


def test_events_that_stay_off(traced: Cli) -> None:
    """`record`, `status` and `doctor` say which, both declarations, the program and the reason."""
    traced.run("reg", "a u32 x")
    program = "import utracefs; [e.emit(1) for e in utracefs.events(['a u8 y', 'b u8 z'])]"
    record = ("record", "-e", "a", "-e", "b", "--", sys.executable, "-c", program)
    off = r"a: python\S*-\d+ declares 'a u8 y', but event 'a' exists with other fields: 'a u32 x' "
    off = off.rstrip() + r", until `utracefs reg --delete` \(EADDRINUSE\)"
    assert re.search(f"^utracefs: {off}$", traced.run(*record).stderr.decode(), re.MULTILINE)
    assert re.search(f"^off       {off}$", traced.out("status"), re.MULTILINE)
    (line,) = json.loads(traced.out("status", "a", "--json"))["refused_events"]
    assert re.fullmatch(off, line)
    traced.run("enable", "--standing", "b")
    traced.run("emit", "b u8 z", "1")
    assert "declares" not in traced.out("status", "b")
    assert re.search(f"^FAIL  {off}$", traced.run("doctor", "a", status=1).stdout.decode(), re.MULTILINE)
    traced.run("reg", "--delete", "a")
    assert "declares" not in traced.run(*record).stderr.decode() + traced.out("status")


def test_the_buffer_that_would_have_held_all(traced: Cli) -> None:
    for size in (4, 1 << 14):
        traced.run("instance", "create", f"of{size}")
        traced.run("write", "-B", f"of{size}", "buffer_size_kb", str(size))
    program = "import utracefs; e = utracefs.event('ev u64 n; char[500] text')\n"
    traced.run("reg", "ev u64 n; char[500] text")
    for size in (4, 1 << 14):
        traced.run("enable", "-B", f"of{size}", "ev")
    run = [sys.executable, "-c", program + "for n in range(1000): e.emit(n, 'x')"]
    subprocess.run(run, env=traced.env, check=True)
    with Tracefs(traced.env["UTRACEFS_DIR"]) as tree:
        found = re.fullmatch(
            r", -b (\d+) would have held all that .*", larger_buffer(tree, Place("of4"), 516)
        )
        assert found and 500 < int(found[1]) <= 1024
        assert larger_buffer(tree, Place(f"of{1 << 14}"), 516) == ""
