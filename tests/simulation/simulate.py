"""Runs seeds, shrinks what fails, and prints it as a test: `make simulate SECONDS=60 SEED=1`.

python -m tests.simulation.simulate [--seed N] [--seconds S] [--steps N] [--go-on]

An input is a request, a record, a connection, or a move of the clock; reads of looks are none.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import attrs

from tests.simulation import clients
from tests.simulation.mixture import Step, steps_of
from tests.simulation.world import World, world

Make = Callable[[], AbstractContextManager[World]]

STEPS = 400
"""Steps of a seed: long enough for some ten restarts."""


@attrs.frozen
class Outcome:
    """The end of one run."""

    journal: str
    reached: Counter[str]
    failure: str = ""
    """Its last line; empty: it passed."""
    trace: str = ""

    @property
    def kind(self) -> str:
        """The same for the same failure, with whatever numbers."""
        return re.sub(r"[\d\[{(].*", "", self.failure)


def play(steps: Sequence[Step], make: Make = world) -> Outcome:
    """One run in a world of its own."""
    with make() as made:
        failure = trace = ""
        try:
            made.run(steps)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
            failure = f"{type(error).__name__}: {error}"
            trace = traceback.format_exc(limit=-6)
            traceback.clear_frames(error.__traceback__)
        if failure:  # its frames had objects of a dead daemon
            made.collect()
        journal = "\n".join(made.journal).replace(str(made.folder), "FOLDER")  # whose name is random
        return Outcome(journal, made.reached, failure, trace)


def shrink(steps: Sequence[Step], failure: Outcome, make: Make = world) -> list[Step]:
    """The shortest list found that fails in the same way: parts are left out, half of it first, then ever
    smaller ones."""
    left = list(steps)
    size = len(left) // 2
    while size:
        at = len(left) - size
        shorter = False
        while at > -size:
            tried = left[: max(at, 0)] + left[at + size :]
            if play(tried, make).kind == failure.kind:
                left, shorter = tried, True
            at -= size
        if not shorter or size > len(left):
            size //= 2
    return left


def as_test(seed: int, steps: Sequence[Step], failure: Outcome) -> str:
    """To paste into found.py."""
    lines = "".join(f"        {step!r},\n" for step in steps)
    return f'# seed {seed}: {failure.failure:.200}\nFOUND.append(\n    ("", [\n{lines}    ])\n)\n'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--only", action="store_true", help="this seed alone")
    parser.add_argument("--journal", action="store_true", help="print it")
    parser.add_argument("--clients", action="store_true", help="programs are C clients")
    parser.add_argument("--go-on", action="store_true", help="report failures without shrinking them")
    chosen = parser.parse_args()
    make, make_steps = (clients.world, clients.steps_of) if chosen.clients else (world, steps_of)
    began, seed, done, failures = time.monotonic(), chosen.seed, 0, 0
    reached: Counter[str] = Counter()
    until = began + chosen.seconds

    def end(*_: object) -> None:
        """After this seed; at once when it comes again."""
        nonlocal until
        until = 0
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, end)
    while True:
        steps = make_steps(seed, chosen.steps)
        outcome = play(steps, make)
        done += sum(outcome.reached[name] for name in {step[0] for step in steps})
        reached += outcome.reached
        if outcome.failure:
            print(f"seed {seed}: {outcome.failure}\n{outcome.trace}", flush=True)
            failures += 1
        if outcome.failure and not chosen.go_on:
            shortest = shrink(steps, outcome, make)
            outcome = play(shortest, make)
        if chosen.journal:
            print(outcome.journal)
        if outcome.failure and not chosen.go_on:
            print(as_test(seed, shortest, outcome))
            return 1
        if chosen.only or time.monotonic() > until:
            break
        seed += 1
    for name, number in sorted(reached.items()):
        print(f"{number:8} {name}")
    took = time.monotonic() - began
    inputs = reached["inputs"]
    print(f"seeds {chosen.seed} to {seed}, {done / took:.0f} steps/s, {inputs / took:.0f} inputs/s")
    return int(failures > 0)


def named(faults: Iterable[str]) -> list[str]:
    """The faults that the command line names; all, if it names none."""
    there = list(faults)
    for word in sys.argv[1:]:
        if word not in there:
            sys.exit(f"{word}: no such fault; there are {', '.join(there)}")
    return sys.argv[1:] or there


if __name__ == "__main__":
    sys.exit(main())
