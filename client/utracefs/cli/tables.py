"""Columns of text, and counts in words."""

import re
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence

DEFAULT_SYSTEM = "user_events"

_SHORTEST = 10
"""Characters of a text that is cut."""


def counted(number: int, one: str, many: str = "") -> str:
    """`1 record`, `2 records`; many: an irregular plural."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def table_lines(rows: Sequence[Sequence[str]], *, left: Collection[int]) -> Iterator[str]:
    """Columns of minimal width; those in `left` (from 0 on) aligned to the left, the others, numbers, to the
    right. On a terminal no line is wider than it, if texts can be shortened."""
    if sys.stdout.isatty():
        rows = fitted(rows, left, shutil.get_terminal_size().columns, gap=2)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def fitted(
    rows: Sequence[Sequence[str]], left: Collection[int], width: int, *, gap: int
) -> Sequence[Sequence[str]]:
    """The same table for lines of `width`, with so many blanks between columns: events without
    `user_events:`, then the longest texts cut, down to some characters."""
    for prefix in ("", f"{DEFAULT_SYSTEM}:"):
        rows = [
            [cell.removeprefix(prefix) if i in left else cell for i, cell in enumerate(row)] for row in rows
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        spare = width - sum(widths) - gap * (len(widths) - 1)
        if spare >= 0:
            return rows
    while spare < 0 and (longest := max(((widths[i], i) for i in left), default=(0, 0)))[0] > _SHORTEST:
        widths[longest[1]] -= 1
        spare += 1
    return [
        [
            cell if i not in left or len(cell) <= size else f"{cell[: size - 1]}…"
            for i, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def printable(text: str) -> str:
    """Without control characters, and with U+FFFD for bytes that are not UTF-8. Never fails: JSON of other
    hosts may have any surrogates."""
    shown = re.sub("[\ud800-\udfff]", "\ufffd", text)
    return "".join(char if char.isprintable() else "?" for char in shown)


def sized(size: int) -> str:
    """Bytes of a file."""
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
