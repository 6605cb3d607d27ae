"""C clients in the world: a run passes and repeats itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.client_faults import FAULTS, find
from tests.simulation.clients import WEIGHTS, ClientWorld, steps_of, world
from tests.simulation.mixture import Step
from tests.simulation.simulate import STEPS, play

SEEDS = range(1, 4)

RARE = {
    *WEIGHTS,
    "a child ends its parent's record",
    "a full queue",
    "a full ring",
    "a ring is lost",
    "fork in a wait",
    "fork without handlers",
    "log ring-lost",
    "log user-refused",
}
"""Steps and branches that forty seeds must reach."""

FOUND: dict[str, list[Step]] = {
    "a child of a handler whose thread waits gets no thread, and never hears of the next daemon": [
        ("program", 0),
        ("declare", 0, 0),
        ("settled", 1),
        ("emit", 0, 0, 0, 0),
        ("flush", 0, 2),
        ("fork", 0, 1),
    ],
    "the end of a connection gives up records whose registration is on the next one": [
        ("program", 0),
        ("declare", 0, 0),
        ("step", 0),
        ("cover", 0, 0),
        ("declare", 0, 2),
        ("emit", 0, 1, 0, 0),
    ],
    "a flush behind a record that was not committed at the last one does not wait for it": [
        ("program", 0),
        ("declare", 0, 0),
        ("turn_off", 0, 0),
        ("program", 0),
        ("declare", 1, 0),
        ("hold", 1, 0),
        ("flush", 1, 2),
    ],
    "a process ends while a thread of it writes a record: it waits for that by turning in a circle": [
        ("program", 3),
        ("declare", 0, 0),
        ("step", 0),
        ("write",),
        ("hold", 0, 0),
        ("exit", 0),
        ("kill", 1),
    ],
}
"""Runs that failed, with the reason of that time."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_passes_and_repeats_itself(seed: int) -> None:
    steps = steps_of(seed, STEPS)
    first, second = play(steps, world), play(steps, world)
    assert first.failure == "", first.trace
    assert first.journal == second.journal


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    outcome = play(FOUND[name], world)
    assert outcome.failure == "", outcome.trace


def test_the_next_daemon_gets_what_the_killed_one_did_not_take() -> None:
    steps: list[Step] = [
        ("program", 0),
        ("declare", 0, 0),
        ("emit", 0, 0, 3, 0),
        ("settled", 0),
        ("emit", 0, 0, 3, 0),
        ("kill", 1),
        ("look",),
    ]
    outcome = play(steps, world)
    assert outcome.failure == "", outcome.trace
    assert "looked: [1, 2, 3, 4, 5, 6, 7, 8]" in outcome.journal


def test_every_step_has_a_weight() -> None:
    assert all(hasattr(ClientWorld, "_" + name) for name in WEIGHTS)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(name: str) -> None:
    outcome, _seed = find(name, 300)  # on a slow machine; here it takes half a minute at most
    assert outcome is not None


@pytest.mark.long
@pytest.mark.timeout(600)
def test_coverage() -> None:
    reached: Counter[str] = Counter()
    for seed in range(1, 41):
        outcome = play(steps_of(seed, STEPS), world)
        assert outcome.failure == "", f"seed {seed}: {outcome.trace}"
        reached += outcome.reached
    assert set(reached) >= RARE, RARE - set(reached)
