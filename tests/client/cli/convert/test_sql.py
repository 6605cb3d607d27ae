"""`utracefs sql`: the output, errors of queries, Ctrl-C. The tables:
tests/client/export/tables/test_sql.py."""

import csv
import io
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.client.export.example import write
from tests.client.recordings.events import Events
from tests.client.recordings.test_recording import break_first_page
from tests.client.recordings.trace_dat import example
from tests.judges import library
from utracefs.cli import cli

library("duckdb")
library("pyarrow")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "t.dat", lost=5)


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, ["sql", *map(str, words)])


def test_a_table(file: Path) -> None:
    done = run(
        file, "SELECT name, count(*) AS n, max(lost) FROM records WHERE name < 'e' GROUP BY name ORDER BY 1"
    )
    assert (done.exit_code, done.stdout) == (
        0,
        "name   n  max(lost)\nbegin  2          0\ndone   1          0\n",
    )
    done = run(file, "SELECT data, raw, NULL AS nothing FROM text WHERE time_ns IN (11, 12) ORDER BY time_ns")
    assert done.stdout.splitlines()[1:] == [
        "line\\nfeed \\r\\n and\\rreturn\\tand tab  00ff0a27  NULL",
        "</script><!-- &amp; ' \\x01\\x1f\\x7f    00ff0a27  NULL",
    ]


def test_csv(file: Path) -> None:
    done = run(file, "SELECT data, raw, NULL AS nothing FROM text ORDER BY time_ns", "--csv")
    rows = list(csv.reader(io.StringIO(done.stdout_bytes.decode(), newline="")))
    assert rows[0] == ["data", "raw", "nothing"]
    assert rows[2] == ["line\nfeed \r\n and\rreturn\tand tab", "00ff0a27", ""]
    assert rows[4][0] == "größer 漢字 \U0001f600 \u2028"


def test_json(file: Path) -> None:
    query = """SELECT h, 1 AS h, 'nan'::DOUBLE AS f, 1.5::DECIMAL(4, 2) AS d, DATE '2026-01-02' AS day,
        [1, NULL] AS l, {'x': 'y'::BLOB} AS s, '</script>' AS t, true AS b
        FROM ints ORDER BY time_ns LIMIT 1"""
    done = run(file, query, "--json")
    assert json.loads(done.stdout) == {
        "h": 2**64 - 1,
        "h_2": 1,
        "f": "NaN",
        "d": "1.50",
        "day": "2026-01-02",
        "l": [1, None],
        "s": {"x": "79"},
        "t": "</script>",
        "b": True,
    }
    assert "<" not in done.stdout
    done = run(file, "SELECT fields FROM records WHERE name = 'done'", "--json")
    assert json.loads(done.stdout) == {"fields": {"key": 7, "usec": 1500}}


def test_tables_of_ftrace_itself_come_last(tmp_path: Path) -> None:
    early, late = Events(4, b"early u32 a"), Events(8, b"late u32 a")
    formats = {b"ftrace": early.formats(), b"user_events": late.formats()}
    path = example.write(tmp_path / "trace.dat", [[]], formats=formats)
    rows = [line.split() for line in run(path).stdout.splitlines()]
    assert list(dict.fromkeys(row[0] for row in rows)) == ["table", "records", "late", "early"]


def test_a_query_without_a_recording() -> None:
    done = CliRunner().invoke(cli, ["sql", "select 1"])
    assert done.exit_code == 2 and "INPUT comes first: utracefs sql trace.dat QUERY" in done.stderr


def test_show_tables(file: Path) -> None:
    tables = dict.fromkeys(line.split()[0] for line in run(file).stdout.splitlines()[1:])
    for query in ("show tables", "SHOW ALL TABLES ;"):
        assert run(file, query).stdout.split() == ["name", *tables]


def test_without_a_query_it_says_which_tables_there_are(file: Path) -> None:
    rows = [line.split() for line in run(file).stdout.splitlines()]
    assert rows[0] == ["table", "column", "type"]
    assert ["records", "fields", "JSON"] in rows
    assert [row[1:] for row in rows if row[0] == '"select"'] == [
        ["field_cpu", "UINTEGER"],
        ["field_time_ns", "UBIGINT"],
        ["three", "BLOB"],
        ['"from"', "BLOB"],
    ]


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("selec 1", 1, 'Parser Error: syntax error at or near "selec"'),
        ("FROM intss", 1, 'Catalog Error: Table with name intss does not exist! Did you mean "ints"?'),
        ("FROM http", 1, "Catalog Error: Table with name http does not exist! "),
        ("SELECT 'a'::INT", 1, "Conversion Error: Could not convert string 'a' to INT32"),
        ("COPY ints TO 'x.csv'", 1, 'Permission Error: Cannot access file "x.csv"'),
        ("SELECT INTERVAL '100000000 years'", 1, "a value is out of Python's range"),
        (" ; ", 2, "sql: QUERY is empty"),
    ],
)
def test_errors_are_one_line(file: Path, query: str, status: int, said: str) -> None:
    done = run(file, query)
    assert (done.exit_code, done.stdout) == (status, "")
    assert done.stderr.startswith(f"utracefs: {said}")
    assert done.stderr.count("\n") == 1
    assert ("`utracefs sql` lists the tables\n" in done.stderr) == ("Error: Table" in said)


def test_times_of_day(file: Path) -> None:
    done = run(
        file, "SELECT to_timestamp(0)::VARCHAR AS a, to_timestamp(max(time_ns)) AS b FROM ints", "--json"
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["b"][:2] == json.loads(done.stdout)["a"][:2]


def test_statements_without_rows(file: Path) -> None:
    done = run(file, "CREATE TABLE mine AS FROM done; SELECT usec FROM mine")
    assert done.stdout == "usec\n1500\n"
    assert run(file, "--csv", "--json", "SELECT 1").exit_code == 2


def test_many_rows(file: Path) -> None:
    done = run(file, "FROM range(20000)")
    assert len(done.stdout.splitlines()) == 10_001
    assert done.stderr == "utracefs: the first 10000 rows; --csv and --json print all\n"
    assert len(run(file, "FROM range(20000)", "--json").stdout.splitlines()) == 20_000


def test_a_broken_file(tmp_path: Path) -> None:
    path = example.write(tmp_path / "t", [example.pages(example.CPU0)])
    break_first_page(path)
    done = run(path, "SELECT count(*) FROM records")
    assert done.exit_code == 1
    assert done.stderr.startswith(f"utracefs: {path}: broken: cpu 0")
    assert done.stderr.count("\n") == 1
    assert run(path, "SELECT count(*) FROM records", "--recover").exit_code == 0


@pytest.mark.parametrize(("module", "extra"), [("duckdb", "sql"), ("pyarrow", "sql")])
def test_a_missing_library(file: Path, monkeypatch: pytest.MonkeyPatch, module: str, extra: str) -> None:
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        monkeypatch.setitem(sys.modules, name, None)
    done = run(file, "SELECT 1")
    assert (done.exit_code, done.stderr) == (
        1,
        f"utracefs: {module} is not installed: pip install 'utracefs[{extra}]'\n",
    )


def _ticks(tasks: Path, which: int | str = "*") -> int:
    """User time of a process's threads."""
    return sum(int(path.read_text().rpartition(")")[2].split()[11]) for path in tasks.glob(f"{which}/stat"))


def test_ctrl_c(file: Path) -> None:
    query = "SELECT count(*) FROM range(1000000000000) a(x), range(100000) WHERE x % 7 = 3"
    command = [sys.executable, "-m", "utracefs", "sql", str(file), query]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        tasks = Path(f"/proc/{process.pid}/task")
        deadline = time.monotonic() + 60
        # Half a second of work of other threads: they are in the query.
        while _ticks(tasks) - _ticks(tasks, process.pid) < 50 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (130, b"", b"")


def test_several_recordings(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.dat"
    other.write_bytes(file.read_bytes())
    done = CliRunner().invoke(
        cli, ["sql", str(file), str(other), "--json", "select file, usec from done order by file"]
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines == [{"file": str(path), "usec": 1500} for path in sorted((file, other))]
    done = CliRunner().invoke(cli, ["sql", str(file), str(other)])
    assert ["done", "file", "VARCHAR"] in [line.split() for line in done.stdout.splitlines()]
