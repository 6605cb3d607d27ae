"""The list of steps that a seed means."""

from __future__ import annotations

import random
from typing import Any

Step = tuple[Any, ...]

_BY_WEIGHT = {
    24: "emit",
    12: "write",
    10: "register enable",
    8: "early back disk strike word",
    6: "program look attach stop filter consume cascade",
    5: "token off end switch set glut",
    4: "proxy lag ring time hist flood",
    3: "tally pipe torn corrupt traceoff size detach derive",
    2: "kill mkdir snapshot tgid stall storm vanish restart manager renew scarce half leave dissolve sever",
    1: "snapper rmdir clear nonsense delete grep hurry fall starve crowd compose",
}
WEIGHTS = {name: weight for weight, names in _BY_WEIGHT.items() for name in names.split()}
"""How often each step comes."""
NEEDED = {"program", "register", "enable", "emit", "back", "look"}
MIXTURE = {False: (0, 1, 1, 3), True: (1, 1, 2)}
"""Factors of the weights of other steps, and of those without which little happens."""


def steps_of(seed: int, number: int) -> list[Step]:
    """The list that a seed means. Each seed has its own mixture of steps: without some of them, and with much
    of others, it comes to places where all of them together do not."""
    choose = random.Random(seed)
    weights = [weight * choose.choice(MIXTURE[name in NEEDED]) for name, weight in WEIGHTS.items()]
    names = choose.choices(list(WEIGHTS), weights, k=number)
    return [(name, *(choose.randrange(1 << 16) for _ in range(4))) for name in names]
