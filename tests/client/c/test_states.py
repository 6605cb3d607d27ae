"""The table of states.c, and the picture of it in states.h."""

from __future__ import annotations

import re

from tests.client.c.building import SOURCE

HEADER = (SOURCE / "src" / "connection" / "states.h").read_text()
ROWS = [
    tuple(row)
    for row in re.findall(
        r"\{UT_(\w+), UT_(\w+), UT_(\w+)\},", (SOURCE / "src" / "connection" / "states.c").read_text()
    )
]


def members(enum: str) -> list[str]:
    found = re.search(rf"enum {enum} \{{(.*?)\}};", HEADER, re.DOTALL)
    assert found
    return re.findall(r"^\tUT_(\w+)", found[1], re.MULTILINE)


def test_the_picture_is_drawn_from_the_table() -> None:
    lines = []
    previous = ""
    for state, occurred, leads_to in ROWS:
        lines.append(f" *     {state if state != previous else '':<19} {occurred:<16} -> {leads_to}\n")
        previous = state
    assert "".join(lines) in HEADER


def test_every_state_has_a_way_up_and_every_input_is_used() -> None:
    states, inputs = members("ut_state"), members("ut_input")
    assert len({row[:2] for row in ROWS}) == len(ROWS)
    assert {state for row in ROWS for state in (row[0], row[2])} == set(states) - {"CLOSED"}
    assert {row[1] for row in ROWS} == set(inputs) - {"AGAIN", "LOST", "FORK", "CLOSE"}
    up = {"UP", "SENDS"}  # of a daemon that takes the ring, and of one that does not
    for _ in states:
        up |= {state for state, _, leads_to in ROWS if leads_to in up}
    assert up == set(states) - {"CLOSED"}
