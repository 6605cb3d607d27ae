"""Columns of text."""

from collections.abc import Collection, Iterator, Sequence

__all__ = ["table_lines"]


def table_lines(rows: Sequence[Sequence[str]], *, left: Collection[int]) -> Iterator[str]:
    """Columns as wide as needed; those of `left` (from 0 on) to the left, the others, numbers, to the
    right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
