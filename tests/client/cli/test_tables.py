"""Columns of text, and counts in words."""

from utracefs.cli.tables import counted, fitted, table_lines


def test_columns() -> None:
    rows = [("NAME", "COUNT", "SUM"), ("a", "1", "10"), ("longer", "12345678", "")]
    assert list(table_lines(rows, left=[0])) == [
        "NAME       COUNT  SUM",
        "a              1   10",
        "longer  12345678",
    ]
    assert list(table_lines([("a", "b"), ("cc", "d")], left=range(2))) == ["a   b", "cc  d"]


def test_narrow() -> None:
    rows = [["EVENT", "PID", "N"], ["user_events:http_request", "a long command", "12"]]
    assert fitted(rows, {0, 1}, 44, gap=2) == rows
    assert fitted(rows, (), 1, gap=2) == rows
    assert fitted(rows, {0, 1}, 32, gap=2)[1] == ["http_request", "a long command", "12"]
    assert fitted(rows, {0, 1}, 26, gap=2)[1] == ["http_requ…", "a long co…", "12"]
    assert fitted(rows, {0, 1}, 1, gap=2)[1] == ["http_requ…", "a long co…", "12"]


def test_counts() -> None:
    assert [counted(n, "record") for n in (0, 1, 2)] == ["0 records", "1 record", "2 records"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]
