"""`utracefs c-client`."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

import utracefs
from utracefs.cli import c_client as installed
from utracefs.cli import cli

PROGRAM = """
#include <utracefs.h>
int main(void) { return 0; }
"""


def said(*words: str, status: int = 0) -> str:
    result = CliRunner().invoke(cli, ["c-client", *words])
    assert result.exit_code == status, result.output
    return result.output


def test_where_it_was_not_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Path(installed.PREFIX) == Path(str(utracefs.__file__)).with_name("c")
    monkeypatch.setattr(installed, "PREFIX", str(tmp_path))
    assert installed.preload_library() is None
    assert (
        said(status=1)
        == f"utracefs: {tmp_path}: the C client was not built; install utracefs where make and gcc are\n"
    )


def test_static_goes_with_libs() -> None:
    assert "--static goes with --libs" in said("--static", status=2)


@pytest.mark.skipif(installed.root() is None, reason="the C client was not built")
class TestBuilt:
    def test_what_is_asked_for(self) -> None:
        assert said("--prefix") == f"{installed.PREFIX}\n"
        assert said("--preload") == f"{installed.preload_library()}\n"
        assert said("--pkg-config-path") == f"{installed.PREFIX}/lib/pkgconfig\n"
        lines = dict(line.split(maxsplit=1) for line in said().splitlines())
        assert list(lines) == ["prefix", "cflags", "libs", "pkg-config-path", "preload"]
        assert said("--cflags", "--libs") == f"{lines['cflags']} {lines['libs']}\n"

    @pytest.mark.parametrize("words", [["--cflags", "--libs"], ["--cflags", "--libs", "--static"]])
    def test_a_program_is_built_and_runs(self, words: list[str], tmp_path: Path) -> None:
        (tmp_path / "program.c").write_text(PROGRAM)
        flags = said(*words).split()
        subprocess.run(["gcc", "program.c", *flags, "-o", "program"], cwd=tmp_path, check=True)
        subprocess.run([tmp_path / "program"], check=True)
