"""A program in C is interrupted at each instruction of its emits (client/c/tests/instructions.c), by handlers
that emit, fork and leave, by other threads that end the library, by SIGKILL. Its records arrive, or are in a
number."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

from tests.client.c.building import ROOT, SOURCE, build
from tests.client.c.test_emit import of_way
from tests.integration.conftest import DaemonProcess

PATHS = (
    "macro", "pieces", "binding", "spans", "flush", "again", "close", "first", "enabled", "child",
    "child-binding",
)  # fmt: skip
FRESH = ("first", "enabled")
CHILDREN = ("child", "child-binding")
UNKNOWN = (*FRESH, *CHILDREN)
"""Until the daemon has the ring of a new process, a kill loses what is in it."""

EVENTS = {
    "c_step": "s",
    "c_other": "o",
    "c_text": "t",
    "c_bound": "b",
    "c_span_begin": "B",
    "c_span_end": "E",
}
LINE = re.compile(
    r"-(\d+) +\[(\d+)\] .*: (c_\w+): (?:.*who=\w+ \((\d+)\) i=\w+ \((\d+)\)|.*error=(\d+):(\d+)$)",
    re.MULTILINE,
)

SECOND = 1_000_000
INJECTIONS = (
    "kill", "kill-others", "emit", "emit-there", "fork", "fork-late", "fork-end", "fork-exit",
    "vfork", "clone", "longjmp", "cancel", "exit", "exit-there",
    "close-there", "end-there", "detach-there",
)  # fmt: skip
ONLY_OF = {
    "kill-others": ("macro", "pieces", "binding", "spans"),
    "longjmp": ("macro", "pieces", "binding", "spans", "child"),
}
"""Threads may hold the library's lock elsewhere; a handler may not leave a wait (docs/c-client.md)."""
ONLY_WITH_A_RING = ("longjmp", "end-there")
"""Over the socket the rest is sent within half a second, and the daemon counts what is left."""

WAYS = [(path, "ring") for path in PATHS] + [("macro", "socket")]


@attrs.frozen
class Process:
    pid: int
    lost: int
    begun: list[str]


@attrs.frozen
class Played:
    """One process, interrupted in one place."""

    who: int
    offset: str
    time: int
    handled: int
    status: int
    flight: int
    processes: list[Process]

    @classmethod
    def of(cls, line: str) -> Played:
        first, *others = line.split("; ")
        who, offset, time, handled, status, flight = first.split()
        processes = [
            Process(int(pid), int(lost), begun) for pid, lost, *begun in (one.split() for one in others)
        ]
        return cls(int(who), offset, int(time), int(handled), int(status), int(flight), processes)


Arrived = dict[int, list[tuple[int, int, str]]]
"""(thread, cpu, record) by `who`, in the order of the trace."""


def arrived_in(daemon: DaemonProcess) -> Arrived:
    found: Arrived = {}
    with daemon.tree() as tree:
        text = tree.read_file("trace").decode()
    for thread, cpu, event, who, i, end_who, end_i in LINE.findall(text):
        record = int(thread), int(cpu), EVENTS[event] + (i or end_i)
        found.setdefault(int(who or end_who), []).append(record)
    assert sum(map(len, found.values())) == len(re.findall(r": c_\w+: ", text))
    return found


def has_no_connection(child: Process, came: list[str]) -> bool:
    """The daemon's queue was full, and the child counted all its records as lost."""
    return not came and child.lost >= len(child.begun) > 0


def await_records(daemon: DaemonProcess) -> None:
    """All processes have ended: the daemon has nothing of them any more."""
    deadline = time.monotonic() + 600
    none = (b"data rings: 0\n", b"connections to be accepted: 0\n", b"connections to the data socket: 0 of ")
    with daemon.tree() as tree:
        while not all(line in tree.read_file("daemon_stats") for line in none):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def judge_order(records: list[tuple[int, int, str]]) -> None:
    """Judges each cpu alone: if the daemon gets a ring late, another cpu's buffer may be ahead (`late
    events`)."""
    for context in (range(20), range(20, 30), range(90, 100)):
        order: dict[int, list[int]] = {}
        for _, cpu, record in records:
            if record[0] not in "BE" and int(record[1:]) in context:
                order.setdefault(cpu, []).append(int(record[1:]))
        assert all(numbers == sorted(numbers) for numbers in order.values())


def judge(
    path: str, way: str, injection: str, played: Played, arrived: Arrived, committed: bool | None
) -> None:
    """committed: whether the record in flight arrives after a kill in this place; None: unknown."""
    own, *children = played.processes
    lost = own.lost
    records = arrived.get(played.who, [])
    own_records = [record for record in records if not children or record[0] != children[0].pid]
    judge_order(own_records)
    came = [record for _, _, record in own_records]
    missing = Counter(own.begun) - Counter(came)
    assert not Counter(came) - Counter(own.begun), "a record that was not begun"
    if way == "socket" and path in FRESH and not came:
        missing.clear()  # the first answer took the daemon longer than an end waits for it, half a second
    if path in CHILDREN and has_no_connection(own, came):
        missing.clear()
        lost = 0
    in_flight = Counter(own.begun[played.flight - 1 : played.flight] if played.handled else [])
    if injection.startswith("kill") and played.handled:
        assert played.status == 9
        assert way == "socket" or path in UNKNOWN or missing <= in_flight
        return
    assert played.status == 0
    if not played.handled:
        assert not missing and lost == 0
        return
    if injection in ("longjmp", "exit", "exit-there", "close-there", "end-there", "detach-there"):
        assert missing <= in_flight
    elif injection == "vfork" and path in UNKNOWN:  # its parent has no connection yet, and it makes none
        assert missing.total() == own.lost and not {
            one for one in missing if int(one[1:]) not in range(20, 30)
        }
    else:
        assert not missing and lost == 0
    was_reserved = "s29" not in came or not in_flight.keys() - set(came[: came.index("s29")])
    for child in children:
        came = [record for thread, _, record in records if thread == child.pid]
        if has_no_connection(child, came):
            continue
        assert not Counter(child.begun) - Counter(came)
        again = Counter(came) - Counter(child.begun)
        assert again <= in_flight
        if injection not in ("fork", "fork-late"):
            assert not again and child.lost == 0
        elif not was_reserved or (committed is False and way == "ring" and path not in UNKNOWN):
            assert again.total() + child.lost == in_flight.total()
        else:
            assert again.total() + child.lost <= 1


def failures(path: str, injection: str, way: str, all_played: list[Played], arrived: Arrived) -> list[str]:
    failed = []
    committed = None
    for played in all_played:
        its = "kill" if injection in ("fork", "fork-late") and played.who < SECOND else injection
        try:
            judge(path, way, its, played, arrived, committed)
        except AssertionError as error:
            failed.append(f"{path} {its}: {played}, {arrived.get(played.who)}: {error}")
        came = [record for _, _, record in arrived.get(played.who, [])]
        in_flight = played.processes[0].begun[played.flight - 1 : played.flight]
        committed = in_flight[0] in came if in_flight else None
    return failed


def play(
    daemon: DaemonProcess,
    path: str,
    injection: str,
    phase: int = 0,
    count: int = 0,
    way: str = "ring",
    program: Path | None = None,
) -> None:
    program = program or build("build/tests/instructions") / "tests" / "instructions"
    done = subprocess.run(
        [program, path, injection, str(phase), str(count)],
        env={**os.environ, **of_way(way)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=3000,
        check=True,
    )
    if done.stdout.startswith("no breakpoints"):
        pytest.skip(done.stdout)
    all_played = [Played.of(line) for line in done.stdout.splitlines()]
    assert len(all_played) > 2
    await_records(daemon)
    failed = failures(path, injection, way, all_played, arrived_in(daemon))
    assert not failed, "\n".join(failed)
    with daemon.tree() as tree:
        tree.write_file("trace", b"")


def interrupt_all(daemon: DaemonProcess, path: str, way: str, count: int) -> None:
    with daemon.tree() as tree:
        tree.write_file("buffer_size_kb", b"65536")
    for number, injection in enumerate(INJECTIONS):
        if path in ONLY_OF.get(injection, PATHS) and (way == "ring" or injection not in ONLY_WITH_A_RING):
            play(daemon, path, injection, 7 * number, count, way)


@pytest.mark.parametrize(("path", "way"), WAYS)
@pytest.mark.usefixtures("events_on")
def test_some_instructions(daemon: DaemonProcess, path: str, way: str) -> None:
    """Others with each injection, the same in each run."""
    interrupt_all(daemon, path, way, 3 if way == "ring" else 8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("way", ["ring", "socket"])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.usefixtures("events_on")
def test_each_instruction(daemon: DaemonProcess, path: str, way: str) -> None:
    interrupt_all(daemon, path, way, 0)


FAULTS = {
    "what threads use is freed at the exit": (
        "session.c",
        "ut_phase == UT_UNLOADED && has_one_thread()",
        "(has_one_thread() || 1)",
        ("macro", "exit-there"),
    ),
    "the same, in a library that the program is linked with": (
        "session.c",
        " && has_one_thread()",
        " && (has_one_thread() || 1)",
        ("child", "exit-there"),
    ),
    "a child of a handler commits into its parent's ring": (
        "ring.c",
        "if (outlet->is_shared && mmap(",
        "if (!outlet && mmap(",
        ("macro", "fork-late"),
    ),
    "a span ends a cancelled thread": (
        "spans.c",
        "syscall(SYS_getrandom, &seed, sizeof(seed), GRND_NONBLOCK)",
        "getrandom(&seed, sizeof(seed), GRND_NONBLOCK)",
        ("spans", "cancel"),
    ),
}
"""Faults that the library has had: where, the text, what it was then; the path and injection that find it."""


@pytest.mark.long
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.usefixtures("events_on")
def test_a_fault_is_found(daemon: DaemonProcess, tmp_path: Path, name: str) -> None:
    file, text, fault, (path, injection) = FAULTS[name]
    copy = tmp_path / "client" / "c"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build*"))
    (tmp_path / "protocol").symlink_to(ROOT / "protocol")
    source = (copy / "src" / file).read_text()
    assert source.count(text) == 1
    (copy / "src" / file).write_text(source.replace(text, fault))
    subprocess.run(["make", "-s", "-C", copy, "WARNINGS=", "build/tests/instructions"], check=True)
    with pytest.raises(AssertionError, match=f"{path} {injection}: "):
        play(daemon, path, injection, program=copy / "build" / "tests" / "instructions")
