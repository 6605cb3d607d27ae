"""A daemon, its clients and its disk, driven by a list of steps: the same list gives the same journal.

A step is a tuple of a name and numbers. Numbers choose among what there is at the time, modulo its count, so
any part of a list is a list, too, and a failure can be shrunk. A step ends when all its input is taken in.

When the daemon is killed in a step, what that step did may have happened or not: `models` has both worlds,
and the next look at the tree removes the wrong one. No model left is a failure.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from tests.simulation.administrator import INSTANCES
from tests.simulation.base import SEC
from tests.simulation.disk import ERRORS, FAIL, KILL, TORN, Killed
from tests.simulation.looks import MOST_MODELS
from tests.simulation.mixture import Step
from tests.simulation.parts import SYNTHETIC, Wrong
from tests.simulation.readers import Readers
from utracefsd.daemon import GRACE_NS

STRUCK = ("mkdir", "rmdir", "hist", "size", "snapshot", "snapper", "set", "vanish")
"""Steps in which files are made, replaced and removed."""
STARTS = ("kill", "restart")


class World(Readers):
    """A run, and steps that need all of the others."""

    def run(self, steps: Iterable[Step]) -> None:
        with self.machine.installed(), self.disk.installed(), self._logged():
            gc.freeze()
            gc.disable()
            try:
                self._start()
                for step in steps:
                    self.step(step)
                self.disk.full = False
                self.disk.plan("", 0)
                self.step(("look",))
                self._end()
            finally:
                self.reached["inputs"] += self.machine.moves
                self._bury()
                gc.unfreeze()
                gc.enable()

    def step(self, step: Step) -> None:
        name, *numbers = step
        self.reached[name] += 1
        self.machine.pass_time(1000)
        self._then, self._begun = None, []
        self._note(f"{name} {' '.join(map(str, numbers))}")
        try:
            getattr(self, "_" + name)(*numbers)
            self._look_at_status()
        except Killed as killed:
            self._note(f"killed in {killed}")
            self._killed_within()
            if len(self.models) > MOST_MODELS:
                self._look()

    def _write(self, *_: int) -> None:
        self._pump()

    def _time(self, how: int, *_: int) -> None:
        """A pause, a jump."""
        self.machine.pass_time((1_000_000, SEC, 3 * SEC, GRACE_NS + SEC)[how % 4])
        self._pump()

    def _stall(self, how: int, *_: int) -> None:
        """The daemon gets the cpu rarely: time passes at each look at the clock."""
        for program in self.programs:
            self._go_on(program)
        self.machine.set_time(tick_ns=(1_000_000, 20_000_000)[how % 2])
        try:
            self._pump(stalled=True)
        finally:
            self.machine.pass_time(0)
        self._pump()

    def _vanish(self, event: int, *_: int) -> None:
        """An event loses its programs and its consumers, and another one may get what it had."""
        name = self._event_in(event)
        if name is None:
            return
        for program in list(self.programs):
            commands = *program.commands, *program.tokens.wanted.values()
            if any(command.split()[0] == name for command in commands):
                self._end_program(program)
        self._set_free([name])

    def _end(self, which: int | None = None, *numbers: int) -> None:
        """A program ends; without a number the run does."""
        if which is not None:
            if self.programs:
                program = self.programs[which % len(self.programs)]
                if which % 2 and program.has_socket:
                    self._emit_some(program, *numbers, pump=False)
                self._end_program(program)
            return
        self._live.remove_state = True
        self._live.close()
        self._consumers_end()
        self._connections_end()
        left = [path.name for path in self.folder.iterdir()]
        if left:
            raise Wrong(f"files left: {left}")

    def _disk(self, what: int, after: int, number: int = 0, *_: int) -> None:
        kind = (KILL, TORN, FAIL, "full", "room", "none")[what % 6]
        if kind in ("full", "room"):
            self.disk.full = kind == "full"
        else:
            self.disk.plan("" if kind == "none" else kind, after % 12, ERRORS[number % 3])

    def _strike(self, what: int, after: int, which: int, number: int) -> None:
        """A fault of the disk in the midst of a change of files."""
        error = ERRORS[after // 24 % 3]
        self.disk.plan((KILL, TORN, FAIL)[what % 3], after % (4 + what // 3 % 24), error)
        self._change_files(STRUCK + STARTS, which, number)

    def _change_files(self, steps: Sequence[str], which: int, number: int) -> None:
        getattr(self, "_" + steps[which % len(steps)])(number, number >> 4, number >> 8)

    def _renew(self, which: int, what: int, after: int, how: int) -> None:
        """An instance is made in place of one whose files could not be changed."""
        self._mkdir(which)
        name, event = INSTANCES[1 + which % 2], self._event_in(how)
        if any(name not in m.instances for m in self.models) or event is None:
            return
        self._turn(name, event, "enable", on=True)
        self._emit_all(how)
        self._restart()
        self.disk.plan(FAIL, after % 8)
        (self._size, self._snapshot)[what % 2](name, what >> 1)
        self.disk.plan("", 0)
        self._rmdir(which)
        self._mkdir(which)

    def _sever(self, where: int, event: int, what: int, after: int) -> None:
        """A kill while a file with records or counts is replaced or removed: a histogram's, a buffer's."""
        inst, name = self._place(where)[0], self._event_in(event, of_programs=True)
        if name is None:
            return
        self._turn(inst, name, "enable", on=True)
        if all(name not in m.instances[inst].hist for m in self.models):
            self._refused_hists += not self._turn(inst, name, "hist", on=True)
        self._emit_all(what)
        self.disk.plan((KILL, TORN)[after % 2], after // 2 % 8)
        if what % 2:
            self._turn(inst, name, "hist", on=False)
        else:
            self._size(inst, what >> 1)
        self.disk.plan("", 0)

    def _starve(self, where: int, event: int, number: int, how: int) -> None:
        """Histograms take their memory with their first record, and there is none."""
        for i in (1, 0):
            self._trigger("hist", where, event + i, may_remove=False)
        self.disk.full = True
        self._emit_all(number)
        self.disk.full = False
        self._change_files(STARTS, how, 0)
        self._back(0, 1)
        self._emit_all(number)

    def _cascade(self, where: int, event: int, how: int, which: int) -> None:
        """A program's records make others, which are recorded where they are enabled, over a restart."""
        if not self._event_in(event):
            self._program(how)
            self._register(-1, event, 1, 1)
        if not (name := self._event_in(event, of_programs=True)) or len(self.models) > 1:
            return
        self._compose(which)
        if not any(name in i.actions for i in self.models[-1].instances.values()):
            names = sorted(self.models[-1].fields)
            self._derive(where, names.index(name), how, which)
        target = SYNTHETIC[which % len(SYNTHETIC)]
        if all(target in m.fields for m in self.models):
            self._turn(where >> 2, target, "enable", on=True)
            self._emit_all(how)
        match how >> 4 & 3:
            case 0:
                self._die()
            case 1:
                self._restart()
        self._back(0, 1)
        self._emit_all(how)

    def _emit_all(self, number: int) -> None:
        """A record of each event, by each program that can."""
        for program in self.programs:
            if program.has_socket and not program.is_unknown:
                for index in range(len(program.commands)):
                    self._emit_some(program, index, number & ~7, 3, pump=True)

    def _scarce(self, which: int, number: int, again: int, how: int) -> None:
        """The disk is full while files are made, and has room for the next daemon."""
        self.disk.full = True
        self._change_files(STRUCK, which, number)
        for i in range(how >> 4 & 15):  # the log has no room, either
            self._change_files(("filter", "traceoff", "set", "enable"), which + i, 257 * (number + i))
        self.disk.full = False
        self._change_files(STARTS, how, 0)
        self._change_files(STRUCK, which if how & 2 else again, number + 1)


@contextlib.contextmanager
def world(make: Callable[[Path], World] = World) -> Iterator[World]:
    folder = Path(tempfile.mkdtemp(prefix=f"utracefs-world-{os.getpid()}-", dir="/dev/shm"))
    made = make(folder)
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):  # closed with the others
            os.close(made._grave)
        shutil.rmtree(folder)
