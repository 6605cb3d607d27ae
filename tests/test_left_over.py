"""Leftovers of this run are found, whichever process made them; those of others are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import left_over as module
from tests.left_over import VARIABLE, LeftOver
from utracefsd.server.runtime import directory_hash


def test_temporary_files(tmp_path: Path) -> None:
    left_over = LeftOver()
    for name in ("gone", "stays", "pymp-1"):
        left_over.note("tempfile.mkdtemp", (str(tmp_path / name),))
    (tmp_path / "stays").mkdir()
    (tmp_path / "pymp-1").mkdir()
    (tmp_path / "of another").mkdir()
    ((path, test),) = left_over.found()
    assert (path, test.rpartition("::")[2]) == (tmp_path / "stays", "test_temporary_files")
    left_over.remove()
    assert not list(left_over.found())
    assert (tmp_path / "of another").exists()


def test_folders_of_daemons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_MEMORY", tmp_path)
    left_over = LeftOver()
    places = ["/tmp/a", "/tmp/b", "/tmp/c", "/tmp/d", "/tmp/e"]
    left_over.note("subprocess.Popen", (None, ["utracefsd", "--dir", "/tmp/a"], None, {"A": "B"}))
    left_over.note("subprocess.Popen", (None, [Path("/x"), "--dir=/tmp/b"], None, {}))
    left_over.note("subprocess.Popen", (None, "utracefs", None, {b"UTRACEFS_DIR": b"/tmp/c"}))
    monkeypatch.setenv("UTRACEFS_DIR", "/tmp/d")
    left_over.note("subprocess.Popen", (None, ("utracefs", "--dir"), None, None))
    folders = [tmp_path / f"utracefs-{directory_hash(Path(place))}" for place in places]
    for folder in folders:
        folder.mkdir()
    assert [path for path, _ in left_over.found()] == folders[:4]
    left_over.remove()
    assert list(tmp_path.iterdir()) == folders[4:]


def test_programs() -> None:
    left_over = LeftOver()
    environ = {**os.environ, VARIABLE: left_over.word}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environ, stdin=subprocess.PIPE) as program:
        (line,) = left_over.processes()
        assert left_over.report() == [line]
        assert line == f"{program.pid} {sys.executable} -c input() "
        left_over.remove()
        assert program.wait(60) == -signal.SIGKILL
    assert not list(left_over.processes())


def test_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mounts in folders of this run, also if no process serves them."""
    table = tmp_path / "mounts"
    table.write_text(
        f"a {tmp_path}/one\\040two fuse rw 0 0\nb /tmp/left/x fuse rw 0 0\nc /tmp/other fuse rw 0 0\n"
    )
    monkeypatch.setattr(module, "MOUNTS", table)
    left_over = LeftOver(tmp_path)
    left_over.note("tempfile.mkdtemp", ("/tmp/left",))
    assert left_over.report() == [f"{tmp_path}/one two is mounted", "/tmp/left/x is mounted"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_mount_is_removed(tmp_path: Path) -> None:
    left_over = LeftOver(tmp_path)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "none", tmp_path], capture_output=True, check=False
    ).returncode:
        pytest.skip("mounting is not permitted here")
    assert left_over.report() == [f"{tmp_path} is mounted"]
    left_over.remove()
    assert left_over.report() == []


def test_a_forked_child_notes_nothing() -> None:
    left_over = LeftOver()
    left_over.pid += 1
    left_over.note("tempfile.mkdtemp", ("/tmp",))
    left_over.note("subprocess.Popen", (None, ["--dir", "/tmp"], None, {}))
    assert not left_over.paths and not left_over.directories
