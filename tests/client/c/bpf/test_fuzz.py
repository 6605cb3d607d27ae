"""Random and changed programs, random calls, under sanitizers; `make -C client/c fuzz` takes ten minutes."""

from __future__ import annotations

import subprocess

import pytest

from tests.client.c.building import sanitized


@pytest.mark.parametrize("seed", [1, 2])
def test_random_programs(seed: int) -> None:
    program = sanitized("bpf_fuzz")
    done = subprocess.run([program, str(seed), "3"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    codes, _, ended, complete = (int(part.split()[0]) for part in done.stdout.split(b", ")[:4])
    assert codes == 119
    assert ended > 100
    assert complete > 100
