"""The part waits: no emit waits for the daemon, which is stopped, slow, killed and ended meanwhile.

An epoch is a daemon and programs in C and Python that measure each of their emits (waiting.c), over rings,
over rings that are full whenever the daemon is away, and over the socket; some fork children, which emit and
end at once, and other programs do the same. First emits are counted by themselves.

    stops    the daemon lives: each record is in `trace`, once, or counted as lost, but for those of a program
             that ends while the daemon's queue of connections is full
    kills    it is also killed, while it starts, too, and ended. Records over the socket may be missing, and
             those of children that had ended before the daemon knew of them

The bound: no emit is blocked for more than 1 ms beyond what sleeps beside it show of the measurement's error.
`--round N` runs only one epoch.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import attrs

from tests.soak.attacks.attack import Setting
from tests.soak.crew import Crew
from tests.soak.honest import closing_records
from tests.soak.house import ROOT, House
from tests.soak.judging import Told, judge_losses, judge_records, lines_of, reported_lost, stats_of
from tests.soak.report import Found, Report
from tests.soak.waiting import (
    BLOCKED,
    CHILDREN,
    CROWD,
    DOUBTFUL,
    EMITS,
    ENDED,
    EXCESS_NS,
    FEW,
    FIGURES,
    FIGURES_EACH,
    FIRST_CHILD,
    KINDS,
    LOST,
    MOST_WORST,
    NEXT,
    NR_WORST,
    NUMBERS,
    OF_CHILDREN,
    OWN,
    REFUSED,
    SLEEP,
    STOP,
    TAKEN,
    TIMES,
    WAITED,
    WORST,
    WORST_EACH,
    Results,
)

BOUND_NS = 1_000_000
_BUFFER_KB = 32768
_PRELOADED = "build/libutracefs-preload.so"
_END_S = 100.0


@attrs.frozen
class Way:
    """A kind of program."""

    name: str
    threads: int
    """0: programs in a row, each emits a few records."""
    per_second: int
    """Emits of each thread."""
    ring_kb: int
    """0: over the socket."""
    forks: bool = False
    in_python: bool = False
    preloads: bool = False
    """Its records, of which half are invalid, are not judged; it does not know how many were lost."""


WAYS = (
    Way("C, ring", 2, 1500, 1024),
    Way("C, small ring", 2, 1500, 16),
    Way("C, socket", 2, 500, 0),
    Way("C, ring, forks", 1, 500, 64, forks=True),
    Way("C, socket, forks", 1, 200, 0, forks=True),
    Way("C, programs in a row", 0, 1, 64),
    Way("C, preload library, forks", 1, 500, 1024, forks=True, preloads=True),
    Way("Python, ring, forks", 1, 500, 64, forks=True, in_python=True),
    Way("Python, small ring", 1, 1000, 16, in_python=True),
    Way("Python, socket", 1, 500, 0, in_python=True),
)


def waits(setting: Setting, report: Report, folder: Path) -> None:
    """Epochs until the time is over, at least one."""
    deadline = time.monotonic() + setting.seconds if setting.round is None else math.inf
    program = _compile(folder)
    figures: Counter[int] = Counter()
    number = setting.round or 0
    while True:
        with contextlib.suppress(Found):
            _Epoch(setting, report, folder / f"epoch{number}", number, program, figures).run(deadline)
        number += 1
        if setting.round is not None or time.monotonic() >= deadline - 4:
            break
    print("\n".join(_histogram(figures)), flush=True)


def _compile(folder: Path) -> Path:
    """The program in C, with the library in it."""
    client = ROOT / "client" / "c"
    subprocess.run(["make", "-s", "-C", client, "build/libutracefs.a", _PRELOADED], check=True)
    source = Path(__file__).with_name("waiting.c")
    command = ["gcc", "-std=gnu11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread"]
    libraries: list[str | Path] = [f"-I{client / 'include'}", client / "build" / "libutracefs.a"]
    subprocess.run([*command, source, *libraries, "-o", folder / "waiting"], check=True)
    return folder / "waiting"


def _histogram(figures: Counter[int]) -> list[str]:
    """How many emits took how long, and were blocked how long, by kind; how late sleeps were, and errors of
    their measurement."""
    columns = [FIGURES + kind * FIGURES_EACH + at for kind in range(len(KINDS)) for at in (TIMES, BLOCKED)]
    lines = ["  below     " + "".join(f"{name:>20}{'blocked':>10}" for name in KINDS)]
    for i in range(32):
        row = [figures[at + i] for at in columns]
        if any(row):
            cells = "".join(f"{count:>{10 if n % 2 else 20}}" for n, count in enumerate(row))
            lines.append(f"{2 ** (i + 1) // 1000:>9} us{cells}" if i > 9 else f"{2 ** (i + 1):>9} ns{cells}")
    return lines


@attrs.frozen
class Wait:
    """An emit that gave its cpu up."""

    program: str
    kind: int
    """Index in KINDS."""
    who: int
    n: int
    took_ns: int
    blocked_ns: int
    switches: int


def is_within_bound(emit: Wait, excess_ns: int) -> bool:
    """excess_ns: the largest error of a measurement beside it."""
    return emit.blocked_ns <= BOUND_NS + excess_ns


class Program:
    """One kind of program, with its results."""

    def __init__(self, way: Way, event: str) -> None:
        self.way = way
        self.event = event
        self.fd = os.memfd_create("waiting")
        os.truncate(self.fd, 8 * NUMBERS)
        self.numbers = Results(self.fd).numbers
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, program: Path, directory: str) -> subprocess.Popen[bytes]:
        words = [str(self.fd), self.event, str(self.way.threads), str(self.way.per_second)]
        if self.way.in_python:
            words = [sys.executable, "-m", "tests.soak.waiting", *words[:2], words[3]]
        else:
            words.insert(0, os.fspath(program))
        self.process = subprocess.Popen(
            [*words, str(int(self.way.forks))],
            pass_fds=[self.fd],
            cwd=ROOT,
            env={
                **os.environ,
                "UTRACEFS_DIR": directory,
                "UTRACEFS_DATA_RING": str(int(self.way.ring_kb > 0)),
                "UTRACEFS_RING_KB": str(self.way.ring_kb),
                "UTRACEFS_BUFFER_KB": "64",
                **({"LD_PRELOAD": f"{ROOT}/client/c/{_PRELOADED}"} if self.way.preloads else {}),
            },
        )
        return self.process

    def start_in_a_row(self, program: Path, directory: str) -> None:
        """Until they shall stop; in a thread."""
        while not self.numbers[STOP]:
            if self.start(program, directory).wait():
                return  # which `must_be_well` finds
            time.sleep(0.02)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)

    def long_waits(self) -> list[Wait]:
        """The first ones of at least 250 us."""
        found = []
        for place in range(min(self.numbers[NR_WORST], MOST_WORST)):
            at = WORST + place * WORST_EACH
            found.append(Wait(self.way.name, *self.numbers[at : at + WORST_EACH]))
        return found

    def told(self) -> Told:
        numbers = self.numbers
        following = dict(enumerate(numbers[NEXT : NEXT + self.way.threads]))
        following |= dict.fromkeys(range(FIRST_CHILD, FIRST_CHILD + numbers[CHILDREN]), FEW)
        lost = numbers[OWN + LOST] + numbers[OF_CHILDREN + LOST]
        return Told(self.event, following, exact=False, lost=lost, may_miss=True)

    def missing(self, at: int, recorded: int, may_miss: bool) -> str:
        """A wrong sum, of itself or of its children, as a sentence; or nothing."""
        taken, doubtful, lost, refused = (self.numbers[at + i] for i in (TAKEN, DOUBTFUL, LOST, REFUSED))
        counted = recorded + lost + refused
        if (counted >= taken or may_miss) and counted <= taken + doubtful:
            return ""
        who = "itself" if at == OWN else "children"
        text = f"emitted {taken} to {taken + doubtful}, recorded {recorded}, lost {lost}, refused {refused}"
        return f"{self.event} ({self.way.name}), {who}: {text}"


class _Epoch:
    def __init__(
        self,
        setting: Setting,
        report: Report,
        folder: Path,
        number: int,
        program: Path,
        figures: Counter[int],
    ) -> None:
        self.rng = random.Random(f"{setting.seed}/waits/{number}")
        self.kills = number % 2 == 1
        self.label = f"{'kills' if self.kills else 'stops'}: {setting.options('waits')} --round {number}"
        self.report = report
        self.figures = figures
        self.house = House(
            folder, report, self.label, options=("--buffer-size-kb", str(_BUFFER_KB), "--keep-state")
        )
        self.program = program
        self.programs = [Program(way, f"p{i}") for i, way in enumerate(WAYS)]
        self.done: list[str] = []

    def run(self, deadline: float) -> None:
        """The whole epoch; Found ends it early."""
        threads = []
        try:
            self.house.start()
            with self.house.tree() as tree:
                tree.write_file("standing_events", b"user_events:p*\n")
            for program in self.programs:
                if program.way.threads:
                    program.start(self.program, self.house.directory)
                else:
                    arguments = (self.program, self.house.directory)
                    threads.append(threading.Thread(target=program.start_in_a_row, args=arguments))
                    threads[-1].start()
            self._do_things(deadline)
            self._settle()
            self._judge()
            self.house.end(self._context())
            self.report.counts["epochs of waits"] += 1
        finally:
            for program in self.programs:
                program.numbers[STOP] = 1
            for thread in threads:
                thread.join()
            for program in self.programs:
                program.close()
            self.house.clear()

    # Events

    def _do_things(self, until: float) -> None:
        things: dict[Callable[[], None], int] = {self._stop: 5, self._slow: 4, self._crowd: 2, self._probe: 2}
        if self.kills:
            things |= {self._kill: 5, self._end: 4, self._kill_starting: 2}
        names, weights = list(things), list(things.values())
        self._pause(1)  # programs start
        for _ in range(self.rng.randrange(15, 30)):
            if time.monotonic() > until:
                break
            self._pause(1)
            (thing,) = self.rng.choices(names, weights)
            self.done.append(thing.__name__)
            self.report.counts[f"waits, the daemon: {thing.__name__[1:]}"] += 1
            thing()
            self.house.must_be_alive(self._context())
            for program in self.programs:
                if program.process is not None and program.process.poll():
                    raise RuntimeError(f"{program.way.name}: status {program.process.returncode}")

    def _pause(self, most_s: float) -> None:
        time.sleep(self.rng.random() * most_s)

    def _probe(self) -> None:
        self.house.probe(self._context())

    def _stop(self) -> None:
        self.house.signal(signal.SIGSTOP)
        self._pause(2)
        self.house.signal(signal.SIGCONT)

    def _slow(self) -> None:
        """It runs a tenth of the time."""
        for _ in range(self.rng.randrange(60)):
            self.house.signal(signal.SIGSTOP)
            time.sleep(0.02)
            self.house.signal(signal.SIGCONT)
            time.sleep(0.002)

    def _crowd(self) -> None:
        """Children as fast as can be, more than the daemon's queue has room for."""
        for program in self.programs:
            program.numbers[CROWD] = 1
        self._stop()
        for program in self.programs:
            program.numbers[CROWD] = 0

    def _kill(self) -> None:
        self.house.kill()
        self._start_again()

    def _end(self) -> None:
        """SIGTERM with --keep-state: the state is taken over."""
        self.house.signal(signal.SIGTERM)
        self.house.wait_for_end(self._context())
        self._start_again()

    def _kill_starting(self) -> None:
        self.house.kill()
        for _ in range(self.rng.randrange(1, 4)):
            self.house.start_and_kill(self.rng.random() * 0.4)
        self._start_again()

    def _start_again(self) -> None:
        self._pause(0.5)
        self.house.start()

    # Judging

    def _settle(self) -> None:
        """The daemon has taken in all records, and the programs end."""
        for program in self.programs:
            program.numbers[STOP] = 1
        deadline = time.monotonic() + _END_S
        for program in self.programs:
            assert program.process is not None
            try:
                status = program.process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                self.report.stop("end", self.label, f"{program.way.name} does not end\n{self._context()}")
            if status or (program.way.threads and not program.numbers[ENDED]):
                raise RuntimeError(f"{program.way.name}: status {status}")
        crew = Crew()
        try:
            crew.add("closing", closing_records(self.house.directory))
            _, bad = crew.stop()
        finally:
            crew.close()
        if bad:
            raise RuntimeError(f"members of the crew failed: {bad}")

    def _judge(self) -> None:
        self._judge_waits()
        with self.house.tree(60) as tree:
            text = tree.read_file("trace")
            cpus = [name for name, _ in tree.list_dir("per_cpu")]
            stats = b"".join(tree.read_file(f"per_cpu/{name}/stats") for name in cpus)
            others = [program.event for program in self.programs if program.way.preloads]
            texts = [tree.read_file(f"events/user_events/{event}/stats") for event in others]
        lost_by_others = sum(lost for text in texts for _, _, lost in stats_of(text)[1].values())
        if any(not line.endswith(b": 0") for line in stats.split(b"\n") if line.startswith(b"overrun")):
            self.report.tell("conservation", self.label, f"the buffer was large enough\n{self._context()}")
        judged = [program for program in self.programs if not program.way.preloads]
        lines, unreadable = lines_of(text, [program.event for program in judged])
        faults = unreadable[:5]
        came: dict[str, dict[int, list[int]]] = {each.event: defaultdict(list) for each in judged}
        for line in lines:
            came[line.event][line.who].append(line.n)
        self.report.counts["records judged"] += len(lines)
        for program in judged:
            records = came[program.event]
            of_children = sum(len(numbers) for who, numbers in records.items() if who >= FIRST_CHILD)
            own = sum(map(len, records.values())) - of_children
            faults += judge_records(records, program.told())
            faults.append(program.missing(OWN, own, self.kills and not program.way.ring_kb))
            may_end_unconnected = not program.way.threads and self._crowd.__name__ in self.done
            faults.append(program.missing(OF_CHILDREN, of_children, self.kills or may_end_unconnected))
            lost = program.numbers[OWN + LOST] + program.numbers[OF_CHILDREN + LOST]
            self.report.counts["records that producers lost"] += lost
        if not self.kills:
            told = [attrs.evolve(program.told(), exact=True, may_miss=False) for program in judged]
            faults.append(judge_losses(told, reported_lost(text) - lost_by_others))
        self.report.counts["judgements"] += 1
        if any(faults):
            found = "\n".join(fault for fault in faults if fault)
            self.report.tell(
                "conservation", self.label, f"{found}\n{self._context()}\n{self.house.log_tail()}"
            )

    def _judge_waits(self) -> None:
        figures: Counter[int] = Counter()
        for program in self.programs:
            figures.update({at: program.numbers[at] for at in range(FIGURES, WORST)})
        self.figures.update(figures)
        for kind, name in enumerate(KINDS):
            at = FIGURES + kind * FIGURES_EACH
            self.report.counts[f"measured, {name}"] += figures[at + EMITS]
            self.report.counts[f"waited, {name}"] += figures[at + WAITED]
            if kind == SLEEP and figures[at + WAITED] < 0.99 * figures[at + EMITS]:
                raise RuntimeError(f"only {figures[at + WAITED]} of {figures[at + EMITS]} sleeps were seen")
        excess_ns = max(program.numbers[EXCESS_NS] for program in self.programs)
        self._note_longest("largest error of a sleep, us", excess_ns)
        for program in self.programs:
            for emit in program.long_waits():
                self._note_longest(f"longest wait of an emit, {KINDS[emit.kind]}, us", emit.blocked_ns)
                text = f"{emit}; sleeps beside it had an error of {excess_ns} ns\n{self._context()}"
                self.report.check("waits", self.label, is_within_bound(emit, excess_ns), text)

    def _note_longest(self, name: str, ns: int) -> None:
        self.report.counts[name] = max(self.report.counts[name], ns // 1000)

    def _context(self) -> str:
        return f"it did: {' '.join(self.done)}"
