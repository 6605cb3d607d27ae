"""The soak itself: a seed always gives the same scripts, judges find planted faults, and a moment of each
part runs."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.soak.attacks import sockets
from tests.soak.attacks.descriptors import KINDS, Descriptors
from tests.soak.house import ROOT, House
from tests.soak.judging import (
    Line,
    Told,
    judge_losses,
    judge_order,
    judge_records,
    late_events,
    lines_of,
    reported_lost,
    stats_of,
)
from tests.soak.report import Found, Report
from tests.soak.waiting import (
    CHILDREN,
    DOUBTFUL,
    FIRST_OF_CHILD,
    LOST,
    MOST_WORST,
    OF_CHILDREN,
    OWN,
    STEADY,
    TAKEN,
    Results,
)
from tests.soak.waits import WAYS, Program, is_within_bound

TRACE = b"""\
# tracer: nop
 python3-12 [000] ..... 5.000001: p1: who=0x0 (0) n=0x0 (0)
 a p1: x-13 [001] ..... 5.000003: p1: who=0x1 (1) n=0x7 (7)
 python3-12 [000] ..... 5.000004: soak1: s="p1: who=0x0 (0) n=0x9 (9)"
 python3-12 [000] ..... 5.000005: p1: who=0x0 (0) n=0x
"""


def told(**changes: Any) -> Told:
    return attrs.evolve(Told("p1", {0: 3}, exact=True, emitted=3), **changes)


# A seed


@pytest.mark.parametrize("port", ["data", "tracefs"])
def test_a_seed_gives_the_same_script_in_every_process(port: str) -> None:
    program = (
        "import os, random, sys; from tests.soak.attacks import memory, sockets; os.getpid = lambda: 7\n"
        f"for n in range(20): print(sockets.script(random.Random(f's/{{n}}'), {port!r}))\n"
        "for n in range(20): print(memory.script(random.Random(f's/{n}')))\n"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(texts) == 1


def test_another_seed_does_something_else() -> None:
    scripts = [repr(sockets.script(random.Random(f"{n}"), "data")) for n in range(50)]
    assert len(set(scripts)) == 50


def steps_of(without: frozenset[str]) -> Iterator[sockets.Step]:
    for n in range(300):
        yield from sockets.script(random.Random(f"{n}"), "data", without)


def test_steps_can_be_left_out() -> None:
    every = list(steps_of(frozenset()))
    assert {"send", "crowd", "read", "shut", "leave", "pause"} <= {step[0] for step in every}
    assert any(isinstance(step[-1], int) for step in every if step[0] == "send"), "floods"
    few = list(steps_of(frozenset({"flood", "crowd", "halves", "descriptors"})))
    assert "crowd" not in {step[0] for step in few}
    assert {step[-1] for step in few if step[0] == "send"} == {"whole", "bytes"}
    assert max(len(step[2].fds) for step in few if step[0] == "send") <= 2


def test_all_messages_together_reach_every_kind_of_descriptor() -> None:
    sent = {kind for step in steps_of(frozenset()) if step[0] == "send" for kind in step[2].fds}
    assert sent >= set(KINDS)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"lingering"}))
def test_descriptors_of_every_kind(kind: str, tmp_path: Path) -> None:
    made = Descriptors(str(tmp_path), None)
    try:
        os.fstat(made.make(kind))
    finally:
        made.close()


# Judges


def test_what_a_trace_calls_lost() -> None:
    assert reported_lost(b"# tracer\nCPU:0 [LOST 12 EVENTS]\n p1-1 ...\nCPU:13 [LOST 1 EVENTS]\n") == 13
    assert reported_lost(TRACE) == 0


@pytest.mark.parametrize(
    ("others", "shown", "right"),
    [
        ([], 2, False),
        ([], 3, True),
        ([], 4, False),
        ([told(exact=False)], 2, False),
        ([told(exact=False)], 4, True),
        ([told(lost=5, may_miss=True)], 4, True),
    ],
)
def test_losses_in_a_trace(others: list[Told], shown: int, right: bool) -> None:
    assert bool(judge_losses([told(lost=3), *others], shown)) != right


def test_lines_of_a_trace() -> None:
    lines, unreadable = lines_of(TRACE, ["p1"])
    assert lines == [Line("p1", 0, 0, 0, 5_000_001), Line("p1", 1, 7, 1, 5_000_003)]
    assert len(unreadable) == 1, "the one that is cut off; not that of another event that pretends"


def test_stats() -> None:
    text = b"emitted: 5\nftrace: recorded 1 filtered 2 lost 2\nperf:5: recorded 0 filtered 0 lost 3\n"
    assert stats_of(text) == (5, {"ftrace": (1, 2, 2), "perf:5": (0, 0, 3)})
    with pytest.raises(ValueError):
        stats_of(b"")


@pytest.mark.parametrize(
    ("came", "what", "fault"),
    [
        ([0, 1, 2], told(), ""),
        ([0, 2], told(lost=1), ""),
        ([0, 2], told(refused=1), ""),
        ([0, 2], told(may_miss=True), ""),
        ([0, 2], told(), "1 are missing. thread 0: 1 gaps: 1..1"),
        ([0, 1, 2], told(lost=1), "-1 are missing"),
        ([0, 1, 2], told(lost=1, may_miss=True), "-1 are missing"),
        ([0, 1, 1, 2], told(), "1 came twice"),
        ([0, 1, 1], told(may_miss=True), "1 came twice"),
        ([0, 1, 3], told(), "1 were never emitted"),
        ([0, 1, 2, 3], told(exact=False), ""),
        ([0, 1, 2, 3, 4], told(exact=False), "1 were never emitted"),
        ([0, 2], told(exact=False), "1 of 3 are missing, from 1 to 1"),
        ([0], told(exact=False, may_miss=True), ""),
    ],
)
def test_records(came: list[int], what: Told, fault: str) -> None:
    found = "; ".join(judge_records({0: came}, what))
    assert (fault in found) if fault else not found


def test_a_thread_without_a_process() -> None:
    assert judge_records({0: [0, 1], 7: [0]}, told())


def line(n: int, cpu: int, time_us: int) -> Line:
    return Line("p1", 0, n, cpu, time_us)


def test_order() -> None:
    assert not judge_order([line(0, 0, 5), line(1, 1, 4), line(2, 1, 4), line(5, 0, 9)])
    assert len(judge_order([line(0, 0, 5), line(1, 0, 4)])) == 1
    assert len(judge_order([line(1, 0, 5), line(0, 1, 5)])) == 2
    assert len(judge_order([line(1, 0, 5), line(1, 1, 5)])) == 2


def test_order_of_what_came_late() -> None:
    """As many records of that cpu as the daemon reports; time never goes back, and no record comes twice."""
    moved = [line(1, 1, 5), line(0, 0, 6), line(2, 1, 7)]
    assert len(judge_order(moved)) == 2
    assert not judge_order(moved, Counter({0: 1}))
    assert len(judge_order(moved, Counter({1: 1}))) == 2, "another cpu"
    assert len(judge_order([*moved, line(1, 0, 8)], Counter({0: 1}))) == 2, "one more than told"
    assert not judge_order([*moved, line(1, 0, 8)], Counter({0: 2}))
    assert len(judge_order([line(0, 0, 5), line(1, 0, 4)], Counter({0: 9}))) == 1
    assert len(judge_order([line(1, 0, 5), line(1, 1, 5)], Counter({0: 9, 1: 9}))) == 2
    assert late_events(b"entries: 5\nlate events: 2\nlate by at most:     0.001500\n") == 2
    assert late_events(b"entries: 5\n") == 0


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program(WAYS[0], "p0")
    yield made
    made.close()


def test_an_emit_that_waits(program: Program) -> None:
    results = Results(program.fd)
    results.note(STEADY, 1, 7, 5_000_000, 4_900_000, 0)  # it had no cpu
    results.note(STEADY, 1, 8, 50_000, 40_000, 1)
    assert not program.long_waits()
    results.note(FIRST_OF_CHILD, 1001, 0, 5_000_000, 2_000_000, 1)
    (emit,) = program.long_waits()
    assert (emit.kind, emit.who, emit.n, emit.blocked_ns) == (FIRST_OF_CHILD, 1001, 0, 2_000_000)
    assert is_within_bound(emit, 1_000_000) and not is_within_bound(emit, 999_999)
    for n in range(MOST_WORST):
        results.note(STEADY, 1, n, 5_000_000, 2_000_000, 1)
    assert len(program.long_waits()) == MOST_WORST


@pytest.mark.parametrize(
    ("recorded", "may_miss", "is_right"),
    [
        (7, False, True),
        (8, False, True),
        (9, False, False),
        (6, False, False),
        (6, True, True),
        (9, True, False),
    ],
)
@pytest.mark.parametrize("at", [OWN, OF_CHILDREN])
def test_the_sum_of_a_program(
    program: Program, at: int, recorded: int, may_miss: bool, is_right: bool
) -> None:
    for place, number in ((TAKEN, 10), (LOST, 3), (DOUBTFUL, 1)):
        program.numbers[at + place] = number
    assert (program.missing(at, recorded, may_miss) == "") == is_right


def test_numbers_of_a_programs_children(program: Program) -> None:
    program.numbers[CHILDREN] = 2
    assert set(program.told().next_numbers) == {0, 1, 1000, 1001}


def test_findings_of_ignored_judges_are_counted_only() -> None:
    report = Report("s", frozenset({"order"}))
    report.tell("order", "part", "a\nb")
    assert not report.findings
    with pytest.raises(Found):
        report.stop("order", "part", "a")
    report.check("idle", "part", True, "fine")
    report.check("idle", "part", False, "busy")
    assert [finding.text for finding in report.findings] == ["busy"]
    assert "FOUND by the judge idle" in "\n".join(report.lines())


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(tmp_path / "house", Report("s"), "part")
    made.start()
    yield made
    made.clear()


def judges(house: House) -> list[str]:
    return [finding.judge for finding in house.report.findings]


def test_nothing_is_found_where_nothing_is(house: House) -> None:
    house.probe()
    house.judge_rest()
    house.end()
    assert not judges(house)


def test_a_daemon_that_is_gone(house: House) -> None:
    house.signal(signal.SIGKILL)
    assert house.process is not None
    house.process.wait()
    with pytest.raises(Found):
        house.probe()
    assert judges(house) == ["alive"]


def test_the_log_and_leftovers(house: House) -> None:
    with open(house.log, "a") as log:
        log.write("Traceback (most recent call last):\n")
    (house.folder / "tmp" / "something").write_text("")
    house.end()
    assert judges(house) == ["leftovers", "log"]


# The command line


@pytest.mark.parametrize("option", ["--only=nothing", "--without=everything", "--ignore=all"])
def test_unknown_names(option: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", option], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == 2
    assert "unknown: " in done.stderr
