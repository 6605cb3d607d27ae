"""The cost of a program that declares one event: from `import utracefs` to the end of the first emit, in a
fresh interpreter, compared with `import asyncio` in another.

Interpreters run without `site`, whose imports depend on the installation (pathlib and typing in an editable
one).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import utracefs
import utracefs_protocol
from bench.measure import Row, daemon, ratio_row

RUNS = 31
AT_MOST = 0.10
PATH = os.pathsep.join(str(Path(*package.__path__[:1]).parent) for package in (utracefs, utracefs_protocol))
EVENT = "import utracefs; utracefs.event('first u32 a; __rel_loc char[] s').emit(1, 'x')"
TIMED = """\
import time
wall, cpu = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


def milliseconds(statement: str, directory: str) -> list[float]:
    """Wall clock, and cpu time of all threads."""
    env = {**os.environ, "PYTHONPATH": PATH, "UTRACEFS_DIR": directory}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # the first run compiles
    text = subprocess.check_output([sys.executable, "-S", "-c", TIMED.format(statement)], env=env, text=True)
    return [float(word) * 1e3 for word in text.split()]


def rows() -> Iterator[Row]:
    with daemon() as directory:
        subjects = {
            "first event with a daemon": (EVENT, directory),
            "first event without a daemon": (EVENT, directory + "/none"),
            "asyncio": ("import asyncio", directory),
        }
        for subject in subjects.values():
            milliseconds(*subject)
        taken: dict[str, list[list[float]]] = {name: [] for name in subjects}
        for _ in range(RUNS):
            for name, subject in subjects.items():
                taken[name].append(milliseconds(*subject))
    median = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)]
        for name, runs in taken.items()
    }
    for name in [*subjects][:2]:
        for place, clock in enumerate(("wall clock", "cpu time")):
            value, baseline = median[name][place], median["asyncio"][place]
            yield ratio_row(f"{name}, {clock}", value, baseline, "import asyncio", AT_MOST, "ms")
