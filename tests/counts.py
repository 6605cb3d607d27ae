"""The counts of docs/testing.md, from the sources: `python -m tests.counts` writes them.

The page is up to date until a number differs by more than three and more than a tenth: a change that adds a
test or a fault need not touch it.
"""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.client.c.test_instructions import INJECTIONS, PATHS
from tests.client.forward.failing_disk import PLANS
from tests.simulation.faults import FAULTS
from tests.simulation.found import FOUND, FOUND_BY_CLIENTS
from tests.simulation.mixture import WEIGHTS
from tests.simulation.test_simulation import RARE
from tests.soak.__main__ import _PARTS
from tests.soak.attacks import memory, sockets
from tests.test_sources import FOLDERS, ROOT, TEXTS

PAGE = ROOT / "docs" / "testing.md"
BLOCK = re.compile(r"(?<=<!-- `python -m tests.counts` writes this table -->\n\n).*?(?=\n\n)", re.DOTALL)


def counts() -> dict[str, int]:
    lines: Counter[bool] = Counter()
    functions: list[ast.FunctionDef | ast.AsyncFunctionDef] = []
    for path in TEXTS:
        is_product = any(path.is_relative_to(folder) for folder in FOLDERS)
        if is_product or path.is_relative_to(ROOT / "tests"):
            lines[is_product] += len(path.read_text().splitlines())
        if path.name.startswith("test_") and path.suffix == ".py":
            nodes = ast.walk(ast.parse(path.read_text()))
            functions += [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    tests = [one for one in functions if one.name.startswith("test_")]
    return {
        "lines of the product": lines[True],
        "lines of tests": lines[False],
        "functions that are tests; many have parameters": len(tests),
        "of them with Hypothesis": sum(
            "given(" in ast.unparse(decorator) for one in tests for decorator in one.decorator_list
        ),
        "transcripts of a kernel": len([*(ROOT / "tests/conformance/6.12.117").rglob("*.txt")]),
        "simulation: kinds of steps": len(WEIGHTS),
        "simulation: names that sixty seeds must reach": len(RARE),
        "simulation: lists of steps kept, each of which once failed": len(FOUND) + len(FOUND_BY_CLIENTS),
        "simulation: faults to be found": len(FAULTS),
        "interrupted emits: paths": len(PATHS),
        "interrupted emits: injections": len(INJECTIONS),
        "spool: faults of a disk at each call": len(PLANS),
        "soak: parts": len(_PARTS),
        "soak: kinds of their steps": len({*sockets.STEPS, *memory.STEPS}),
    }


def table(numbers: dict[str, int]) -> str:
    return "\n".join(
        [
            "| counted | number |",
            "|---|---|",
            *(f"| {name} | {_shown(number)} |" for name, number in numbers.items()),
        ]
    )


def _shown(number: int) -> str:
    return f"{number if number < 100 else float(f'{number:.1e}'):,.0f}"


def is_current(page: Path, numbers: dict[str, int]) -> bool:
    found = BLOCK.search(page.read_text())
    assert found
    written = {
        name: int(number.replace(",", ""))
        for name, number in re.findall(r"\| (.*?) \| ([\d,]+) \|", found[0])
    }
    return list(written) == list(numbers) and all(
        abs(written[name] - number) <= max(3, number / 10) for name, number in numbers.items()
    )


if __name__ == "__main__":
    PAGE.write_text(BLOCK.sub(table(counts()), PAGE.read_text()))
