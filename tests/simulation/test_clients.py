"""C clients in the world: a run passes and repeats itself."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.client_faults import FAULTS, SLOW, find
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
    "records that a closed session left in its ring are taken in after they were missed": [
        ("program", 36602, 40689, 5770, 56663),
        ("program", 10970, 46454, 35865, 8808),
        ("fork", 56335, 11419, 56421, 26723),
        ("fork", 48643, 48359, 58930, 36168),
        ("declare", 59363, 57925, 31912, 6185),
        ("manager", 24923, 45219, 54881, 60435),
        ("fall_dead", 16030, 8932, 36706, 37831),
        ("kill", 36594, 58402, 50549, 42752),
        ("begin", 18511, 64429, 34119, 60993),
        ("fall_dead", 36927, 24459, 5893, 53413),
        ("declare", 38663, 58200, 47346, 40691),
        ("settled", 42518, 13023, 18922, 42783),
        ("declare", 42425, 7054, 38065, 34216),
        ("program", 19664, 48771, 22730, 41645),
        ("emit", 3157, 3404, 57051, 938),
        ("emit", 61480, 17280, 2362, 6029),
        ("kill", 16169, 35613, 9874, 29896),
        ("close_all", 37516, 46819, 59646, 62334),
        ("look", 28932, 44229, 21609, 3255),
    ],
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
    "records of an event that is declared after the ring was closed go into that": [
        ("program", 0),
        ("declare", 0, 0),
        ("settled", 2),
        ("no_room", 2),
        ("close_all", 0),
        ("declare", 0, 1),
        ("emit", 0, 1, 3, 0),
        ("look", 0),
    ],
    "records of an event that is declared after the connection was lost go into a ring that is being left": [
        ("program", 0),
        ("declare", 0, 0),
        ("settled", 2),
        ("no_room", 2),
        ("cover", 0, 0),
        ("declare", 0, 1),
        ("emit", 0, 1, 5, 0),
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
    "a record of an event that is off is in no number if its connection ends before the daemon says so": [
        ("program", 51440, 5324, 52033, 8227),
        ("declare", 1770, 18515, 16553, 32201),
        ("fork", 38649, 41715, 36468, 29003),
        ("declare", 36664, 42384, 39942, 4849),
        ("emit", 57927, 14644, 19927, 18462),
        ("fork", 20913, 917, 60384, 50833),
        ("program", 8938, 29228, 8577, 4325),
        ("turn_off", 56328, 33832, 46862, 49727),
        ("fall_dead", 37462, 47763, 21264, 58270),
        ("exit", 46329, 17609, 25606, 1305),
        ("declare", 4590, 40156, 43242, 37432),
        ("cover", 54542, 11597, 61009, 35417),
        ("emit", 4356, 2430, 944, 4365),
    ],
    "records behind an unfinished one of a killed program wait while a child has its connection": [
        ("program", 13081, 23482, 26484, 1096),
        ("fork", 48530, 14896, 37613, 43572),
        ("program", 46034, 26988, 31353, 37866),
        ("program", 32556, 32810, 28560, 52547),
        ("declare", 45188, 46998, 397, 5025),
        ("fall_dead", 31166, 53506, 57120, 39249),
        ("fall_dead", 32104, 26469, 16421, 25115),
        ("hold", 12830, 44341, 64611, 57458),
        ("emit", 42862, 62600, 15980, 47632),
        ("fork", 48142, 62668, 47474, 7955),
        ("cover", 42800, 27743, 42443, 58231),
        ("fall_dead", 4482, 29160, 14529, 47129),
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
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in SLOW])
def test_a_fault_is_found(name: str) -> None:
    assert find(name, 300)[0] is not None  # on a slow machine


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SLOW)
def test_a_slow_fault_is_found(name: str) -> None:
    assert find(name, 900)[0] is not None


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_coverage() -> None:
    reached: Counter[str] = Counter()
    for seed in range(1, 41):
        outcome = play(steps_of(seed, STEPS), world)
        assert outcome.failure == "", f"seed {seed}: {outcome.trace}"
        reached += outcome.reached
    assert set(reached) >= RARE, RARE - set(reached)
