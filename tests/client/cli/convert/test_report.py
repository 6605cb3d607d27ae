"""`utracefs report`: which file, which records. The lines: test_trace_report.py."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import utracefs
from tests.client.recordings.events import Events
from tests.client.recordings.trace_dat.example import pages, write
from utracefs.cli import cli
from utracefs.cli.losses import LOSSES, lost_lines
from utracefs.export import write_perf_data

EVENTS = Events(100, b"one u32 n", b"two u32 n")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Records 0 to 5, in turns of both events, two on each of three cpus."""
    entries = [(1000 * (number + 1), EVENTS.entry(100 + number % 2, 7, number)) for number in range(6)]
    formats = {b"user_events": EVENTS.formats()}
    cpus = [pages(entries[cpu::3]) for cpu in range(3)]
    return write(tmp_path / "trace.dat", cpus, formats=formats, cpu_stats={0: b"entries: 2\n"})


def report(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, words)])


def numbers(*words: str | Path) -> list[int]:
    return [json.loads(line)["fields"]["n"] for line in report("--json", *words).stdout.splitlines()]


def test_all_in_the_order_of_time(file: Path) -> None:
    assert numbers(file) == numbers("-i", file) == [0, 1, 2, 3, 4, 5]
    lines = report(file).output.splitlines()
    assert [line.rsplit("n=")[1] for line in lines if "n=" in line] == list("012345")


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [("0", [0, 3]), ("0,2", [0, 2, 3, 5]), ("1-2", [1, 2, 4, 5]), ("0-9,1", [*range(6)]), ("7", [])],
)
def test_some_cpus(file: Path, cpus: str, expected: list[int]) -> None:
    assert numbers("--cpu", cpus, file) == expected


def test_some_events(file: Path) -> None:
    assert numbers("-e", "two", file) == [1, 3, 5]
    assert numbers("-e", "user_events:o*", "-e", "two", file) == [*range(6)]
    result = report("-e", "two", "-e", "nosuch", file)
    assert (result.exit_code, result.output) == (
        1,
        f"utracefs: {file}: no such event: nosuch; it has one, two\n",
    )


def test_statistics(file: Path) -> None:
    assert "entries: 2" in report("--stat", file).output.splitlines()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = report(tmp_path / "nosuch")
    assert (result.exit_code, result.output) == (
        1,
        f"utracefs: {tmp_path}/nosuch: No such file or directory\n",
    )


def test_a_filter(file: Path) -> None:
    assert numbers(file, "--filter", "n > 2", "-f", "n != 4") == [3, 5]
    lines = report(file, "-f", "n == 4").stdout.splitlines()
    assert (len(lines), lines[1].split()[-1]) == (2, "n=4")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--since", "0.000003"], [2, 3, 4, 5]),
        (["--until", "0.000003"], [0, 1]),
        (["--since", "0.000002", "--until", "0.000004001", "-f", "n != 2"], [1, 3]),
        (["--until", "0"], []),
        (["--since", "17179869183"], []),
        (["--last", "0.000002"], [3, 4, 5]),
        (["--last", "5"], [*range(6)]),
        (["-P", "7", "--since", "0.000005"], [4, 5]),
        (["--pid", "8"], []),
        (["--pid", "8", "--pid", "7"], [*range(6)]),
    ],
)
def test_times_and_threads(file: Path, words: list[str], expected: list[int]) -> None:
    assert numbers(file, *words) == expected
    done = report(file, *words)
    assert [int(line.split("n=")[1]) for line in done.stdout.splitlines()[1:]] == expected
    says = "" if expected else f"utracefs: {file}: 0 records\n"
    assert done.stderr == report("--json", file, *words).stderr == says


def test_a_perf_data_is_distinguished_from_a_foreign_file(tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    path.write_bytes(b"PERFILE2" + bytes(200))
    result = report(path)
    assert result.exit_code == 1 and f"utracefs perf script -i {path}" in result.output
    path.write_bytes(b"PERFILE")
    assert report(path).output == f"utracefs: {path}: is neither a trace.dat nor a perf.data\n"


def test_a_page(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page itself: tests/client/html."""
    monkeypatch.chdir(tmp_path)
    result = report("--html", file)
    assert (result.exit_code, result.output) == (0, "trace.html: 6 records\n")
    assert (tmp_path / "trace.html").read_bytes().startswith(b"<!doctype html>")
    (tmp_path / "http.dat.2026113008435249").symlink_to(file)
    assert report("--html", "http.dat.2026113008435249").output.startswith(
        "http.dat.2026113008435249.html: 6"
    )
    out = tmp_path / "out.html"
    result = report("--html", file, "-o", out, "-e", "two", "--since", "0.000003", "--until", "1", "-P", "7")
    assert (result.exit_code, result.output) == (0, f"{out}: 2 records\n")
    result = report("--html", "-o", "-", "--cpu", "0", file)
    assert result.exit_code == 0 and result.stdout.endswith("</html>\n")
    assert b'"records":2,' in result.stdout_bytes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--html", "--json"], "--html cannot be combined"),
        (["--stat", "--json"], "--stat prints text"),
        (["--html", "--stat"], "--html cannot be combined"),
        (["-o", "x"], "is for --html"),
        (["--html", "-o", "trace.dat"], "is the input"),
        (["--html", "-e", "nosuch"], "no such event"),
        (["--html", "-o", "nosuch/x"], "No such file or directory"),
    ],
)
def test_a_page_that_cannot_be(
    file: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.chdir(file.parent)
    result = report(*words, file)
    assert result.exit_code and says in result.output
    assert [path.name for path in file.parent.iterdir()] == ["trace.dat"]


def test_times_that_exclude_each_other(file: Path) -> None:
    result = report("--last", "1", "--since", "1", file)
    assert (result.exit_code, "--last goes without --since" in result.output) == (2, True)


def test_the_last_seconds_of_a_perf_data(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "perf.data"
    with utracefs.open(file) as recording:
        write_perf_data(recording, path)
    done = report("--last", "0.000002", "--html", "-o", tmp_path / "out.html", path)
    assert (done.exit_code, done.output) == (0, f"{tmp_path / 'out.html'}: 3 records\n")
    done = report("--last", "1", path)
    assert done.exit_code == 1 and "--json, --html and `export` take it" in done.output


def test_losses_are_reported(tmp_path: Path) -> None:
    """Also losses after the last record, which no page reports."""
    stats = lost_lines(dict.fromkeys((loss.name for loss in LOSSES), 2))
    path = write(tmp_path / "trace.dat", [[]], event_stats=lambda _: stats)
    done = report(path)
    assert done.stdout == "cpus=1\n"
    assert f"utracefs: {path}: of all that was emitted 10 lost: 2 in data rings (" in done.stderr
