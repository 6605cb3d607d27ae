"""Fields of one name in every reader of a recording."""

import json
import sys
from pathlib import Path

import utracefs
from tests.client.cli.kit import Cli
from tests.judges import library, run_judge

PROGRAM = """
import utracefs
utracefs.event("pair u32 a; s8 a; u32 a_2; __rel_loc char[] a; u32 A").emit(11, -2, 33, "four", 5)
"""
FIELDS = {"a": 11, "a_3": -2, "a_2": 33, "a_4": "four", "A": 5}


def test_every_field(tmp_path: Path, cli: Cli) -> None:
    file = str(tmp_path / "trace.dat")
    cli.run("record", "-o", file, "--", sys.executable, "-c", PROGRAM)
    with utracefs.open(file) as recording:
        assert [record.fields for record in recording] == [FIELDS]
    assert cli.out("report", file).endswith(" a=11 a=-2 a_2=33 a=four A=5\n")
    assert json.loads(cli.out("export", file))["fields"] == FIELDS
    assert cli.out("export", file, "--to", "csv").splitlines()[0].endswith(",a,a_3,a_2,a_4,A")
    for ending, there in (("ctf", "metadata"), ("pftrace", ""), ("json", "")):
        cli.run("export", file, "-o", str(tmp_path / f"to.{ending}"))
        assert b"a_3" in (tmp_path / f"to.{ending}" / there).read_bytes()
    cli.run("export", file, "-o", str(tmp_path / "to.data"))
    with utracefs.open(str(tmp_path / "to.data")) as recording:
        assert [record.fields for record in recording] == [FIELDS]


def test_tables(tmp_path: Path, cli: Cli) -> None:
    library("duckdb")
    file, folder = str(tmp_path / "trace.dat"), str(tmp_path / "to.parquet")
    program = PROGRAM + "utracefs.event('f struct double d 8').emit(float('-inf'))"
    cli.run("record", "-o", file, "--", sys.executable, "-c", program)
    cli.run("export", file, "-o", folder)
    for source in (file, folder):
        lines = cli.out("sql", source, "--json", "SELECT fields FROM records ORDER BY time_ns").splitlines()
        assert [json.loads(line)["fields"] for line in lines] == [FIELDS, {"d": "-Infinity"}]
    found = cli.out("sql", folder, "--csv", "SELECT a, a_3, a_2, a_4 FROM pair")
    assert found.endswith("\n11,-2,33,four\r\n")


def test_other_tools(tmp_path: Path, cli: Cli) -> None:
    """They also read a file with an event that has no name for them."""
    file, data = str(tmp_path / "trace.dat"), str(tmp_path / "to.data")
    program = PROGRAM + "utracefs.event('http-request u32 n').emit(7)"
    cli.run("record", "-o", file, "--", sys.executable, "-c", program)
    cli.run("export", file, "-o", data)
    with utracefs.open(data) as recording:
        assert [record.name for record in recording] == ["pair", "http-request"]
    assert b"user_events:http-request: n=7" in run_judge("perf", "script", "-i", data)
    for words in (["trace-cmd", "report", file], ["perf", "script", "-i", data]):
        assert b"a=11 a=-2 a_2=33 a=four A=5" in run_judge(*words, may_warn=True)
