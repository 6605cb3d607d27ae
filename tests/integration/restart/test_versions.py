"""Two versions together: programs, daemons, commands, state folders and recordings of this tree, and of
a wheel of the previous minor version. docs/operations.md has the table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import own_directory

ROOT = Path(__file__).parents[3]
PREVIOUS = "c9835707"
"""The commit of the previous minor version."""
PROGRAM = """
import sys, time, utracefs
event = utracefs.event("mixed u32 n; __rel_loc char[] text")
n = 0
for line in sys.stdin:
    deadline = time.monotonic() + 60
    while not (event.registered and event) and time.monotonic() < deadline:
        time.sleep(0.01)
    for n in range(n, n + int(line)):
        event.emit(n, "text")
    n += 1
    print(utracefs.flush(60), utracefs.stats().lost, flush=True)
"""
OLD_NEW = ["old", "new"]
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
Run = Callable[..., str]


@pytest.fixture(scope="module")
def pythons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A Python of each version. The wheel is kept in build/previous, as compiling takes a minute."""
    kept = ROOT / "build" / "previous" / f"{PREVIOUS}-{sys.implementation.cache_tag}"
    if not list(kept.glob("*.whl")):
        source = tmp_path_factory.mktemp("previous")
        archive = subprocess.run(["git", "archive", PREVIOUS], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            pytest.skip(f"commit {PREVIOUS} is not in this clone")
        subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
        words = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
        subprocess.run([*words, "--wheel-dir", kept, source], check=True, stderr=subprocess.DEVNULL)
    (wheel,) = kept.glob("*.whl")
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    (site / "packages.pth").write_text(sysconfig.get_path("purelib"))  # without the .pth of this tree
    return {"old": str(folder / "bin" / "python"), "new": sys.executable}


@pytest.fixture
def run(pythons: dict[str, str]) -> Iterator[Run]:
    """Run `utracefs` of a version."""
    with own_directory() as directory:

        def run(version: str, *words: str | Path) -> str:
            done = subprocess.run(
                [pythons[version], "-m", "utracefs", *words],
                env=os.environ | {"UTRACEFS_DIR": directory},
                cwd=directory,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        run.directory = directory  # type: ignore[attr-defined]
        yield run


class Processes:
    """A daemon, and a program, of some version."""

    def __init__(self, pythons: dict[str, str], directory: str) -> None:
        self._pythons = pythons
        self._directory = directory
        self.all: list[subprocess.Popen[str]] = []

    def start(self, version: str, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [self._pythons[version], *words],
            env=os.environ | {"UTRACEFS_DIR": self._directory},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.all.append(process)
        return process

    def daemon(self, version: str) -> subprocess.Popen[str]:
        read, write = os.pipe()
        os.set_inheritable(write, True)
        process = subprocess.Popen(
            [self._pythons[version], "-m", "utracefsd", "--dir", self._directory, "--ready-fd", str(write)],
            pass_fds=[write],
            text=True,
        )
        self.all.append(process)
        os.close(write)
        with os.fdopen(read, "rb") as ready:
            assert ready.read(5) == b"READY"
        return process

    def end(self) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


@pytest.fixture
def processes(pythons: dict[str, str], run: Run) -> Iterator[Processes]:
    processes = Processes(pythons, run.directory)  # type: ignore[attr-defined]
    yield processes
    processes.end()


def emit(program: subprocess.Popen[str], count: int) -> None:
    assert program.stdin is not None and program.stdout is not None
    print(count, file=program.stdin, flush=True)
    assert program.stdout.readline().split() == ["True", "0"]


def numbers(text: str) -> list[int]:
    return [
        int(line.rpartition("n=0x")[2].split()[0], 16) for line in text.splitlines() if " mixed: " in line
    ]


@pytest.mark.parametrize(
    ("client", "daemon", "command"),
    [("old", "new", "old"), ("new", "old", "new"), ("old", "new", "new"), ("new", "old", "old")],
)
def test_a_program_a_daemon_and_a_command(
    processes: Processes, run: Run, client: str, daemon: str, command: str
) -> None:
    processes.daemon(daemon)
    run(command, "write", "standing_events", "user_events:*")
    program = processes.start(client, "-c", PROGRAM)
    emit(program, 1000)
    assert numbers(run(command, "cat", "trace")) == list(range(1000))
    assert "mixed" in run(command, "status")
    assert "mixed" in run(command, "list")
    run(command, "doctor")
    run(command, "record", "-e", "mixed", "-o", "t.dat", "--", "true")


@pytest.mark.parametrize(("before", "after"), [("old", "new"), ("new", "old")])
@pytest.mark.parametrize("client", OLD_NEW)
def test_the_next_daemon_takes_over(
    processes: Processes, run: Run, before: str, after: str, client: str
) -> None:
    """With a program that keeps running. On the way back the daemon starts afresh: it cannot read the log of
    a newer version."""
    first = processes.daemon(before)
    run(before, "write", "standing_events", "user_events:*")
    run(before, "reg", "other u64 a")
    program = processes.start(client, "-c", PROGRAM)
    emit(program, 1000)
    first.send_signal(signal.SIGKILL)
    first.wait()
    processes.daemon(after)
    if after == "old":
        run(after, "write", "standing_events", "user_events:*")
    emit(program, 1000)
    assert numbers(run(after, "cat", "trace")) == list(range(1000 if after == "old" else 0, 2000))
    assert run(after, "cat", "standing_events") == "user_events:*\n"


@pytest.mark.parametrize(("writer", "reader"), [("old", "new"), ("new", "old")])
def test_recordings(pythons: dict[str, str], run: Run, writer: str, reader: str) -> None:
    program = PROGRAM.replace("sys.stdin", "['500']")
    for name in ["t.dat", "t.data"]:
        run(writer, "record", "-e", "mixed", "-o", name, "--", pythons[writer], "-c", program)
        texts = [run(version, "export", name, "--to", "jsonl", "-o", "-") for version in (writer, reader)]
        assert texts[0] == texts[1] and texts[0].count("\n") == 500
    assert run(writer, "report", "t.dat") == run(reader, "report", "t.dat")
