"""Two versions together: programs, daemons, commands, state folders and recordings of this tree, and of
a wheel of the previous minor version. docs/operations.md has the table."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.client.c.test_emit import of_way
from tests.daemon.test_main import call
from tests.forked import Popen
from tests.integration.conftest import own_directory

ROOT = Path(__file__).parents[3]
PREVIOUS = (pytest.param("c9835707", marks=pytest.mark.soak), "79183f3d")
"""Commits of the previous minor version: an early one, and one of the last in which the daemon makes data
rings."""
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
FAMILY = """
import os, sys, time, utracefs
work = utracefs.span("work u32 n")
listed = utracefs.event("listed u32 n; struct u32_4 values 16")
mixed = utracefs.event("mixed u32 n; __rel_loc char[] text")  # the last one that the daemon answers
def emit(n):
    mixed.emit(n, "text")
    listed.emit(n, bytes(16))
    with work(n):
        pass
def await_answers():
    deadline = time.monotonic() + 60
    while not (mixed.registered and mixed) and time.monotonic() < deadline:
        time.sleep(0.001)
for line in sys.stdin:
    n, count = map(int, line.split())
    await_answers()
    for n in range(n, n + count):
        emit(n)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        for i in range(10):
            emit(n + 1 + i)
        is_over = utracefs.flush(60)
        os.write(write, b"%d" % utracefs.stats().lost)
        os._exit(not is_over)
    is_over = os.waitpid(pid, 0)[1] == 0 and utracefs.flush(60)
    print(is_over, utracefs.stats().lost, os.read(read, 20).decode(), flush=True)
    os.close(read)
    os.close(write)
"""
"""versions.c does the same."""
OLD_NEW = ["old", "new"]
CHILDS = 10
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
Run = Callable[..., str]


@pytest.fixture(scope="module", params=PREVIOUS)
def pythons(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A Python of each version. The wheel is kept in build/previous, as compiling takes a minute."""
    previous = request.param
    kept = ROOT / "build" / "previous" / f"{previous}-{sys.implementation.cache_tag}"
    if not list(kept.glob("*.whl")):
        source = tmp_path_factory.mktemp("previous")
        archive = subprocess.run(["git", "archive", previous], cwd=ROOT, capture_output=True, check=False)
        if archive.returncode:
            pytest.skip(f"commit {previous} is not in this clone")
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
            with Popen(
                [pythons[version], "-m", "utracefs", *words],
                env=os.environ | {"UTRACEFS_DIR": directory},
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                stdout, stderr = process.communicate(timeout=60)
            assert process.returncode == 0, stdout + stderr
            return str(stdout)

        run.directory = directory  # type: ignore[attr-defined]
        yield run


class Processes:
    """A daemon, and a program, of some version."""

    def __init__(self, pythons: dict[str, str], directory: str) -> None:
        self.pythons = pythons
        self.directory = directory
        self.all: list[subprocess.Popen[str]] = []

    def start(self, words: Sequence[str | Path], way: str = "ring") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words,
            env=os.environ | {"UTRACEFS_DIR": self.directory} | of_way(way),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.all.append(process)
        return process

    def daemon(self, version: str, *options: str) -> subprocess.Popen[str]:
        read, write = os.pipe()
        os.set_inheritable(write, True)
        words = ["-m", "utracefsd", "--dir", self.directory, "--ready-fd", str(write), *options]
        process = Popen([self.pythons[version], *words], pass_fds=[write], text=True)
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


SPANS = """
import utracefs
first = utracefs.event("first u32 n")
utracefs.flush(60)
first.emit(0)
work = utracefs.span("work u32 n")
for n in range(100):
    with work(n):
        pass
"""


def test_record_preloads_nothing_of_its_own_version_into_a_program(
    pythons: dict[str, str], tmp_path: Path
) -> None:
    """But the wrappers: a program's client is its own, whose names an older preload library had, too."""
    command = [pythons["new"], "-m", "utracefs", "record", "-o", "t.dat", "--", pythons["old"], "-c", SPANS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, "201 records" in done.stderr) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("client", "daemon", "command"),
    [("old", "new", "old"), ("new", "old", "new"), ("old", "new", "new"), ("new", "old", "old")],
)
def test_a_program_a_daemon_and_a_command(
    processes: Processes, run: Run, client: str, daemon: str, command: str
) -> None:
    processes.daemon(daemon)
    run(command, "write", "standing_events", "user_events:*")
    program = processes.start([processes.pythons[client], "-c", PROGRAM])
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
    tree = Path(processes.directory) / "tracefs"
    call(tree, "write_file", "standing_events", b"user_events:*", True)
    run(before, "reg", "other u64 a")
    program = processes.start([processes.pythons[client], "-c", PROGRAM])
    emit(program, 1000)
    first.send_signal(signal.SIGKILL)
    first.wait()
    processes.daemon(after)
    if after == "old":
        call(tree, "write_file", "standing_events", b"user_events:*", True)
    emit(program, 1000)
    assert numbers(call(tree, "read_file", "trace").decode()) == list(
        range(1000 if after == "old" else 0, 2000)
    )
    assert call(tree, "read_file", "standing_events") == b"user_events:*\n"


@pytest.fixture(scope="module")
def families(pythons: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """versions.c with the C library of each version."""
    folder = tmp_path_factory.mktemp("families")
    code = "import os, utracefs; print(os.path.dirname(utracefs.__file__))"
    for version, python in pythons.items():
        package = subprocess.run([python, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
        client = Path(package.stdout.strip()) / "c"
        source, library = Path(__file__).with_name("versions.c"), client / "lib" / "libutracefs.a"
        words = ["gcc", "-O2", "-pthread", f"-I{client / 'include'}"]
        subprocess.run([*words, source, library, "-o", folder / version], check=True)
    return {version: folder / version for version in pythons}


def came(text: str, begin: int, end: int) -> Counter[str]:
    """Records by event, with a number from `begin` to `end`; ends of spans have none."""
    found = re.findall(r": (mixed|listed|work_begin): .*?\bn=0x[0-9a-f]+ \((\d+)\)", text)
    return Counter(event for event, n in found if begin <= int(n) < end)


@pytest.mark.parametrize("order", [("old", "new", "old"), ("new", "old", "new")], ids="-".join)
@pytest.mark.parametrize("language", ["c", "python"])
@pytest.mark.parametrize("client", OLD_NEW)
def test_programs_outlive_daemons_of_both(
    processes: Processes, families: dict[str, Path], client: str, language: str, order: tuple[str, ...]
) -> None:
    """One with a ring and one over the socket emit records, arrays and spans beside each daemon, and so do
    their children, at once. Beside an older daemon these may lose records until it has answered, and count
    them."""
    words = [families[client]] if language == "c" else [processes.pythons[client], "-c", FAMILY]
    programs = [processes.start(words, way) for way in ("ring", "socket")]
    tree = Path(processes.directory) / "tracefs"
    for number, version in enumerate(order):
        daemon = processes.daemon(version, *["--discard-state"] * (version == "old" and number > 0))
        call(tree, "write_file", "standing_events", b"user_events:*", True)
        call(tree, "write_file", "trace", b"", True)
        count, lost_by_children, of_children = 100, 0, 0
        first = range(1000 * number, 1000 * (number + 1), 500)
        for n, program in zip(first, programs, strict=True):
            print(n, count, file=program.stdin, flush=True)
        for program in programs:
            assert program.stdout is not None
            is_over, lost, lost_by_child = program.stdout.readline().split()
            assert (is_over, lost) == ("True", "0")
            assert lost_by_child == "0" or (client, version) == ("new", "old")
            lost_by_children += int(lost_by_child)
        text = call(tree, "read_file", "trace").decode()
        for n in first:
            assert came(text, n, n + count) == {"mixed": count, "listed": count, "work_begin": count}
            of_children += came(text, n + count, n + count + CHILDS).total()
        ends = len(re.findall(": work_end: ", text)) - count * len(programs)
        assert of_children + ends + lost_by_children == 4 * CHILDS * len(programs)
        daemon.kill()
        daemon.wait()


@pytest.mark.parametrize(("writer", "reader"), [("old", "new"), ("new", "old")])
def test_recordings(pythons: dict[str, str], run: Run, writer: str, reader: str) -> None:
    program = PROGRAM.replace("sys.stdin", "['500']")
    for name in ["t.dat", "t.data"]:
        run(writer, "record", "-e", "mixed", "-o", name, "--", pythons[writer], "-c", program)
        texts = [run(version, "export", name, "--to", "jsonl", "-o", "-") for version in (writer, reader)]
        assert texts[0] == texts[1] and texts[0].count("\n") == 500
    assert run(writer, "report", "t.dat") == run(reader, "report", "t.dat")
