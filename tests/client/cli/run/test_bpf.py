"""`utracefs bpftrace` and `utracefs bpf` with other programs; tests/integration/bpf has the tools."""

import os
import shutil
import sys

import pytest

from tests.client.cli.kit import Cli
from utracefs.cli.c_client import bpf_library, preload_library
from utracefs.cli.run.bpf import _has_command

SHOW = "import os; print(*map(os.environ.get, ('UTRACEFS_DIR', 'LD_PRELOAD', 'UTRACEFS_BPF_CHILD_PRELOAD')))"


def test_environment_of_a_tool(traced: Cli) -> None:
    traced.env["LD_PRELOAD"] = ""
    shown = traced.out("bpf", "--", sys.executable, "-c", SHOW).split()
    assert shown == [traced.env["UTRACEFS_DIR"], bpf_library(), "None"]


def test_bpftrace_gets_its_options(traced: Cli) -> None:
    """And a command that it starts another library: ours puts that in place, before bpftrace begins."""
    folder = traced.home / "bin"
    folder.mkdir()
    shutil.copy("/bin/echo", folder / "bpftrace")
    traced.env["PATH"] = f"{folder}:{os.environ['PATH']}"
    assert traced.out("bpftrace", "-lv", "-f", "json", "-e", "x", "--btf") == "-lv -f json -e x --btf\n"
    for late in ("--dir", "--from=t.dat"):
        assert "goes before bpftrace's own options" in traced.fails("bpftrace", "-e", "x", late, status=2)
    (folder / "bpftrace").unlink()
    (folder / "bpftrace").write_text(f"#!{sys.executable}\n{SHOW}\n")
    (folder / "bpftrace").chmod(0o755)
    assert traced.out("bpftrace", "-l").split()[1:] == [preload_library(), "None"]


def test_status_and_signals_are_those_of_the_tool(traced: Cli) -> None:
    traced.run("bpf", "--", "sh", "-c", "exit 3", status=3)
    traced.run("bpf", "--", "sh", "-c", "kill -PIPE $$", status=-13)


@pytest.mark.parametrize("words", [("bpftrace", "-l"), ("bpf", "--", "true")])
def test_without_a_daemon(cli: Cli, words: tuple[str, ...]) -> None:
    cli.env["PATH"] = os.environ["PATH"]
    if words[0] == "bpf" or shutil.which("bpftrace"):
        assert "no daemon is there" in cli.fails(*words)


@pytest.mark.parametrize(
    ("words", "has"),
    [
        (["-e", "x", "-c", "true"], True),
        (["-ctrue", "-e", "x"], True),
        (["-kvc", "true", "t.bt"], True),
        (["t.bt", "-kkcsleep 1"], True),
        (["-ofile.c", "-dd", "-c", "x"], True),
        (["-e", "-c"], False),
        (["-ve", "-cx"], False),
        (["-dcodegen", "-l"], False),
        (["-fjson", "-Iinc", "-Bnone", "--no-color", "-p", "1"], False),
        (["t.bt", "-", "--", "-c"], False),
    ],
)
def test_whether_bpftrace_starts_a_command(words: list[str], has: bool) -> None:
    """Then it may need a daemon of its own."""
    assert _has_command(words) == has


def test_what_is_missing(traced: Cli) -> None:
    traced.env["PATH"] = str(traced.home)
    assert "bpftrace: is not installed" in traced.fails("bpftrace", "-l", status=127)
    assert "command not found" in traced.fails("bpf", "--", "no-such-tool", status=127)
    assert "Permission denied" in traced.fails("bpf", "--", str(traced.home), status=126)
