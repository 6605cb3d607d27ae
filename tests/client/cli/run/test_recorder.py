"""Pages and texts of a daemon become a trace.dat."""

import contextlib
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import utracefs
from tests.client.cli.kit import Cli
from tests.client.recordings.events import trace_cmd
from utracefs.cli.instance_option import TOP
from utracefs.cli.run.recorder import About, Recorder, Summary
from utracefs.cli.run.texts import Texts
from utracefs.recordings.report import report_text
from utracefs.tree.event_names import EventName
from utracefs.tree.tracefs import Tracefs


def finish(recorder: Recorder) -> Summary:
    return recorder.finish(About(uname="Linux", version="utracefs"))


def records(path: Path) -> list[str]:
    with utracefs.open(path) as recording:
        text = b"".join(report_text(recording)).decode()
        return [line.partition(": ")[2].strip() for line in text.splitlines() if ": " in line]


def test_two_recorders_of_an_instance_take_from_each_other(traced: Cli, tmp_path: Path) -> None:
    """The second one reads over the socket, as from a daemon that gives no pages."""
    traced.run("reg", "ev u32 a")
    traced.run("enable", "ev")
    paths = [tmp_path / "1.dat", tmp_path / "2.dat"]
    with (
        Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree,
        Recorder(tree, str(paths[0])) as first,
        Recorder(tree, str(paths[1])) as second,
    ):
        for value, recorder in enumerate((second, first, second)):
            traced.run("emit", "ev", str(value))
            recorder.step()
        for recorder in (first, second):
            recorder.drain()
            finish(recorder)
    assert [[line[-1] for line in records(path)] for path in paths] == [["1"], ["0", "2"]]


@pytest.mark.parametrize("is_first", [True, False], ids=["the ring", "over the socket"])
def test_a_format_precedes_its_first_page(traced: Cli, tmp_path: Path, is_first: bool) -> None:
    path = tmp_path / "trace.dat"
    with (
        Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree,
        contextlib.nullcontext() if is_first else Recorder(tree, str(tmp_path / "other.dat")),
        Recorder(tree, str(path)) as recorder,
    ):
        recorder.step()
        traced.run("reg", "ev u32 a")
        traced.run("enable", "ev")
        traced.run("emit", "ev", "7")
        (recorder.stream.take_ready if recorder.stream else recorder.step)()
        recorder.writer.sync()
        with utracefs.open(f"{path}.part", recover=True) as recording:
            assert [(one.name, one.fields) for one in recording] == [("ev", {"a": 7})]
            assert [note.partition(": ")[2] for note in recording.notes] == [
                "was not finished: records and losses of its last second may be missing"
            ]


def test_the_snapshot_of_a_killed_recorder_can_be_read(traced: Cli, tmp_path: Path) -> None:
    """As with --flight, which knows the texts before."""
    traced.run("reg", "ev u32 a")
    traced.run("enable", "ev")
    traced.run("emit", "ev", "7")
    traced.run("write", "snapshot", data=b"1\n")
    path = tmp_path / "trace.dat"
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        texts = Texts(tree, TOP)
        texts.read()
        with (
            pytest.raises(KeyboardInterrupt),
            Recorder(tree, str(path), snapshot=True, texts=texts) as recorder,
        ):
            recorder.open("snapshot_raw")
            recorder.read_all()
            raise KeyboardInterrupt
    with utracefs.open(f"{path}.part", recover=True) as recording:
        assert [one.fields["a"] for one in recording] == [7]


def test_nothing_is_left_of_a_recording_that_was_given_up(traced: Cli, tmp_path: Path) -> None:
    with (
        Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree,
        Recorder(tree, str(tmp_path / "t")) as recorder,
    ):
        recorder.step()
    assert [file for file in tmp_path.iterdir() if file.name in ("t",) or "utracefs-" in file.name] == []


NEGATIVE = """
import utracefs
event = utracefs.event("neg s8 a; s16 ab; s32 c; s64 d; char e; u8 f; char[4] g")
while not (event.registered and event):
    pass
for sign in (-1, 1):
    event.emit(8 * sign, 9 * sign, 10 * sign, 11 * sign, 12 * sign, 250, b"REC")
utracefs.flush(60)
"""


def test_trace_cmd_prints_small_negative_numbers(traced: Cli) -> None:
    traced.run("record", "-o", "out.dat", "--", sys.executable, "-c", NEGATIVE)
    path = str(traced.home / "out.dat")
    for text in (trace_cmd("report", "-i", path), traced.out("report", path)):
        assert [line.partition("neg:")[2].strip() for line in text.splitlines()[1:]] == [
            "a=-8 ab=-9 c=-10 d=-11 e=-12 f=250 g=REC",
            "a=8 ab=9 c=10 d=11 e=12 f=250 g=REC",
        ]


def test_losses_are_reported_while_they_happen(
    traced: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line a second, with the place and what helps; none without losses."""
    traced.run("reg", "ev u32 a")
    traced.run("enable", "ev")
    path = str(tmp_path / "trace.dat")
    more_than_fits = (
        "import utracefs; event = utracefs.event('ev u32 a')\nwhile not (event.registered and event): pass\n"
        "for a in range(4_000_000): event.emit(a)\nutracefs.flush(60)"
    )
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree, Recorder(tree, path) as recorder:
        env = {**traced.env, "UTRACEFS_RING_KB": "64"}
        subprocess.run([sys.executable, "-c", more_than_fits], env=env, check=True)
        text = ""
        while not text:
            time.sleep(recorder.step())
            text = capsys.readouterr().err
        recorder.drain()
        recorder.step()
        assert capsys.readouterr().err == ""
    assert re.fullmatch(
        rf"utracefs: {path}: losing \d.*% of [\d,]+ records/s, most in"
        r" (data rings|the ring buffer): --lossless lets programs wait, .*\n",
        text,
    )


EV = EventName("user_events", "ev")


def test_an_event_that_is_gone_keeps_its_format(traced: Cli) -> None:
    traced.run("reg", "ev u32 a")
    with Tracefs(traced.env["UTRACEFS_DIR"], timeout_s=30) as tree:
        texts, all_events = Texts(tree, TOP), Texts(tree, TOP, of_all_events=True)
        texts.read()
        all_events.read()
        assert texts.events == [] and EV in all_events.events
        traced.run("enable", "ev")
        texts.read()
        traced.run("disable", "ev")
        traced.run("reg", "--delete", "ev")
        texts.read()
        assert texts.events == [EV]
        (text,) = texts.contents.formats[b"user_events"]
        assert b"name: ev" in text and b"field:u32 a" in text
        assert texts.clock == "local" and texts.origin.host
