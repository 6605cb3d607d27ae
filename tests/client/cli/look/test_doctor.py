"""`utracefs doctor`: its findings, step by step."""

import json
import os
import subprocess
from pathlib import Path

import pytest

import utracefs
from tests.client.cli.kit import Cli, Files
from utracefs.cli.look.doctor import _examine_faults, examine
from utracefs.tree.tracefs import Tracefs


def levels(cli: Cli, *words: str, status: int) -> dict[str, str]:
    found = json.loads(cli.run("doctor", "--json", *words, status=status).stdout)
    return {one["what"]: f"{one['level']} {one['text']}" for one in found}


def test_doctor_without_a_daemon(cli: Cli) -> None:
    said = levels(cli, status=1)
    assert said["sockets"].startswith("FAIL none in ")
    assert "utracefs daemon" in said["sockets"]
    assert "/dev/shm" not in said


def test_doctor_where_no_daemon_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: path != "/dev/shm")
    said = {one.what: one for one in examine(str(tmp_path), ("ev",))}
    assert said["/dev/shm"].level == "FAIL"
    assert "mount a tmpfs" in said["/dev/shm"].text


def test_doctor_of_a_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utracefs.cli.look.doctor._may_look", lambda _place: False)
    said = {one.what: one for one in examine(str(tmp_path), ("ev",))}
    assert said[str(tmp_path)].text.startswith("permission denied")
    assert said["sockets"].text.startswith(f"none that we may see in {tmp_path}; start a daemon")


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
    assert levels(traced, status=1)["enabled"].startswith("FAIL no consumer is attached to user_events:ev")
    assert levels(traced, "ev", status=1)["user_events:ev"].startswith("FAIL no consumer is attached")
    unknown = levels(traced, "nosuch", status=1)["nosuch"]
    assert unknown.startswith("FAIL no program") and unknown.endswith("; declared: user_events:ev")
    traced.run("enable", "ev")
    assert levels(traced, "ev", status=0)["user_events:ev"].startswith("note nothing was emitted")
    traced.run("emit", "ev", "1")
    assert levels(traced, "ev", status=0)["user_events:ev"] == "ok 1 emitted, all recorded"
    traced.run("write", "tracing_on", "0")
    traced.run("emit", "ev", "1")
    said = levels(traced, "ev", status=1)
    assert said["tracing_on"].startswith("FAIL 0")
    assert said["user_events:ev"].startswith("note ftrace kept 1 away")
    traced.run("write", "events/user_events/ev/filter", "a > 5")
    assert levels(traced, "ev", status=1)["user_events:ev"].endswith("away: its filter is 'a > 5'")
    with utracefs.attach("ev", filter="a > 1", directory=traced.env["UTRACEFS_DIR"]):
        traced.run("emit", "ev", "1")
        said = json.loads(traced.run("doctor", "ev", "--json", status=1).stdout)
        kept = [one["text"] for one in said if one["text"].startswith("stream:")]
    assert [text.partition(" ")[2] for text in kept] == ["kept 1 away: its filter"]
    assert "stream:" not in traced.run("doctor", "ev", status=1).stdout.decode()  # it is gone
    traced.run("write", "set_event_pid", "1")
    assert "only 1 threads" in levels(traced, status=1)["set_event_pid"]
    assert traced.run("doctor", status=1).stdout.startswith(b"ok    client: utracefs ")


def test_doctor_of_a_daemon_that_is_gone(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    daemon.kill()
    daemon.wait()
    said = levels(traced, status=1)
    assert "no daemon answers there any more" in " ".join(said.values())
    assert "no daemon answers there any more" in traced.fails("status")


def test_doctor_names_what_others_do(traced: Cli) -> None:
    """Half of the cpus, a reader of trace_pipe, further instances, and causes that no longer exist."""
    traced.run("reg", "ev u32 a")
    traced.run("enable", "ev")
    traced.run("write", "tracing_on", "0")
    traced.run("emit", "ev", "1")
    traced.run("write", "tracing_on", "1")
    said = levels(traced, status=0)
    assert said["user_events:ev"].endswith("as they were then; nothing does now")
    assert not {"tracing_cpumask", "trace_pipe", "read events", "instances"} & set(said)
    traced.run("emit", "ev", "1")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        tree.mkdir("instances/other")
        cpus = len(tree.list_dir("per_cpu"))
        if cpus > 1:
            tree.write_file("tracing_cpumask", b"1")
        pipe = tree.open("trace_pipe")
        tree.read(pipe, 4096)
        said = levels(traced, status=0)
    assert said["trace_pipe"].startswith("note a reader is open")
    assert said["read events"].startswith("note 1 records")
    assert said["instances"].startswith("note 1, with buffers and switches of their own: other")
    if cpus > 1:
        assert "not all of" in said["tracing_cpumask"]
        assert "nothing does now" not in said["user_events:ev"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, []),
        (b"faults: 0\nconnections: 7\n", []),
        (b"", []),
        (b"connections: 7\nfaults: 3\n", ["FAIL 3 unexpected errors in the daemon"]),
        (b"events: 7 of 8\n  user 1: 4 of 4\n  refused to user 1: 2\n", ["note user 1 was refused 2 times"]),
        (
            b"data rings gone with their records, unknown how many: 2\n",
            ["note 2 did not come back after the daemon's restart"],
        ),
    ],
)
def test_doctor_tells_of_the_daemons_own_errors(text: bytes | None, found: list[str]) -> None:
    tree = Files({} if text is None else {"daemon_stats": text})
    findings = list(_examine_faults(tree))
    assert [f"{one.level} {one.text.partition(';')[0]}" for one in findings] == found
