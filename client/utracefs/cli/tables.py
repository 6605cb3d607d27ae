"""Columns of text, and counts in words."""

from collections.abc import Collection, Iterator, Sequence


def counted(number: int, one: str, many: str = "") -> str:
    """`1 record`, `2 records`; many: an irregular plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def table_lines(rows: Sequence[Sequence[str]], *, left: Collection[int]) -> Iterator[str]:
    """Columns of minimal width; those in `left` (from 0 on) aligned to the left, the others, numbers, to the
    right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def sized(size: int) -> str:
    """Bytes of a file."""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
