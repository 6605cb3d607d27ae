"""The command line before it connects to a daemon: help, wrong usage, completion, errors."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.client.cli.kit import Cli
from utracefs.cli import COMMANDS, Failure, cli
from utracefs_protocol.errors import TraceError
from utracefs_protocol.places import DELETED


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, list(words), env={"UTRACEFS_DIR": "/nonexistent"})
    return result.exit_code, result.output


def test_help_names_every_command_and_imports_none() -> None:
    program = (
        "import sys; from utracefs.cli import cli\n"
        "try: cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in sys.modules if m.startswith(('utracefs.cli.', 'utracefs.tree', 'trio'))])\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True).stdout
    for name, (_, text) in COMMANDS.items():
        assert f"\n  {name} " in out
        assert text[:30] in out
    assert out.endswith("\n['utracefs.cli.terminal']\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nosuch"], "No such command 'nosuch'"),
        (["stauts"], "No such command 'stauts'; did you mean status?"),
        (["stop"], "No such command 'stop'; that is `utracefs write tracing_on 0`"),
        (["stat"], "No such command 'stat'; that is `utracefs status` or `utracefs perf stat`"),
        (["perf", "report"], "that is `perf report -i FILE` of perf itself, or `utracefs perf script`"),
        (["fleet", "enabel"], "did you mean enable?"),
        (["instance", "crate"], "did you mean create?"),
        (["report", "--nosuch"], "No such option"),
        (["record", "--filtr", "x"], "--filter"),
        (["report", "--cpu", "x"], "is not a list of cpus"),
        (["report", "--cpu", "3-1"], "is not a list of cpus"),
        (["report", "--cpu", "\u00b2"], "is not a list of cpus"),
        (["record", "--duration", "\u00b2", "--", "true"], "is not a number of seconds"),
        (["report", "-e", "a:b:c"], "more than one ':'"),
        (["record", "-e", "a b", "--", "true"], "is not an event"),
        (["record", "-e", "!a", "--", "true"], "is not an event"),
        (["record", "-e", "x" * 128, "--", "true"], "longer than 127 bytes"),
        (["record", "-b", "0", "--", "true"], "0 is not in the range"),
        (["record", "--duration", "0", "--", "true"], "'0' is not a number of seconds"),
        (["record", "--embedded"], "--embedded goes with a COMMAND"),
        (["record", "--embedded", "--dir", "/x", "--", "true"], "--embedded goes with a COMMAND"),
        (["enable"], "Missing argument"),
        (["disable"], "Missing argument"),
        (["cat"], "Missing argument"),
        (["emit", "ev u32 a"], "has 1 field (a), but 0 values came"),
        (["emit", "ev u32 a", "1", "2"], "has 1 field (a), but 2 values came"),
        (["emit", "ev u32 a", "x"], "a takes an integer, not 'x'"),
        (["emit", "ev struct s a 2", "xy"], "a takes hexadecimal bytes"),
        (["perf", "nosuch"], "No such command"),
        (["perf", "record", "-c", "1", "-F", "1"], "exclude each other"),
        (["perf", "record", "-m", "3"], "3 is not a power of two"),
    ],
)
def test_wrong_usage_is_status_2(words: list[str], says: str) -> None:
    status, out = invoke(*words)
    assert status == 2
    assert says in out


@pytest.mark.parametrize(
    "words",
    [["emit", "a u32 b", "1"], ["perf", "record"], ["record", "--dir", "/nonexistent", "--", "true"]],
)
def test_no_daemon_is_one_line_and_status_1(cli: Cli, words: list[str]) -> None:
    error = cli.fails(*words)
    assert "no daemon is there; start one with `utracefs daemon`" in error


def test_dir_before_or_after_the_command(cli: Cli) -> None:
    assert "/one/tracefs" in cli.fails("--dir", "/one", "status")
    assert "/two/tracefs" in cli.fails("--dir", "/one", "status", "--dir", "/two")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "no such file", "trace"), "utracefs: trace: no such file"),
        (OSError(22, "trace: first\nsecond line", "trace"), "utracefs: trace: first second line"),
        (OSError(28, "No space left on device"), "utracefs: No space left on device"),
        (OSError(5, "bad", b"\xff"), "utracefs: \\udcff: bad"),
        (TraceError(22, "FILE: is not a trace.dat"), "utracefs: FILE: is not a trace.dat"),
        (Failure("cmd", "command not found", 127), "utracefs: cmd: command not found"),
        (ZeroDivisionError("x"), "utracefs: internal error: ZeroDivisionError: x"),
    ],
)
def test_how_failures_are_reported(monkeypatch: pytest.MonkeyPatch, error: Exception, line: str) -> None:
    from utracefs.cli.convert.conversion import Selection

    def fail(*_args: object, recover: bool) -> None:
        raise error

    monkeypatch.setattr(Selection, "open", fail)
    result = CliRunner().invoke(cli, ["report"])
    assert result.exit_code == (127 if isinstance(error, Failure) else 1)
    assert result.output.startswith(line)
    assert result.output.count("\n") == 1


def test_a_deleted_current_directory_is_named(cli: Cli, tmp_path: Path) -> None:
    for command in ("utracefs --dir relative status", "utracefsd --dir relative"):
        shell = f'cd "$1" && mkdir gone && cd gone && rmdir ../gone && exec "$2" -m {command}'
        run = ["sh", "-c", shell, "sh", str(tmp_path), sys.executable]
        done = subprocess.run(run, capture_output=True, check=False)
        assert done.stderr.decode() == f"{command.split()[0]}: relative: {DELETED}\n"


def test_a_traceback_on_request(cli: Cli) -> None:
    program = (
        "import utracefs.cli.convert.report as r; from utracefs.cli import main\n"
        "def fail(path): raise ZeroDivisionError\n"
        "r.Selection.open = fail; main(['report'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**cli.env, "UTRACEFS_DEBUG": "1"},
        capture_output=True,
        check=False,
    )
    assert b"Traceback" in done.stderr


def test_the_reader_of_our_output_may_have_enough(cli: Cli, tmp_path: Path) -> None:
    for words in (["--help"], ["completion", "bash"]):
        process = cli.start(*words)
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        process.stderr.close()
        process.wait(60)


def test_a_full_disk_is_reported(cli: Cli) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            cli.command("completion", "zsh"), env=cli.env, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"utracefs: stdout: No space left on device\n"


@pytest.mark.parametrize(
    ("redirected", "status"),
    [("--version >&-", 1), ("ls --dir /none 2>&-", 1), ("ls 2>/dev/full", 1), ("x 2>/dev/full", 2)],
)
def test_the_status_where_output_cannot_be_written(cli: Cli, redirected: str, status: int) -> None:
    """As of cat; Python would make it 120."""
    script = f"{sys.executable} -m utracefs.cli {redirected}"
    done = subprocess.run(["sh", "-c", script], env=cli.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == ("utracefs: stdout: Bad file descriptor\n" if ">&-" in redirected[:13] else "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["record", "--nosuch"], "utracefs: record: No such option"),
        (["perf", "stat", "-p", "x"], "utracefs: perf stat: Invalid value"),
        (["nosuch"], "utracefs: No such command 'nosuch' (see utracefs --help)"),
        (["record", "-o", "-", "--", "true"], "utracefs: record: -o needs a file"),
    ],
)
def test_wrong_usage_is_one_line(cli: Cli, words: list[str], says: str) -> None:
    assert cli.fails(*words, status=2).startswith(says)


def test_a_word_that_looks_like_an_option(traced: Cli) -> None:
    assert "put `--` in front" in traced.fails("write", "buffer_size_kb", "-5", status=2)
    assert traced.fails("write", "buffer_size_kb", "--", "-5").startswith("utracefs: buffer_size_kb: ")


def test_a_reader_that_has_enough_is_no_error(cli: Cli, home: Path) -> None:
    cli.run("record", "--", sys.executable, "-c", MANY)
    for report in ("report", "report --json"):
        script = f"set -o pipefail; {sys.executable} -m utracefs.cli {report} | head -n 1"
        done = subprocess.run(
            ["bash", "-c", script], env=cli.env, cwd=home, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


MANY = """
import utracefs
event = utracefs.event("many u32 n; __rel_loc char[] s")
bool(event)
for n in range(5000):
    event.emit(n, "x" * 50)
utracefs.flush(60)
"""
