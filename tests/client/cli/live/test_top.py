"""`utracefs top` with a daemon and known rates: in lines, and on a terminal that pyte keeps."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping

import pyte
import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt
from tests.integration.conftest import running

LOAD = """
import sys, time, utracefs
event = utracefs.event(sys.argv[1])
print("there", flush=True)
number = 0
start = time.monotonic()
while time.monotonic() < start + 60:
    while number < (time.monotonic() - start) * int(sys.argv[2]):
        event.emit(number & 0xffff)
        number += 1
    time.sleep(0.005)
"""


@pytest.fixture
def load(traced: Cli) -> Iterator[Callable[[str, int], "subprocess.Popen[bytes]"]]:
    """Programs that emit so many records a second."""
    started: list[subprocess.Popen[bytes]] = []

    def start(declaration: str, rate: int) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-c", LOAD, declaration, str(rate)]
        process = subprocess.Popen(words, env=traced.env, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


Load = Callable[[str, int], "subprocess.Popen[bytes]"]


def rows(text: str) -> dict[tuple[str, int], dict[str, float]]:
    return {(f"{one['system']}:{one['name']}", one["pid"]): one for one in map(json.loads, text.splitlines())}


def test_rates_that_are_known(traced: Cli, load: Load) -> None:
    one, two = load("one u32 n", 1000), load("two u64 n", 300)
    found = rows(traced.out("top", "--json", "-d", "2", "-n", "1"))
    assert found.keys() == {("user_events:one", one.pid), ("user_events:two", two.pid)}
    for process, event, rate, size in ((one, "one", 1000, 4), (two, "two", 300, 8)):
        row = found[f"user_events:{event}", process.pid]
        assert row["records_per_s"] == pytest.approx(rate, rel=0.2)
        assert row["bytes_per_s"] == pytest.approx(row["records_per_s"] * size, abs=1)
        assert (row["lost"], row["ended"], row["bytes"]) == (0, False, row["records"] * size)
    by_event = rows(traced.out("top", "--json", "-d", "0.5", "-n", "1", "--by", "event", "-e", "t*"))
    assert list(by_event) == [("user_events:two", 0)]
    assert "Used by" not in traced.out("cat", "user_events_status")


def test_losses_before_the_beginning_are_none_of_its(traced: Cli, eventually: Eventually) -> None:
    """The event's first record comes later."""
    traced.run("reg", "ev u32 n")
    traced.run("enable", "ev")
    program = "import utracefs\nevent = utracefs.event('ev u32 n')\nevent.emit(%s)\nutracefs.flush(60)"
    subprocess.run(
        [sys.executable, "-c", program % "'x'"], env=traced.env, check=True, stderr=subprocess.DEVNULL
    )
    top = traced.start("top", "-d", "1000")
    eventually(lambda: "Used by ftrace other" in traced.out("cat", "user_events_status"), "it counts")
    subprocess.run([sys.executable, "-c", program % "1"], env=traced.env, check=True)
    assert interrupt(top)[1].decode().endswith("utracefs: 1 record, nothing lost\n")


def test_tables_without_a_terminal(traced: Cli, load: Load) -> None:
    process = load("one u32 n", 100)
    text = traced.out("top", "-d", "0.5", "-n", "2")
    first, second = text.strip().split("\n\n")
    assert first.splitlines()[2].split() == [
        "EVENT",
        "PID",
        "COMMAND",
        "RECORDS/s",
        "BYTES/s",
        "LOST/s",
        "RECORDS",
        "LOST",
    ]
    for part in (first, second):
        assert part.splitlines()[3].split()[:2] == ["user_events:one", str(process.pid)]
    assert "1 event, 1 process: " in first


def test_mistakes(cli: Cli, traced: Cli) -> None:
    assert "is not a number of seconds" in traced.run("top", "-d", "0", status=2).stderr.decode()
    assert "no daemon is there" in cli.run("--dir", "/nonexistent", "top", status=1).stderr.decode()


class Terminal:
    """`utracefs top` on a terminal."""

    def __init__(self, cli: Cli, *words: str, env: Mapping[str, str]) -> None:
        self.screen = pyte.Screen(80, 24)
        self._stream = pyte.ByteStream(self.screen)
        self._master, self._slave = pty.openpty()
        self._set_size(80, 24)
        self.modes = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            cli.command("top", "-d", "0.2", *words),
            env={k: v for k, v in cli.env.items() if k not in ("COLUMNS", "LINES")}
            | {"TERM": "xterm", **env},
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self.said = b""

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self._set_size(columns, lines)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, condition: Callable[[str], object], what: str) -> str:
        """Returns the screen at that time."""
        deadline = time.monotonic() + 60
        while not condition(text := "\n".join(line.rstrip() for line in self.screen.display)):
            assert time.monotonic() < deadline, f"{what}\n{text}"
            if select.select([self._master], [], [], 0.1)[0]:
                data = os.read(self._master, 1 << 16)
                self.said += data
                self._stream.feed(data)
        return text

    def ended(self) -> int:
        """Its status; the terminal must be as before."""
        status = self.process.wait(60)
        while select.select([self._master], [], [], 0)[0]:
            self.said += os.read(self._master, 1 << 16)
        assert termios.tcgetattr(self._slave) == self.modes
        assert b"\x1b[?1049l" in self.said and self.said.rindex(b"\x1b[?25h") > self.said.rindex(b"\x1b[?25l")
        assert b"Traceback" not in self.said
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)
        os.close(self._slave)


@pytest.fixture
def terminal(traced: Cli) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*words: str, **env: str) -> Terminal:
        made.append(Terminal(traced, *words, env=env))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_a_terminal(load: Load, terminal: Callable[..., Terminal]) -> None:
    load("alpha u32 n", 500)
    gone = load("beta u32 n", 100)
    top = terminal()
    text = top.wait_for(lambda text: "alpha" in text and "beta" in text and "\nq quit" in text, "both")
    assert text.index("alpha") < text.index("beta")
    load("gamma u32 n", 50)
    top.wait_for(lambda text: "user_events:gamma" in text, "one that comes later")
    top.press("/amm\r")
    top.wait_for(lambda text: "gamma" in text and "alpha" not in text, "filtered")
    top.press("\x1b")
    top.wait_for(lambda text: "alpha" in text, "not filtered")
    gone.kill()
    gone.wait()
    top.wait_for(lambda text: "beta" not in text, "an ended process goes")
    top.press("\t")
    top.wait_for(lambda text: "PROCESSES" in text and "beta" in text, "by event")
    top.press("h")
    top.wait_for(lambda text: "sort by records/s" in text, "help")
    top.press("x")
    top.resize(120, 40)
    top.wait_for(
        lambda text: text.count("\n") == 39 and text[text.rindex("\n") :].startswith("\nq quit"), "larger"
    )
    top.press("q")
    assert top.ended() == 0


@pytest.mark.parametrize("end", ["\x03", signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_the_terminal_is_given_back(
    load: Load, terminal: Callable[..., Terminal], end: str | signal.Signals
) -> None:
    load("alpha u32 n", 500)
    top = terminal()
    top.wait_for(lambda text: "user_events:alpha" in text, "it runs")
    if isinstance(end, str):
        top.press(end)
    else:
        top.process.send_signal(end)
    assert top.ended() == 0


def test_a_name_that_the_terminal_cannot_show(traced: Cli, terminal: Callable[..., Terminal]) -> None:
    traced.run("reg", "caf\xe9 u32 n")
    top = terminal(PYTHONIOENCODING="ascii")
    top.wait_for(lambda text: "user_events:caf?" in text, "it runs")
    top.press("q")
    assert top.ended() == 0


def test_a_terminal_without_a_cursor(traced: Cli, terminal: Callable[..., Terminal]) -> None:
    traced.run("reg", "work u32 n")
    top = terminal("-n", "1", TERM="dumb")
    top.wait_for(lambda text: "user_events:work" in text, "a table")
    assert top.process.wait(60) == 0
    assert b"\x1b" not in top.said


def test_so_often_and_no_more(terminal: Callable[..., Terminal]) -> None:
    assert terminal("-n", "2").ended() == 0


def test_the_daemon_is_started_again(
    daemon: "subprocess.Popen[bytes]", traced: Cli, terminal: Callable[..., Terminal]
) -> None:
    traced.run("reg", "kept u32 n")
    top = terminal()
    top.wait_for(lambda text: "user_events:kept" in text, "it runs")
    daemon.terminate()
    daemon.wait(60)
    top.wait_for(lambda text: "the daemon has ended" in text, "it tells")
    with running(traced.home / "d"):
        top.wait_for(lambda text: "ring buffers" in text, "it continues")
        top.press("q")
        assert top.ended() == 0
