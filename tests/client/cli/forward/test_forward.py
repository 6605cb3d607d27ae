"""`utracefs forward` as a process: options, signals, kill -9 of it and of the daemon."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.client.cli.kit import Cli, Eventually, interrupt

TARGET = '''
import json, os
from utracefs.forward.target import Limits

class LineTarget:
    """Appends a line for each batch to the file of its address."""
    limits = Limits(records=1000, bytes=1 << 20)

    def __init__(self, address, settings):
        if settings.options.keys() - {"answer"}:
            raise ValueError("-O: there is only `answer`")
        self.path = address.partition(":")[2]
        self.answer = settings.options.get("answer", "yes")
        settings.secret("token")

    def send(self, batches):
        if self.answer == "no":
            raise ConnectionRefusedError("nobody is there")
        with open(self.path, "a") as file:
            for one in batches:
                losses = [[loss.event, loss.cause, loss.count] for loss in one.losses]
                told = [one.forwarder, one.sequence, dict(one.counts), losses]
                file.write(json.dumps(told) + "\\n")
        return {}

    def close(self):
        pass
'''


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file where `lines:FILE` writes."""
    folder = tmp_path / "packages"
    info = folder / "line_target-1.dist-info"
    info.mkdir(parents=True)
    (folder / "line_target.py").write_text(TARGET)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: line-target\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[utracefs.targets]\nlines = line_target:LineTarget\n")
    return tmp_path / "lines"


@pytest.fixture
def with_target(traced: Cli, target: Path) -> Cli:
    traced.env["PYTHONPATH"] = str(target.parent / "packages")
    return traced


def arrived(path: Path) -> dict[tuple[str, int], Any]:
    """Batches by forwarder and sequence number."""
    if not path.exists():
        return {}
    told = [json.loads(line) for line in path.read_text().splitlines()]
    return {(one[0], one[1]): one[2:] for one in told}


def records(path: Path) -> int:
    return sum(sum(counts.values()) for counts, _ in arrived(path).values())


def losses(path: Path) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for _, lost in arrived(path).values():
        for event, cause, count in lost:
            found[event, cause] += count or 0
    return found


def status(home: Path) -> dict[str, Any]:
    path = home / "spool/status.json"
    return json.loads(path.read_text()) if path.exists() else {"attached": False}


def begin(cli: Cli, target: Path, eventually: Eventually, *words: str) -> subprocess.Popen[bytes]:
    (cli.home / "spool/status.json").unlink(missing_ok=True)
    process = cli.start("forward", f"lines:{target}", "-e", "web*", "--spool", "spool", *words)
    eventually(lambda: process.poll() is not None or status(cli.home)["attached"], "it is attached")
    assert process.poll() is None, process.communicate()
    return process


def test_it_forwards(with_target: Cli, target: Path, eventually: Eventually) -> None:
    process = begin(with_target, target, eventually, "--filter", "status >= 500")
    for number in ("200", "503", "504"):
        with_target.run("emit", "web u32 status", number)
    eventually(lambda: records(target) == 2, "records arrived")
    wait_for_status(process, b"records_sent: 2")
    interrupt(process)
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_order(
    with_target: Cli, target: Path, eventually: Eventually, number: signal.Signals
) -> None:
    process = begin(with_target, target, eventually)
    for _ in range(3):
        with_target.run("emit", "web u32 status", "1")
    out, error = interrupt(process, number)
    says = f"utracefs: lines:{target}: 3 records sent, nothing lost\n"
    assert (process.returncode, out, error.decode()) == (0, b"", says)
    assert records(target) == 3


def test_its_time(with_target: Cli, target: Path) -> None:
    with_target.run("forward", f"lines:{target}", "--spool", "s", "--duration", "0.2")
    with_target.env["STATE_DIRECTORY"] = str(with_target.home / "state")
    with_target.run("forward", f"lines:{target}", "--duration", "0.2")
    assert (with_target.home / "state/spool.sqlite").exists()


def test_why_records_were_lost(with_target: Cli, target: Path) -> None:
    words = ("forward", f"lines:{target}", "--spool", "s", "--duration", "0.2")
    with_target.run("reg", "web u32 status")
    with_target.run(*words)
    with_target.run("enable", "web")
    with_target.run("emit", "web u32 status", "1")
    said = with_target.run(*words).stderr.decode()
    assert said == f"utracefs: lines:{target}: 0 records sent, 1 lost (away 1)\n"


def test_events_that_do_not_exist(with_target: Cli, target: Path) -> None:
    (with_target.home / "policy.toml").write_text("[fields.login]\na = 'redact'\n[fields.'l*']\n")
    words = ("forward", f"lines:{target}", "--spool", "s", "--duration", "0.2", "--policy", "policy.toml")
    done = with_target.run(*words, "-e", "http_requst", "-e", "web*")
    said = "utracefs: http_requst: no such event yet\nutracefs: login: no such event yet\n"
    said += f"utracefs: lines:{target}: 0 records sent, nothing lost\n"
    assert done.stderr.decode() == said


def test_a_target_that_is_away(with_target: Cli, target: Path, eventually: Eventually) -> None:
    process = begin(with_target, target, eventually, "-O", "answer=no", "--drain", "0.1")
    with_target.run("emit", "web u32 status", "1")
    eventually(lambda: "nobody" in status(with_target.home)["last_error"], "it was tried")
    _, error = interrupt(process)
    first, sent, last = error.decode().splitlines()
    assert first == "utracefs: records wait in the spool: nobody is there"
    assert sent == f"utracefs: lines:{target}: 0 records sent, nothing lost"
    assert "stay in the spool" in last
    process = begin(with_target, target, eventually)
    interrupt(process)
    assert records(target) == 1


def test_kill(with_target: Cli, target: Path, eventually: Eventually) -> None:
    """Nothing that was read is missing, and nothing was lost."""
    process = begin(with_target, target, eventually)
    for count in range(1, 4):
        with_target.run("emit", "web u32 status", "1")
        eventually(lambda: status(with_target.home).get("records_read") == 1, "it was read")
        process.kill()
        process.communicate()
        process = begin(with_target, target, eventually)
        eventually(lambda count=count: records(target) == count, "all arrived")  # type: ignore[misc]
    interrupt(process)
    assert losses(target) == {}
    assert len({forwarder for forwarder, _ in arrived(target)}) == 1


def wait_for_status(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Wait for the text in a line of its status. Returns all lines."""
    assert process.stderr is not None
    found = False
    said = b""
    while not found:
        process.send_signal(signal.SIGUSR1)
        line = b""
        while not line.startswith(b"utracefs: last_error"):
            line = process.stderr.readline()
            assert line
            said += line
            found |= text in line
    return said


def test_mistakes(with_target: Cli) -> None:
    with_target.run("reg", "web u32 status")
    for words, reason, status in (
        (["none:x", "--spool", "s"], "no target 'none'; there are: ", 1),
        (["lines:x"], "Missing option '--spool'", 2),
        (["--spool", "s"], "Missing argument 'TARGET'", 2),
        (["lines:x", "--spool", "s", "--spool-size", "5"], "'5' is not a size of at least 1M", 2),
        (["lines:x", "--spool", "s", "--spool-size", "1X"], "'1X' is not a size", 2),
        (["lines:x", "--spool", "s", "-O", "x"], "'x' has no NAME= at its begin", 2),
        (["lines:x", "--spool", "s", "-O", "x=1"], "there is only `answer`", 1),
        (["lines:x", "--spool", "s", "--policy", "p"], "p: No such file", 1),
        (["lines:x", "--spool", "s", "--secret", "token=none"], "none: No such file", 1),
        (["lines:x", "--spool", "/proc/x"], "/proc/x: ", 1),
        (["lines:x", "--spool", "s", "-e", "a", "-f", "b", "-e", "c"], "give one --filter for all -e", 2),
        (["lines:x", "--spool", "s", "-B", "none"], "there is no instance 'none'", 1),
    ):
        error = with_target.run("forward", *words, status=status).stderr.decode()
        assert reason in error and error.count("\n") == 1, error


def test_a_filter_that_does_not_fit(with_target: Cli) -> None:
    with_target.run("reg", "web u32 status")
    words = ["forward", "lines:x", "--spool", "s", "-e", "web", "-f", "status => 5"]
    error = with_target.run(*words, status=1).stderr.decode()
    assert error.startswith("utracefs: web: filter: Invalid operator; write one of == != ")
    assert error.endswith("\n  status => 5\n          ^\n")
