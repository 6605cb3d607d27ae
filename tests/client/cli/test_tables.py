"""Columns of text."""

from utracefs.cli.tables import table_lines


def test_columns() -> None:
    rows = [("NAME", "COUNT", "SUM"), ("a", "1", "10"), ("longer", "12345678", "")]
    assert list(table_lines(rows, left=[0])) == [
        "NAME       COUNT  SUM",
        "a              1   10",
        "longer  12345678",
    ]
    assert list(table_lines([("a", "b"), ("cc", "d")], left=range(2))) == ["a   b", "cc  d"]
