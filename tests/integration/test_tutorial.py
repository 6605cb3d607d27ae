"""docs/tutorial.md: every command that it shows is run, and prints what it shows."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.console import Shell, as_pattern, files, steps

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name: sockets lie below."""
    made = Path(tempfile.mkdtemp(prefix="ut-", dir="/tmp"))
    try:
        yield made
    finally:
        log = made / "daemon.log"
        found = re.search(r"/dev/shm/utracefs-[0-9a-f]{16}", log.read_text() if log.exists() else "")
        if found:
            shutil.rmtree(found[0], ignore_errors=True)
        shutil.rmtree(made)


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
def test_every_command_of_the_tutorial(folder: Path) -> None:
    for name, text in files(PAGE).items():
        (folder / name).write_text(text)
    (folder / "run").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("UTRACEFS_")}
    env["XDG_RUNTIME_DIR"] = str(folder / "run")
    env["UTRACEFS_DIR"] = str(folder / "d")
    env["UTRACEFS_PATIENCE_S"] = "60"  # a reader of the page has a machine for himself
    found = steps(PAGE)
    assert len(found) > 40
    with Shell(folder, env) as shell:
        for step in found:
            said = shell.run(step.command)
            where = f"docs/tutorial.md:{step.line}: {step.command}\nprinted:\n{said}"
            assert re.fullmatch(as_pattern(step.expected), said), where
            if step.command.endswith("&"):
                shell.wait_for("utracefs ls")
        shell.wait_for("test ! -e d/tracefs")  # the last command ends the daemon
