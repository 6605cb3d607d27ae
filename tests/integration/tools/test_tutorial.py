"""docs/tutorial.md: every command in it is run, and its output is as shown."""

import re
from pathlib import Path

import pytest

from tests.integration.tools.console import Shell, as_pattern, files, prepare, steps
from tests.judges import library

PAGE = (Path(__file__).parents[3] / "docs/tutorial.md").read_text()


def test_how_a_page_is_read() -> None:
    page = "x\n```python\n# a.py\nprint(1)\n```\n\n```console\n$ one\n1  2\n...\n3 a...b\n$ two\n```\n"
    assert files(page) == {"a.py": "# a.py\nprint(1)\n"}
    first, second = steps(page)
    assert (first.line, first.command, second.line, second.command) == (8, "one", 12, "two")
    assert second.expected == ""
    for said in ("1 2\n3 ab\n", "  1    2\nany\nlines\n\n3 a, and b\n"):
        assert re.fullmatch(as_pattern(first.expected), said)
    for said in ("", "1 2\n", "12\n3 ab\n", "1 2\n3 ab\nmore\n", "1 2\n3 a\nb\n"):
        assert not re.fullmatch(as_pattern(first.expected), said)


@pytest.mark.timeout(600)
def test_every_command_of_the_tutorial(page_folder: Path) -> None:
    library("duckdb")
    library("pyarrow")
    env = {**prepare(PAGE, page_folder), "UTRACEFS_DIR": str(page_folder / "d")}
    found = steps(PAGE)
    assert len(found) > 40
    with Shell(page_folder, env) as shell:
        shell.play("docs/tutorial.md", found)
    assert not (page_folder / "d/tracefs").exists()  # the last command ends the daemon
