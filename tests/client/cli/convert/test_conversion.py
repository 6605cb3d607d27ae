"""Common parts of commands that write a recording in another format; in use: test_export.py."""

import errno
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from utracefs.cli.convert.conversion import Selection, output_file, progress_bar, selection_options, time_ns
from utracefs_protocol.errors import TraceError


def test_a_progress_bar_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.5, 1.5, 2.5])
    with progress_bar(lambda: next(times)) as progress:
        progress(0.1)  # no terminal: nothing is shown
    assert next(times) == 0.0
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", buffering=0) as shown:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        times = iter([0.0, 0.5, 1.5])
        with progress_bar(lambda: next(times)) as progress:
            progress(0.1)
            progress(0.5)
            progress(0.7)
        terminal.flush()
        seen = b""
        while b"export" not in seen:  # a terminal may hand on what was written piece by piece
            seen += shown.read(1 << 16)


@pytest.mark.parametrize(
    ("text", "found"), [("0", 0), ("1.5", 1_500_000_000), ("51778.814898252", 51778814898252)]
)
def test_a_time_in_seconds(text: str, found: int) -> None:
    assert time_ns(text) == found


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "1e30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="not a time in seconds"):
        time_ns(text)


@pytest.mark.parametrize(("number", "kept"), [(errno.EINVAL, True), (errno.E2BIG, False)])
def test_what_is_broken_is_kept_up_to_there_and_what_is_refused_is_not(
    tmp_path: Path, number: int, kept: bool
) -> None:
    path = tmp_path / "out"
    with pytest.raises(TraceError), output_file(str(path), str(tmp_path)) as out:
        out.write(b"part")
        raise TraceError(number, "no")
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if kept else [])


FILE = """
with output_file("out", ".") as out:
    out.write(b"part")
    end()
"""
DIRECTORY = """
with half_done("out") as temporary:
    os.mkdir(temporary)
    open(os.path.join(temporary, "part"), "w").close()
    end()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("what", [FILE, DIRECTORY])
def test_a_signal_leaves_nothing(tmp_path: Path, number: signal.Signals, what: str) -> None:
    program = f"""
import os
from utracefs.cli.convert.conversion import half_done, output_file
def end():
    assert len(os.listdir()) == 1
    os.kill(os.getpid(), {number:d})
    os.kill(os.getpid(), {number:d})
{what}"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, check=False)
    assert done.returncode == -number
    assert list(tmp_path.iterdir()) == []


def test_a_hangup_that_was_ignored_stays_ignored(tmp_path: Path) -> None:
    """As nohup does it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with output_file(str(tmp_path / "out"), str(tmp_path)) as out:
            signal.raise_signal(signal.SIGHUP)
            out.write(b"all")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (tmp_path / "out").read_bytes() == b"all"


def test_a_selection_is_one_parameter() -> None:
    found: list[Selection] = []

    @click.command()
    @selection_options
    def take(selection: Selection) -> None:
        found.append(selection)

    words = "-e a,s:b* -e c --cpu 0,2-3 -P 7 -p 8 --since 1.5 --until 2 -f a>1 -f b>1"
    for args in (words, ""):
        assert CliRunner().invoke(take, args).exit_code == 0
    assert found == [
        Selection(
            ("a", "s:b*", "c"),
            frozenset([0, 2, 3]),
            frozenset([7, 8]),
            1_500_000_000,
            2_000_000_000,
            "(a>1) && (b>1)",
        ),
        Selection((), None, None, None, None, ""),
    ]
