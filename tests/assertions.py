"""Assertions of tests that ran without reaching them: `make assertions`, by coverage of the tests' own lines.

Each is a test that asserts less than it shows, or a branch for another machine.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import coverage


def unreached(source: str, lines: set[int]) -> Iterator[int]:
    """Lines of assertions, of a file of which `lines` ran."""
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            body = [node for one in function.body for node in ast.walk(one)]
            if any(getattr(node, "lineno", 0) in lines for node in body):
                yield from (n.lineno for n in body if isinstance(n, ast.Assert) and n.lineno not in lines)


def main(path: str) -> int:
    data = coverage.CoverageData(path)
    data.read()
    found = [
        f"{file}:{line}: {text.splitlines()[line - 1].strip()}"
        for file in sorted(data.measured_files())
        if Path(file).name.startswith("test_") and "/tests/" in file
        for text in [Path(file).read_text()]
        for line in sorted({*unreached(text, set(data.lines(file) or []))})
    ]
    print("\n".join(found))
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
