"""Shared parts of the commands: words for events, statistics, output."""

import json
import os
import signal
import subprocess
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.client.cli.kit import Cli, Files
from utracefs.cli import Failure, common
from utracefs.cli.common import (
    HELLO_S,
    EventStats,
    Kilobytes,
    connect,
    echo,
    echo_json,
    event_pattern,
    event_stats,
    numbers,
    selected,
    standing_events,
    why_no_connection,
    write_word,
)
from utracefs.cli.live.hist import hist


def test_reading_stats() -> None:
    text = (
        b"emitted: 7\nlost in data rings: 1\nrefused: 3 usec was float\n"
        b"ftrace:a b: recorded 4 filtered 2 lost 1\nperf:3: recorded 7 filtered 0 lost 0\n"
    )
    assert event_stats(text) == EventStats(
        7,
        1,
        {
            "ftrace:a b": {"recorded": 4, "filtered": 2, "lost": 1},
            "perf:3": {"recorded": 7, "filtered": 0, "lost": 0},
        },
        refused={"usec was float": 3},
    )
    assert numbers(b"entries: 3\noldest event ts:  1.5\nread events: 0\n") == {"entries": 3, "read events": 0}


@pytest.mark.parametrize("word", ["a", "s:a", "s:", ":a", "http_*", "[ab]", "x" * 127, "\udcff"])
def test_words_for_events(word: str) -> None:
    assert event_pattern(word) == word


@pytest.mark.parametrize("word", ["", "a b", "a\tb", "!a", "a:b:c", "x" * 128, "ä" * 64])
def test_no_words_for_events(word: str) -> None:
    with pytest.raises(ValueError):
        event_pattern(word)


def test_selection() -> None:
    tree = Files({"available_events": b"user_events:b\nuser_events:a\n"})
    assert [event.name for event in selected(tree, ["*"])] == ["a", "b"], "oldest first"
    with pytest.raises(Failure) as caught:
        selected(tree, ["a", "nosuch"])
    assert caught.value.about == "nosuch"


def test_words_are_written_behind_what_is_there() -> None:
    tree = Files({"standing_events": b""})
    write_word(tree, "standing_events", "user_events:\udcff*")
    write_word(tree, "standing_events", "a\u00a0b")
    assert tree.files["standing_events"] == b"user_events:\xff*\na\xc2\xa0b\n"
    assert standing_events(tree) == ["user_events:\udcff*", "a\u00a0b"], "a no-break space ends no word"


def test_output_of_names_that_are_not_utf8() -> None:
    def output(what: Any, value: Any) -> bytes:
        command = click.Command("test", callback=lambda: what(value))
        return CliRunner().invoke(command, []).stdout_bytes

    assert output(echo, "a\udcff") == b"a\xff\n"
    assert json.loads(output(echo_json, {"a\udcff": 1})) == {"a?": 1}


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError(2, "x"), "start one"),
        (ConnectionRefusedError(111, "x"), "no daemon answers there any more"),
        (PermissionError(13, "Permission denied"), "Permission denied; only the daemon's user"),
        (PermissionError(13, "Permission denied", "/d/user_events_data"), "root and the group `tracing`,"),
        (OSError(5, "Input/output error"), "Input/output error"),
    ],
)
def test_why_there_is_no_connection(error: OSError, says: str) -> None:
    assert says in why_no_connection(error)


def test_no_connection_is_a_failure_with_the_path() -> None:
    with pytest.raises(Failure) as caught:
        connect("/nonexistent")
    assert caught.value.about == "/nonexistent/tracefs"


STOPPED = [
    ["status"],
    ["doctor"],
    ["record"],
    ["emit", "ev u32 a", "1"],
    ["stream", "-e", "x"],
    ["perf", "stat"],
]


def test_a_daemon_that_is_stopped_is_not_waited_for(traced: Cli, daemon: "subprocess.Popen[bytes]") -> None:
    """One line, after the time that it names; all at once, since each waits for it."""
    daemon.send_signal(signal.SIGSTOP)
    try:
        processes = [traced.start(*words) for words in STOPPED]
        said = [b"".join(process.communicate(timeout=60)).decode() for process in processes]
    finally:
        daemon.send_signal(signal.SIGCONT)
    for process, text in zip(processes, said, strict=True):
        assert process.returncode == 1
        assert text.count(f"is stopped, `kill -CONT {daemon.pid}` continues it; waiting {HELLO_S:g} s") == 1
        assert text.count(f"the daemon does not answer within {HELLO_S:g} s; is it stopped?") == 1, text


def test_durations_have_units() -> None:
    for text, seconds in (("2", 2), ("0.5s", 0.5), ("10m", 600), ("2h", 7200), ("1d", 86400)):
        assert hist.make_context("hist", ["--duration", text, "web"]).params["duration_s"] == seconds
    for text in ("0", "-1", "nan", "inf", "1e300", "x", "", "s", "0m", "nanm", "1w", "1e9d"):
        with pytest.raises(click.BadParameter, match="is not a number of seconds above 0"):
            hist.make_context("hist", ["--duration", text, "web"])


@pytest.mark.parametrize("after_s", [0.05, None])
def test_stopping(monkeypatch: pytest.MonkeyPatch, after_s: float | None) -> None:
    """A reader that takes nothing gets no more; one that takes all gets the whole piece."""
    monkeypatch.setattr(common, "_LAST_S", 0.05)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    r, w = os.pipe()
    with open(r, "rb") as reader, open(w, "wb") as out:
        with common.Stopping(after_s) as stopped:
            if after_s is None:
                os.kill(os.getpid(), signal.SIGTERM)
            with stopped.writing(out):
                out.write(b"x" * 10)
                out.flush()
            assert (stopped.is_cut_off, reader.read(10)) == (False, b"x" * 10)
            with stopped.writing(out):
                out.write(bytes(1 << 20))
            assert stopped.has_come and stopped.is_cut_off
            with stopped.writing(out):
                out.write(bytes(1 << 20))
        out.close()
        assert len(reader.read()) < 1 << 18
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    assert after == before


@pytest.mark.parametrize(
    ("text", "size_kb"), [("1408", 1408), ("64K", 64), ("100M", 100 << 10), ("2G", 2 << 20)]
)
def test_kilobytes_and_units(text: str, size_kb: int) -> None:
    assert Kilobytes(min=1).convert(text, None, None) == size_kb


@pytest.mark.parametrize("text", ["0", "0M", "x", "-1", "1X"])
def test_no_kilobytes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Kilobytes(min=1).convert(text, None, None)
