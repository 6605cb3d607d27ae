"""Judges are found by what is needed of them, and only listed ones may cause a test to be left out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import JUDGES, Judges, find, library

ROOT = Path(__file__).parents[1]


def test_a_judge_is_more_than_a_program_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy without a toolchain, a Python without the binding."""
    for name in ("rustc", "perf"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in ("rustc", "perf"):
        assert find.__wrapped__(name) is None
    found = find.__wrapped__("bt2")
    assert found is None or subprocess.run([found, "-c", "import bt2"], check=False).returncode == 0


def test_hidden_judges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judges, "hidden", True)
    monkeypatch.setattr(Judges, "all_needed", False)
    assert not any(map(find.__wrapped__, JUDGES))
    with pytest.raises(pytest.skip.Exception, match="left out without attrs"):
        library("attrs")


@pytest.mark.parametrize("folder", ["client/export", "client/recordings"])
def test_no_format_goes_unjudged(folder: str) -> None:
    skipping = [
        path.name
        for path in (ROOT / "tests" / folder).rglob("*.py")
        if re.search(r"(mark|pytest)\.skip", path.read_text())
    ]
    assert skipping == []
