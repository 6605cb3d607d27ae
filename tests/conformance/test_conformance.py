"""Every scenario script, played against a fresh daemon, gives the transcript of a 6.12 kernel.

Differing operations are listed in EXPECTED with the reason, and `docs/differences.md` tells users. The
comparison is exact in both directions: a difference that no longer exists must be removed from the list.

Run `python -m tests.conformance.test_conformance [SCRIPT]` to see the differences as text.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conformance import transcript
from tests.integration.conftest import running
from utracefs_protocol.text import text_of

HERE = Path(__file__).parent

NOT_HERE = "the files of other tracers (set_ftrace_*, tracing_max_latency) do not exist"
EVENT_FILES = "ours has inject, which that kernel was built without, and stats"
EXPECTED: dict[str, dict[int, str]] = {
    "01_types": {136: EVENT_FILES, 138: NOT_HERE + "; ours has standing_events and consumers/"},
    "08_writes": {
        178: "a connection has no open mode",
        182: "`ls -l` of a file needs the tree mounted",
    },
    "25_instances": {
        7: NOT_HERE + "; ours has standing_events and remove_on_close",
        8: EVENT_FILES,
    },
    "30_lifetime": dict.fromkeys((129, 133), "no event gets the id of a removed one that has records"),
}
"""Script -> {operation number -> why}."""

PERHAPS = {"08_writes": {88, 126}, "30_lifetime": {11, 12}}
"""Texts that show bytes of the writer's pid, which may be equal by chance; whether events without references
have been removed already."""


def play(script: str, directory: str) -> str:
    """The transcript of `script` against a fresh daemon in `directory`; both are pinned to one cpu."""
    pin = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    with running(directory, within=pin) as daemon:
        path = transcript.write_script(script, Path(directory))
        done = subprocess.run(
            [*pin, sys.executable, str(HERE / "player.py"), str(path), directory],
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        assert daemon.process and daemon.process.poll() is None, "the daemon died"
    return text_of(done.stdout)


def differences(script: str) -> list[transcript.Difference]:
    with tempfile.TemporaryDirectory(prefix="utracefs-") as directory:
        ours = play(script, directory)
    return transcript.compare(transcript.recorded(script), ours)


@pytest.mark.parametrize("script", transcript.SCRIPTS)
def test_like_the_kernel(script: str) -> None:
    found = differences(script)
    expected = set(EXPECTED.get(script, {}))
    found = [d for d in found if d.number not in PERHAPS.get(script, ())]
    unexpected = [d for d in found if d.number not in expected]
    assert not unexpected, "\n".join(map(str, unexpected[:10]))
    assert {d.number for d in found} == expected, "a listed difference is gone: take it off EXPECTED"


def main() -> None:
    for script in sys.argv[1:] or transcript.SCRIPTS:
        found = differences(script)
        print(f"=== {script}: {len(found)} operations differ")
        for difference in found:
            print(difference)


if __name__ == "__main__":
    main()
