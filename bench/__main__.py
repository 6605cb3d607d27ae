"""Print one row a figure: `python -m bench [NAME of NAMES below]... [--json FILE]`."""

from __future__ import annotations

import importlib
import platform
import sys

from bench import measure

NAMES = [
    "loops",
    "application",
    "attack",
    "bpf",
    "c_client",
    "core",
    "event_header",
    "export",
    "first_event",
    "fleet",
    "fork",
    "forward_parquet",
    "forward_nats",
    "instances",
    "intake",
    "perf",
    "report",
    "rings",
    "spans",
    "stream",
    "sustained",
    "told",
    "tree",
]


def main(args: list[str]) -> int:
    path = args.pop(args.index("--json") + 1) if "--json" in args else None
    names = [a for a in args if a != "--json"] or NAMES
    rows: list[measure.Row] = []
    print(f"{platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}")
    for name in names:
        with measure.left_out(f"the rest of {name}"):
            for row in importlib.import_module(f"bench.{name}").rows():
                print(row.text(), flush=True)
                rows.append(row)
    if path:
        measure.save(rows, path)
    missed = [r for r in rows if not r.held]
    print(f"{len(rows)} figures, {len(missed)} missed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
