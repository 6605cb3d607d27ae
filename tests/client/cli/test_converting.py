"""What commands share that write a recording as something else; in use: test_export.py."""

import errno
import os
import pty
import sys
from pathlib import Path

import click
import pytest

from utracefs.cli.converting import Time, output_file, progress_bar
from utracefs_protocol.errors import TraceError


def test_a_progress_bar_on_a_terminal_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.5, 1.5, 2.5])
    with progress_bar(lambda: next(times)) as progress:
        progress(0.1)  # no terminal: nothing is asked
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
    ("text", "time_ns"), [("0", 0), ("1.5", 1_500_000_000), ("51778.814898252", 51778814898252)]
)
def test_a_time_in_seconds(text: str, time_ns: int) -> None:
    assert Time().convert(text, None, None) == time_ns


@pytest.mark.parametrize("text", ["", "x", "-1", "nan", "1e30"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a time in seconds"):
        Time().convert(text, None, None)


@pytest.mark.parametrize(("number", "kept"), [(errno.EINVAL, True), (errno.E2BIG, False)])
def test_what_is_broken_is_kept_up_to_there_and_what_is_refused_is_not(
    tmp_path: Path, number: int, kept: bool
) -> None:
    path = tmp_path / "out"
    with pytest.raises(TraceError), output_file(str(path), str(tmp_path)) as out:
        out.write(b"part")
        raise TraceError(number, "no")
    assert [p.name for p in tmp_path.iterdir()] == (["out"] if kept else [])
