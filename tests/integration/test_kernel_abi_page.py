"""docs/kernel-abi.md: every command that it shows is run, and prints what it shows."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.console import Shell, as_pattern, files, steps
from tests.integration.mounting import why_no_mount
from utracefs import c_client
from utracefs.mount.own_namespace import MOUNTPOINT

PAGE = (Path(__file__).parents[2] / "docs/kernel-abi.md").read_text()


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


@pytest.mark.skipif(c_client.preload_library() is None, reason="the C client was not built")
@pytest.mark.timeout(600)
def test_every_command_of_the_page(folder: Path) -> None:
    for name, text in files(PAGE).items():
        (folder / name).write_text(text)
    assert {path.name for path in folder.iterdir()} == {"provider.c", "web.c"}
    (folder / "run").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("UTRACEFS_") and k != "LD_PRELOAD"}
    env["XDG_RUNTIME_DIR"] = str(folder / "run")
    env["UTRACEFS_PATIENCE_S"] = "60"  # a reader of the page has a machine for himself
    may_mount = os.path.isdir(MOUNTPOINT) and why_no_mount(folder / "mount") is None
    found = [step for step in steps(PAGE) if may_mount or "--kernel-abi" not in step.command]
    assert len(found) > 10
    with Shell(folder, env) as shell:
        for step in found:
            said = shell.run(step.command)
            where = f"docs/kernel-abi.md:{step.line}: {step.command}\nprinted:\n{said}"
            assert re.fullmatch(as_pattern(step.expected), said), where
            if step.command.endswith("&"):
                shell.wait_for("utracefs ls")
        shell.run("kill %1; wait")


def test_the_page_names_what_the_command_line_has() -> None:
    for option in ("--kernel-abi", "--no-preload"):
        assert option in PAGE
