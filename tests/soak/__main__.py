"""`python -m tests.soak`: attack the daemon for a time, and report actions and findings.

    data      hostile clients of the data socket
    tracefs   hostile clients of the tracefs socket
    memory    hostile memory: data rings, doorbells, enable words, perf rings
    chaos     daemons and producers killed, stopped, restarted, without space and without descriptors
    record    recorders, programs and daemons killed while `record` writes
    waits     emits that are measured, while the daemon is stopped, slow, killed and ended

The time is divided evenly. The same seed repeats a run; a finding prints it. Exit status: 0 nothing found, 1
something, 2 the run itself failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from tests.soak.attacks import memory, sockets
from tests.soak.attacks.attack import PARTS, Setting, attack
from tests.soak.chaos import chaos
from tests.soak.house import private_shared_memory
from tests.soak.recorders import record
from tests.soak.report import JUDGES, Found, Report
from tests.soak.waits import waits

_SHARED_MEMORY_MIB = 512
_PARTS = (*PARTS, "chaos", "record", "waits")


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text.split(",") if name)


def _sanitized(folder: str) -> dict[str, str]:
    """Libraries that a daemon built with sanitizers needs (see `make sanitize`)."""
    libraries = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], stdout=subprocess.PIPE, check=True, text=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {
        "PYTHONPATH": os.path.abspath(folder),
        "PYTHONMALLOC": "malloc",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:quarantine_size_mb=16",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="soak", description="Attack the daemon by machine.")
    parser.add_argument("--seconds", type=float, default=600.0, help="in all (default %(default)s)")
    parser.add_argument("--seed", default="", help="what is done follows from it; default: a new one")
    parser.add_argument("--only", type=_names, default=frozenset(), help=f"of {', '.join(_PARTS)}")
    parser.add_argument(
        "--without",
        type=_names,
        default=frozenset(),
        help=f"steps to leave out: {', '.join(dict.fromkeys([*sockets.STEPS, *memory.STEPS]))}",
    )
    parser.add_argument("--ignore", type=_names, default=frozenset(), help=f"judges: {', '.join(JUDGES)}")
    parser.add_argument("--attacker", type=int, help="only this one")
    parser.add_argument("--round", type=int, help="only this round; of chaos and waits, too")
    parser.add_argument(
        "--sanitized", metavar="FOLDER", help="run the daemon of `make sanitize` (build/sanitize)"
    )
    asked = parser.parse_args(arguments)
    parts = [part for part in _PARTS if not asked.only or part in asked.only]
    unknown = (asked.only - {*_PARTS}) | (asked.ignore - set(JUDGES))
    unknown |= asked.without - {*sockets.STEPS, *memory.STEPS}
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    seed = asked.seed or os.urandom(4).hex()
    report = Report(seed, asked.ignore, _sanitized(asked.sanitized) if asked.sanitized else {})
    setting = Setting(seed, asked.seconds / len(parts), asked.without, asked.attacker, asked.round)
    print(f"soak: {asked.seconds:.0f} s, parts {', '.join(parts)}, seed {seed}", flush=True)
    if os.getuid():
        print("not root: all attackers are the daemon's own user, limits for users are not tested")
    private = private_shared_memory(_SHARED_MEMORY_MIB)
    if not private:
        print("no mount namespace: /dev/shm is the machine's and is never filled")
        report.counts["runs without a /dev/shm of their own"] += 1
    faulthandler.enable()
    # With `&` in a script it is ignored; then recorders, which an interrupt ends, would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = False
    with tempfile.TemporaryDirectory(prefix="utracefs-soak-") as folder:
        os.chmod(folder, 0o755)
        for part in parts:
            try:
                if part == "chaos":
                    chaos(setting, report, Path(folder), may_fill=private)
                elif part == "record":
                    record(setting, report, Path(folder))
                elif part == "waits":
                    waits(setting, report, Path(folder))
                else:
                    attack(part, setting, report, Path(folder))
            except Found:
                pass
            except Exception:  # noqa: BLE001
                traceback.print_exc()
                failed = True
            print(f"part {part} done, {len(report.findings)} findings so far", flush=True)
    print("\n".join(report.lines()))
    return 2 if failed else 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
