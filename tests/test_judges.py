"""A judge is found by what is needed of it, and every format has one."""

import re
from pathlib import Path

import pytest

from tests.judges import Judges, found, library

ROOT = Path(__file__).parents[1]


def test_found_by_what_is_needed_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """rustup's `rustc` without a toolchain, perf's script without a perf of this kernel."""
    for name in ("rustc", "perf", "gcc", "trace-cmd"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv("HIDDEN_JUDGES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [found.__wrapped__(name) for name in ("rustc", "perf", "gcc", "babeltrace2")] == [None] * 4
    assert found.__wrapped__("trace-cmd") == str(tmp_path / "trace-cmd"), "it needs only be there"


@pytest.mark.parametrize("names", ["all", "openssl,pytest"])
def test_hidden(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.setenv("HIDDEN_JUDGES", names)
    assert found.__wrapped__("openssl") is None
    with pytest.raises(pytest.skip.Exception if not Judges.all_needed else pytest.fail.Exception):
        library("pytest")


@pytest.mark.parametrize("folder", ["client/export", "client/recordings"])
def test_no_format_goes_unjudged(folder: str) -> None:
    skipping = [
        path.name
        for path in (ROOT / "tests" / folder).rglob("*.py")
        if re.search(r"(mark|pytest)\.skip", path.read_text())
    ]
    assert skipping == []
