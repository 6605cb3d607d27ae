"""Only our own files are removed."""

import os
import time
from pathlib import Path

import pytest

from utracefs.cli.record.kept_files import KeptFiles
from utracefs.recordings.partial_files import dumped_name


def written(folder: Path, name: str) -> str:
    (folder / name).write_text(name)
    return str(folder / name)


def test_the_last_ones_stay_and_files_of_others(tmp_path: Path) -> None:
    """Similar names, older and newer: of an earlier run, of another program."""
    foreign = ["trace.dat.2020010100000000", "trace.dat.2099010100000000", "trace.dat", "trace.dat.part"]
    for name in foreign:
        written(tmp_path, name)
    files = KeptFiles(2)
    for number in range(5):
        files.add(written(tmp_path, f"trace.dat.202601010000000{number}"))
    ours = ["trace.dat.2026010100000003", "trace.dat.2026010100000004"]
    assert sorted(os.listdir(tmp_path)) == sorted([*foreign, *ours])
    assert files.removed == 3


def test_all_stay_without_a_number(tmp_path: Path) -> None:
    files = KeptFiles(None)
    for number in range(20):
        files.add(written(tmp_path, str(number)))
    assert len(os.listdir(tmp_path)) == 20 and files.removed == 0


def test_a_file_that_was_replaced_or_moved_away_stays(tmp_path: Path) -> None:
    files = KeptFiles(1)
    for name in ("replaced", "moved", "last"):
        files.add(written(tmp_path, name))
        if name == "replaced":
            written(tmp_path, "new")
            os.rename(tmp_path / "new", tmp_path / name)
        if name == "moved":
            os.rename(tmp_path / name, tmp_path / "elsewhere")
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "last", "replaced"]
    assert files.removed == 0


def test_a_folder(tmp_path: Path) -> None:
    """A CTF is one."""
    files = KeptFiles(1)
    (tmp_path / "ctf").mkdir()
    written(tmp_path / "ctf", "metadata")
    files.add(str(tmp_path / "ctf"))
    files.add(written(tmp_path, "next"))
    assert os.listdir(tmp_path) == ["next"]


def test_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names may go back; the order of writing decides. A name that exists is not taken."""
    files = KeptFiles(2)
    times = iter([3000, 2000, 1000, 1000, 999])
    monkeypatch.setattr(time, "time_ns", lambda: next(times) * 10**9)
    names = []
    for _ in range(4):
        names.append(dumped_name(str(tmp_path / "t")))
        files.add(written(tmp_path, names[-1]))
    assert names[0] > names[1] > names[2] > names[3]
    assert sorted(str(tmp_path / name) for name in os.listdir(tmp_path)) == sorted(names[2:])


def test_a_file_that_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_path: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    files = KeptFiles(1)
    files.add(written(tmp_path, "a"))
    monkeypatch.setattr(os, "unlink", refuse)
    files.add(written(tmp_path, "b"))
    assert capsys.readouterr().err == f"utracefs: {tmp_path}/a: Operation not permitted; it is not removed\n"
    assert files.removed == 0
