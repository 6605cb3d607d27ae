"""C clients in the world: a run passes and repeats itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.client_faults import FAULTS, find
from tests.simulation.clients import WEIGHTS, ClientWorld, steps_of, world
from tests.simulation.found import FOUND_BY_CLIENTS
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


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_passes_and_repeats_itself(seed: int) -> None:
    steps = steps_of(seed, STEPS)
    first, second = play(steps, world), play(steps, world)
    assert first.failure == "", first.trace
    assert first.journal == second.journal


@pytest.mark.parametrize("name", FOUND_BY_CLIENTS)
def test_found(name: str) -> None:
    outcome = play(FOUND_BY_CLIENTS[name], world)
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
    assert find(name, 300)[0] is not None  # on a slow machine


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_coverage() -> None:
    reached: Counter[str] = Counter()
    for seed in range(1, 41):
        outcome = play(steps_of(seed, STEPS), world)
        assert outcome.failure == "", f"seed {seed}: {outcome.trace}"
        reached += outcome.reached
    assert set(reached) >= RARE, RARE - set(reached)
