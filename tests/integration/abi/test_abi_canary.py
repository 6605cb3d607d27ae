"""tests/abi/canary.c: forks, execs, exits and kills while events are switched on and off; in no process's
memory anything changes but the bits, which change in time, and daemon and mount stay within their limits of
memory and descriptors.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.integration.abi.programs import VIA, World, built, run, world
from tests.integration.conftest import DaemonProcess
from tests.integration.mount.mounting import wait_for

CHILDREN, CHANGES = 300, 320
MAY_GROW_KB = 16 * 1024


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def play(program: Path, there: World, children: int, toggles: int) -> dict[str, list[float]]:
    """The figures that it printed."""
    done = run(program, there.tree, children, toggles, env=there.environment, timeout_s=400)
    text = done.stdout.decode()
    assert done.returncode == 0, text + done.stderr.decode()
    return {name: [float(n) for n in rest] for name, *rest in map(str.split, text.splitlines())}


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("via", VIA)
def test_nothing_else_is_touched(via: str, daemon: DaemonProcess, tmp_path: Path) -> None:
    canary = built("canary", tmp_path)
    with world(via, daemon, tmp_path) as there:
        pids = [daemon.pid, there.mount.process.pid]
        play(canary, there, 100, 40)  # afterwards all caches are filled
        before = [(resident_kb(pid), descriptors(pid)) for pid in pids]
        found = play(canary, there, CHILDREN, CHANGES // 2)
        wait_for(lambda: all(descriptors(pid) <= b[1] for pid, b in zip(pids, before, strict=True)), "closed")
        after = [(resident_kb(pid), descriptors(pid)) for pid in pids]
    print("\nfigures", via, found, before, after)
    assert found["children"] == [CHILDREN]
    assert found["changes"] == [CHANGES]
    assert found["strangers"][0] > 10
    for (was, _), (now, _) in zip(before, after, strict=True):
        assert now - was <= MAY_GROW_KB, (before, after)
