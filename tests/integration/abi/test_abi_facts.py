"""The kernel's answers and errors that test_abi_selftests.py and test_abi_conformance.py do not show:
tests/abi/facts.c and hostile.c, in both ways.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.abi.programs import PROGRAMS, VIA, built, run, world
from tests.integration.conftest import DaemonProcess

EXPECTED: dict[str, dict[str, str]] = {
    "mount": {
        "write_unreadable": "FUSE passes on what lies before the unreadable memory, as a whole record",
    },
    "preload": {},
}
"""Way -> fact -> why it is not true there."""


def facts_of(program: str) -> list[str]:
    return re.findall(r'^\t    \{"(\w+)", \w+\},$', (PROGRAMS / f"{program}.c").read_text(), re.MULTILINE)


@pytest.mark.parametrize("via", VIA)
@pytest.mark.parametrize("program", ["facts", "hostile"])
def test_what_the_kernel_does(program: str, via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    path = built(program, tmp_path)
    with world(via, daemon, tmp_path) as there:
        done = run(path, there.tree, env=there.environment, timeout_s=60)
    lines = done.stdout.decode().splitlines()
    held = {line.split()[1] for line in lines if line.startswith("ok ")}
    failed = {line.split()[2].rstrip(":"): line for line in lines if line.startswith("not ok ")}
    unexpected = [line for name, line in failed.items() if name not in EXPECTED[via]]
    assert not unexpected, "\n".join(unexpected)
    assert done.returncode == (1 if failed else 0), done
    assert held | set(failed) == set(facts_of(program)), done.stderr
    assert not held & set(EXPECTED[via]), "it holds now: take it off EXPECTED"
