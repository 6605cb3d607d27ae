"""An unmodified program with events is recorded without root, and the real trace-cmd prints the result."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import judge
from tests.left_over import SHARED_MEMORY
from utracefsd.server.runtime import directory_hash

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "examples" / "shop.py"


def run(
    *command: str, env: dict[str, str] | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, env=env, timeout=100, check=False, errors="surrogateescape"
    )
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def utracefs(
    *words: str, env: dict[str, str] | None = None, status: int = 0
) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "utracefs.cli", *words, env=env, status=status)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's trace.dat, recorded with the embedded daemon."""
    out = tmp_path_factory.mktemp("shop") / "trace.dat"
    env = {k: v for k, v in os.environ.items() if k != "UTRACEFS_DIR"}
    env["XDG_RUNTIME_DIR"] = str(out.parent)
    place = out.with_name("place")
    script = '{ echo "$UTRACEFS_DIR"; ls /dev/shm; } >"$0"; exec "$@"'
    program = ["sh", "-c", script, str(place), sys.executable, str(SHOP)]
    utracefs("record", "-e", "user_events:*", "-o", str(out), "--", *program, env=env)
    directory, *before = place.read_text().splitlines()
    folder = f"utracefs-{directory_hash(Path(directory))}"
    assert folder in before
    assert not (SHARED_MEMORY / folder).exists()
    return out


def test_records_all_of_it(shop: Path) -> None:
    lines = utracefs("report", str(shop)).stdout.splitlines()
    assert re.fullmatch(r"cpus=\d+", lines[0])
    assert len(lines) >= 20_000
    assert not any("DROPPED" in line or "LOST" in line for line in lines)
    names = {m[1] for line in lines[1:] if (m := re.search(r"\d+\.\d+: (\w+):", line))}
    assert len(names) == 3, names
    pids = {m[1] for line in lines[1:] if (m := re.match(r".{16}-(\d+) ", line))}
    assert len(pids) >= 2, "the worker process is in the trace, too"


def test_trace_cmd_says_the_same(shop: Path) -> None:
    theirs = run(judge("trace-cmd"), "report", "-i", str(shop))
    assert theirs.stderr == ""
    ours = utracefs("report", str(shop)).stdout
    assert theirs.stdout.splitlines() == ours.splitlines()
