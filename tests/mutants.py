"""How many changes of the daemon's Python does no test notice? A sample of the mutants of cosmic-ray: each
runs against the simulation and, if that passes, against the unit tests of the module's folder.

    python3 -m venv build/cosmic-ray && build/cosmic-ray/bin/pip install cosmic-ray
    unshare -mpf --mount-proc --kill-child sh -c 'mount -t tmpfs none /dev/shm && mount -t tmpfs none /tmp &&
        exec nice -n 19 build/cosmic-ray/bin/python tests/mutants.py build/mutants.jsonl'

A mutant may hang, fill /dev/shm or leave processes: hence the namespaces, and limits of time. It runs in a
copy of the tree. The file gets a line for each mutant; the same command continues where it was stopped, and
prints the table. Left out are annotations, of which cosmic-ray changes each `|`, and tests of compiled code.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).parents[1]
PARTS = ("state", "intake/rings.py", "connections", "events", "consumers/ftrace")
CPU_S, WALL_S = 90, 600
SIMULATION = """
from tests.simulation.found import FOUND
from tests.simulation.simulate import STEPS, play
from tests.simulation.mixture import steps_of
runs = (*(steps for _, steps in FOUND), *(steps_of(seed, STEPS) for seed in range(1, 7)))
raise SystemExit(any(play(steps).failure for steps in runs))
"""
Mutant = tuple[str, str, int, int]
"""Path of the module below daemon/utracefsd, operator, which of its places, line."""


def mutants(path: str) -> Iterator[Mutant]:
    source = (ROOT / "daemon/utracefsd" / path).read_text()
    annotations = [
        range(one.lineno, (one.end_lineno or one.lineno) + 1)
        for node in ast.walk(ast.parse(source))
        for one in (getattr(node, "annotation", None), getattr(node, "returns", None))
        if one is not None
    ]
    tree = get_ast(source)
    for name in sorted(operator_names()):
        if get_operator(name).arguments():  # those need names of variables
            continue
        operator = get_operator(name)()
        places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
        for number, ((line, _), _) in enumerate(places):
            if "BitOr" not in name or not any(line in lines for lines in annotations):
                yield path, name, number, line


def sample(part: str, number: int) -> list[Mutant]:
    place = ROOT / "daemon/utracefsd" / part
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    every = [one for file in files for one in mutants(str(file.relative_to(ROOT / "daemon/utracefsd")))]
    return random.Random(part).sample(every, number)


def passes(tree: Path, *words: str) -> bool:
    """Whether Python ends with 0 in the time."""
    path = ":".join(str(tree / name) for name in ("protocol", "client", "daemon"))
    env = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        [str(ROOT / ".venv/bin/python"), *words],
        cwd=tree,
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S)),  # noqa: PLW1509
    )
    try:
        return process.wait(WALL_S) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def outcome(tree: Path, folder: Path) -> str:
    if not passes(tree, "-c", SIMULATION):
        return "simulation"
    return "survives" if passes_unit_tests(tree, folder) else "unit tests"


def passes_unit_tests(tree: Path, folder: Path) -> bool:
    compiled = [
        f"--ignore-glob=*/test_{name}*" for name in ("data_ring", "journal", "ring_buffer", "skipping")
    ]
    return passes(tree, "-m", "pytest", "-xq", "-p", "no:cacheprovider", *compiled, f"tests/daemon/{folder}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--each", type=int, default=60, help="mutants of each part")
    parser.add_argument("--check", action="store_true", help="the unchanged sources pass in the time")
    chosen = parser.parse_args()
    known = (
        [json.loads(line) for line in chosen.file.read_text().splitlines()] if chosen.file.exists() else []
    )
    done = {(one["path"], one["operator"], one["number"]) for one in known}
    tree = Path("/tmp/mutants")
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "build", "build-*"), dirs_exist_ok=True)
    samples = [sample(part, chosen.each) for part in PARTS]
    if chosen.check:
        folders = sorted({Path(one[0]).parent for one in chain(*samples)})
        failing = [folder for folder in folders if not passes_unit_tests(tree, folder)]
        assert passes(tree, "-c", SIMULATION) and not failing, f"unchanged sources fail: {failing}"
    for path, name, number, line in (
        one for ones in zip_longest(*samples) for one in ones if one is not None
    ):
        if (path, name, number) in done:
            continue
        file = tree / "daemon/utracefsd" / path
        source = file.read_text()
        changed = mutate_code(source, get_operator(name)(), number)
        file.write_text(changed)
        found = {
            "path": path,
            "operator": name,
            "number": number,
            "line": line,
            "outcome": outcome(tree, Path(path).parent),
        }
        file.write_text(source)
        with chosen.file.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        known.append(found)
    for part in PARTS:
        counts = Counter(one["outcome"] for one in known if one["path"].startswith(part))
        numbers = [counts.total(), *(counts[name] for name in ("simulation", "unit tests", "survives"))]
        print(f"| `{part}` | {' | '.join(map(str, numbers))} |")


if __name__ == "__main__":
    main()
