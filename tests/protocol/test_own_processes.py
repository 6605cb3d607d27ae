"""Our processes import nothing from the current directory, and work with closed standard streams."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.mount.mounting import why_no_mount

AT_START = set(
    subprocess.check_output([sys.executable, "-c", "import sys; print(*sys.modules)"]).decode().split()
)
"""Python itself imports them, with an entry of PYTHONPATH before anything can take it away."""
COMMANDS = (
    "record -o t.dat -- true",
    "record --kernel-abi -o k.dat -- true",
    "daemon --background",
    "mount m",
    "daemon --stop",
)
"""A command, its daemon, a mount of a command and of its own: each begins with `prepare`."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    names = {*sys.stdlib_module_names, *(name.partition(".")[0] for name in sys.modules)} - AT_START
    names |= {"attr", "attrs", "click", "msgpack", "outcome", "pyarrow", "rich", "sniffio", "trio"}
    for name in {*names, "utracefsd"} - {"__main__"}:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write('{name} ')")
    yield tmp_path
    assert not (tmp_path / "imported").exists(), (tmp_path / "imported").read_text()


UTRACEFS = [sys.executable, "-m", "utracefs"]


@pytest.mark.parametrize(
    ("path", "utracefs"), [("", UTRACEFS), (":.", [str(Path(sys.executable).with_name("utracefs"))])]
)
def test_nothing_is_imported(folder: Path, path: str, utracefs: list[str]) -> None:
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "UTRACEFS_DIR": str(folder / "d"),
    }
    for name in ("_winapi", "nt", "utracefs", "utracefs_protocol"):
        (folder / f"{name}.py").unlink()  # Python and its `site` find these before our first line
    mounts = why_no_mount(folder / "m") is None
    for command in COMMANDS:
        if not mounts and ("mount" in command or "--kernel-abi" in command):
            continue
        done = subprocess.run(
            [*utracefs, *command.split()], cwd=folder, env=env, capture_output=True, check=False
        )
        assert not (folder / "imported").exists(), (command, (folder / "imported").read_text())
        assert done.returncode == 0, (command, done.stderr)


def test_the_command_keeps_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("print('imported')")
    env = {**os.environ, "PYTHONPATH": ":", "UTRACEFS_DIR": str(tmp_path / "d")}
    words = ["-m", "utracefs", "record", "-o", "t.dat", "--", sys.executable, "-P", "-c", "import helper"]
    assert b"imported" in subprocess.check_output([sys.executable, *words], cwd=tmp_path, env=env)


PROGRAM = """
import os, time, utracefs
utracefs.event("closed u32 n").emit(7)
for fd in 0, 1, 2:
    for _ in range(1000):
        os.fstat(fd)
        time.sleep(0.0001)
"""
"""Fails without its standard streams. (A descriptor that our thread makes has one's number for a moment.)"""


@pytest.mark.parametrize(
    "closed", [{0, 1, 2}, *(pytest.param(some, marks=pytest.mark.long) for some in ({1}, {0, 2}))]
)
def test_closed(tmp_path: Path, closed: set[int]) -> None:
    env = {**os.environ, "UTRACEFS_DIR": "d"}
    pipes: dict[str, int] = {"stdin": 0, "stdout": 1, "stderr": 2}

    def run(*words: str, status: int = 0) -> bytes:
        streams: Any = {name: None if fd in closed else subprocess.PIPE for name, fd in pipes.items()}

        def close() -> None:
            for fd in closed:
                os.close(fd)

        done = subprocess.run(
            [*UTRACEFS, *words], cwd=tmp_path, env=env, preexec_fn=close, check=False, **streams
        )
        assert done.returncode == status, (words, done)
        return done.stdout or b""

    # The command itself finds closed what we found closed.
    run("record", "-o", "t.dat", "--", sys.executable, "-c", PROGRAM, status=1)
    run("export", "t.dat", "-o", "t.jsonl")
    assert b'"n":7' in (tmp_path / "t.jsonl").read_bytes()
    run("report", "t.dat", status=int(1 in closed))
    run("daemon", "--background")
    try:
        assert b"enable" in subprocess.check_output([*UTRACEFS, "ls", "events"], cwd=tmp_path, env=env)
        if why_no_mount(tmp_path / "m") is None:
            run("mount", "m")
            assert (tmp_path / "m/tracing_on").read_text() == "1\n"
            (tmp_path / "n").mkdir()
            run("mount", "n", "--", "true")
    finally:
        run("daemon", "--stop")
