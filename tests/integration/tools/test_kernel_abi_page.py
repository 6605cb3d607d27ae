"""docs/kernel-abi.md: every command in it is run, and its output is as shown."""

import os
from pathlib import Path

import pytest

from tests.integration.mount.mounting import why_no_mount
from tests.integration.tools.console import Shell, files, prepare, steps
from utracefs.cli import c_client
from utracefs.mount.own_namespace import MOUNTPOINT

PAGE = (Path(__file__).parents[3] / "docs/kernel-abi.md").read_text()


@pytest.mark.skipif(c_client.preload_library() is None, reason="the C client was not built")
@pytest.mark.timeout(600)
def test_every_command_of_the_page(page_folder: Path) -> None:
    assert set(files(PAGE)) == {"provider.c", "web.c"}
    env = prepare(PAGE, page_folder)
    env.pop("LD_PRELOAD", None)
    may_mount = os.path.isdir(MOUNTPOINT) and why_no_mount(page_folder / "mount") is None
    found = [step for step in steps(PAGE) if may_mount or "--kernel-abi" not in step.command]
    assert len(found) > 10
    with Shell(page_folder, env) as shell:
        shell.play("docs/kernel-abi.md", found)


def test_the_page_names_what_the_command_line_has() -> None:
    for option in ("--kernel-abi", "--no-preload"):
        assert option in PAGE
