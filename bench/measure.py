"""Taking a figure: the best of several repeats, baseline and subject in turns.

Machines are shared and noisy. The best of several is the code's cost; the baseline is measured between the
subject's repeats, so that a slow moment affects both. A row has the promised limit, and whether it was kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

REPEATS = 7


@contextlib.contextmanager
def left_out(what: str) -> Iterator[None]:
    """Without a library or a program that `what` needs it is left out, and a line says so."""
    try:
        yield
    except (ImportError, pytest.skip.Exception) as error:  # as the helpers of the tests find it
        print(f"  (left out: {what}: {error})", flush=True)


def until_off(*events: object) -> None:
    """Wait for the daemon's first answer: before that events, and spans, count as on."""
    while any(events):
        time.sleep(0.001)


@attrs.frozen
class Row:
    what: str
    value: float
    """The measured figure, in `unit`."""
    unit: str
    promise: str
    """`<= 0.5 x` and the like, as text."""
    held: bool
    baseline: float | None = None
    """The baseline's figure, in the same unit."""
    baseline_name: str = ""

    @property
    def ratio(self) -> float | None:
        return self.value / self.baseline if self.baseline else None

    def text(self) -> str:
        base = f"{self.baseline_name} {self.baseline:,.1f} {self.unit}" if self.baseline else ""
        ratio = f"{self.ratio:.2f} x" if self.ratio is not None else ""
        mark = "held" if self.held else "MISSED"
        figure = f"{self.what:<52} {self.value:>14,.1f} {self.unit:<10} {ratio:>8}"
        return f"{figure}  {self.promise:<14} {mark:<7} {base}"


def ratio_row(what: str, value: float, baseline: float, name: str, at_most: float, unit: str = "ns") -> Row:
    return Row(what, value, unit, f"<= {at_most} x", value <= at_most * baseline, baseline, name)


def at_most_row(what: str, value: float, limit: float, unit: str) -> Row:
    return Row(what, value, unit, f"<= {limit:g} {unit}", value <= limit)


def at_least_row(what: str, value: float, limit: float, unit: str) -> Row:
    return Row(what, value, unit, f">= {limit:,.0f}", value >= limit)


def statement_ns(statement: str, names: dict[str, Any], number: int) -> float:
    """One run of `number` times `statement`: nanoseconds each."""
    return timeit.Timer(statement, globals=names).timeit(number) / number * 1e9


def in_turns(
    subjects: dict[str, Callable[[], float]],
    repeats: int = REPEATS,
    between: Callable[[], object] | None = None,
) -> dict[str, float]:
    """The best of `repeats` rounds of each subject, taken in turns."""
    best = dict.fromkeys(subjects, float("inf"))
    for _ in range(repeats):
        for name, take in subjects.items():
            best[name] = min(best[name], take())
            if between:
                between()
    return best


@contextlib.contextmanager
def daemon(*options: str, cpu: int | None = None) -> Iterator[str]:
    """A daemon in a directory of its own, which UTRACEFS_DIR names; pinned to `cpu` when given."""
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as directory:
        ready, ready_w = os.pipe()
        pin = [] if cpu is None else ["taskset", "-c", str(cpu)]
        process = subprocess.Popen(
            [
                *pin,
                sys.executable,
                "-m",
                "utracefsd",
                "--dir",
                directory,
                "--ready-fd",
                str(ready_w),
                *options,
            ],
            pass_fds=[ready_w],
            stderr=subprocess.DEVNULL,
        )
        os.close(ready_w)
        before = os.environ.get("UTRACEFS_DIR")
        os.environ["UTRACEFS_DIR"] = directory
        os.environ["UTRACEFS_BENCH_DAEMON"] = str(process.pid)
        try:
            if not os.read(ready, 16).startswith(b"READY"):
                raise SystemExit("bench: the daemon did not start")
            yield directory
        finally:
            os.close(ready)
            os.environ.pop("UTRACEFS_DIR")
            if before is not None:
                os.environ["UTRACEFS_DIR"] = before
            process.send_signal(signal.SIGINT)  # after Ctrl-C no state is kept
            process.wait(20)


def save(rows: list[Row], path: str) -> None:
    with open(path, "w") as f:
        json.dump([attrs.asdict(r) | {"ratio": r.ratio} for r in rows], f, indent=1)
