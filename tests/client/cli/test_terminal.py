"""No text from a program controls a terminal, whichever command prints it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.client.cli.kit import Cli, interrupt
from tests.forked import Popen
from utracefs.cli.terminal import quit_key
from utracefs_protocol.terminal import harmless
from utracefs_protocol.text import text_of

HOSTILE = b"name\x1b]0;owned\x07\ta\x7f\xc2\x9b31m \x9b \xe2\x80\xae \xc3\xa4\n"
WRITES = """
import sys
import termios
from utracefs.cli.terminal import guard, own
guard()
guard()
for n in range(len(HOSTILE)):  # every character in pieces
    sys.stdout.buffer.write(HOSTILE[n : n + 1])
    sys.stdout.flush()
sys.stdout.write(HOSTILE.decode("utf-8", "surrogateescape"))
own(sys.stdout).write("\\x1b[H")
own(sys.stdout).flush()
sys.stderr.write("\\x1b[31m\\n")
"""

OWN = re.compile(rb"\x1b(\[[0-9;?]*[A-Za-z]|\([A-Z]|[=>])")
"""Our own escape sequences: cursor, colours, screens."""

EVENT = "c1\u009b2Jname"
BIDI = "bidi\u202ename"
TEXT = "a\x1b[31mb\u009b2J\nFORGED"


def on_terminal(words: Sequence[str], env: dict[str, str], cwd: Path | str, until: bytes = b"") -> bytes:
    """The command's output on a terminal until it ends; SIGINT ends it after this text, and after 30 s."""
    terminal, side = os.openpty()
    popen = Popen(words, stdin=side, stdout=side, stderr=side, env=env, cwd=cwd)
    os.close(side)
    text, end = b"", time.monotonic() + 60
    while True:
        if until and until in text:
            popen.send_signal(2)
            until = b""
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 1 << 16)
            except OSError:
                break
        elif time.monotonic() > end:
            popen.send_signal(2)
            end += 30
    popen.wait()
    os.close(terminal)
    return text.replace(b"\r\n", b"\n")


def test_the_guard() -> None:
    code = f"HOSTILE = {HOSTILE!r}\n{WRITES}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout == 2 * HOSTILE + b"\x1b[H", "what is no terminal gets every byte"
    shown = b"name?]0;owned?\ta??31m ? ? \xc3\xa4\n"
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:surrogateescape"}
    assert on_terminal([sys.executable, "-c", code], env, "/") == 2 * shown + b"\x1b[H?[31m\n"


COMMANDS = [
    "list",
    "status",
    "doctor",
    "ls events/user_events",
    "cat available_events",
    "cat trace",
    "cat saved_cmdlines",
    "report t.dat",
    "report --json t.dat",
    "perf script -i p.data",
    "perf stat --duration 0.2",
    "perf top --duration 0.2",
    "perf trace --duration 0.2",
    "stream",
    "stream --json --duration 0.2",
    "top -b -n 1 -d 0.2",
    "top -n 1 -d 0.2",
    "hist hostile text --duration 0.5",
    "sql t.dat 'select * from hostile'",
    "enable nosuch\u009b2J",
    "cat nosuch\u202e",
    "export --to jsonl t.dat -o -",
]


@pytest.mark.timeout(300)
def test_no_command_lets_a_program_steer_the_terminal(traced: Cli) -> None:
    traced.run("enable", "--standing", "*")
    for name in (EVENT, BIDI):
        traced.run("reg", f"{name} u32 x")
        traced.run("emit", name, "1")
    traced.run("reg", "hostile __rel_loc char[] text")
    traced.run("emit", "hostile", TEXT)
    cli = [sys.executable, "-m", "utracefs"]
    traced.run("record", "-o", "t.dat", "--", *cli, "emit", "hostile", TEXT)
    traced.run("perf", "record", "-o", "p.data", "--", *cli, "emit", "hostile", TEXT)
    seen: dict[str, bytes] = {}
    for command in COMMANDS:
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
        until = b"FORGED" if command == "stream" else b""
        text = seen[command] = OWN.sub(b"", on_terminal([*cli, *words], traced.env, traced.home, until))
        if command.startswith(("hist", "top")):  # renewed in place
            text = text.replace(b"\r", b"")
        assert harmless(text.decode("utf-8", "surrogateescape")).encode() == text, command
        if "cat" not in command:
            assert not any(line.lstrip().startswith(b"FORGED") for line in text.split(b"\n")), (command, text)
    assert b"c1?2Jname" in seen["list"]
    for command in ("report t.dat", "perf script -i p.data", "stream"):
        assert b"text=a?[31mb?2J?FORGED\n" in seen[command], (command, seen[command])


def test_no_record_makes_a_line_of_its_own_in_a_pipe(traced: Cli) -> None:
    """Neither by its strings nor by the name of its thread (of which the tree shows the first line)."""
    code = (
        "import pathlib, utracefs\n"
        "pathlib.Path('/proc/self/comm').write_bytes(b'two\\nnames\\r')\n"
        "utracefs.event('hostile __rel_loc char[] text').emit('a\\nFORGED\\rFORGED')"
    )
    traced.run("reg", "hostile __rel_loc char[] text")
    traced.run("record", "-o", "t.dat", "--", sys.executable, "-c", code)
    traced.run("perf", "record", "-o", "p.data", "--", sys.executable, "-c", code)
    traced.run("enable", "--standing", "hostile")
    env = {**traced.env}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=100)
    process = traced.start("stream")
    assert process.stdout is not None
    streamed = process.stdout.readline() + interrupt(process)[0]
    texts = traced.out("report", "t.dat"), traced.out("perf", "script", "-i", "p.data"), text_of(streamed)
    for text in texts:
        [line] = [line for line in text.split("\n") if "FORGED" in line]
        assert line.endswith("a?FORGED?FORGED") and "\r" not in line, text


def test_quit_key(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin, os.fdopen(controller, "wb", 0) as keys:
        monkeypatch.setattr("sys.stdin", stdin)
        before = termios.tcgetattr(terminal)
        with quit_key() as quitting:
            keys.write(b"x")
            assert not quitting(10)
            assert not quitting(0)
            keys.write(b"q")
            assert quitting(10)
        assert termios.tcgetattr(terminal) == before
        with quit_key(wanted=False) as quitting:
            keys.write(b"q")
            assert not quitting(0)
