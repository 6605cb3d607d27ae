"""The data ring's C header under stress: two processes, several threads, full rings, a killed producer; and sanitizers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "protocol" / "utracefs_protocol" / "include"


def build(folder: Path, *flags: str) -> Path:
    program = folder / "data_ring_stress"
    subprocess.run(
        [
            "gcc",
            "-std=gnu11",
            "-Wall",
            "-Wextra",
            "-Werror",
            f"-I{INCLUDE}",
            *flags,
            str(HERE / "data_ring_stress.c"),
            "-o",
            str(program),
            "-lpthread",
        ],
        check=True,
    )
    return program


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ring"), "-O2")


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("ring"), "-O1", "-g", "-fsanitize=address,undefined")


def run(program: Path, *arguments: int) -> dict[str, int]:
    done = subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {k: int(v) for k, v in re.findall(r"(\w+) (\d+)", done.stdout)}


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("size", [64 << 10, 1 << 20])
def test_every_record_arrives_or_is_counted(stress: Path, size: int, threads: int) -> None:
    got = run(stress, size, 300_000 // threads, threads, 0)
    assert got["taken"] + got["lost"] == 300_000 // threads * threads
    assert got["holes"] == 0


@pytest.mark.parametrize("threads", [1, 3])
def test_a_killed_producer_loses_nothing_that_it_committed(stress: Path, threads: int) -> None:
    for _ in range(5):
        got = run(stress, 64 << 10, 10**9, threads, 1)
        assert got["taken"] >= 1_000
        assert got["holes"] <= threads


def test_under_sanitizers(sanitized: Path) -> None:
    got = run(sanitized, 64 << 10, 60_000, 2, 0)
    assert got["taken"] + got["lost"] == 120_000
