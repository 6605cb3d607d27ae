"""Ends of a daemon, orderly ones and kills, and the next one."""

from __future__ import annotations

import contextlib
import gc
import os
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from tests.simulation.base import GRAVE
from tests.simulation.doubts import changed, different
from tests.simulation.model import Model
from tests.simulation.parts import SETTINGS, Record
from tests.simulation.programs import TEXT, Program, descriptors, sent_record
from tests.simulation.reading import Reading

COLLECT_EVERY = 8
"""Orderly ends until garbage is collected, which takes as long as a start."""
MUCH = 160_000
"""Bytes in a socket."""


class Kills(Reading):
    """Ends daemons; whatever the killed one was doing may have happened."""

    def _killed_within(self) -> None:
        """The step's input was taken in or not, and then its operation carried out or not: an answer says
        which."""
        before = self.models
        if self._grace_is_over():
            over = Model.grace_over  # rings are forgotten before events
            before = [*before, *changed(before, over, keeps=True), *changed(before, over)]
        taken = self._taken_in(before)
        answers = {} if self._asked is None else self._asked.read_all()
        done = sum(number in answers for number, _ in self._begun)
        self.reached["killed behind an answer"] += done > 0
        self.reached["killed among early requests"] += len(self._begun) > 1
        found = models = [*before, *taken]
        if done:
            found = []
        if self._asked is not None and not any(p.connected_by(self._asked) for p in self.programs):
            # Before a request of an administrator, rings are taken in.
            models = [*(m for m in before if self._live.rings.gathering or not m.has_to_take_in), *taken]
        for i, (number, change) in enumerate(self._begun, 1):
            change_it = partial(change, answers.get(number))
            if i > done:
                found = [*found, *changed(models, change_it, only_room=True)]
            if i >= done:  # an event that goes with it may not have gone yet, and then waits for its programs
                found = [*found, *changed(models, change_it, keeps=True)]
            models = changed(models, change_it)
            if i >= done:
                found = [*found, *models, *self._taken_in(models)]
        for name in {name for m in found for name in m.instances}:
            there = [m.instances[name] for m in found if name in m.instances]
            if len({instance.is_marked for instance in there}) > 1:  # cleared before the log says so
                for instance in there:
                    instance.is_marked = None
        self.models = different(found)
        self._begun, self._asked = [], None
        self._die()

    def _taken_in(self, models: list[Model]) -> list[Model]:
        """Those of these worlds in which rings have records, after the daemon has taken them in."""
        if self._live.rings.gathering:
            return []
        # Events of programs that have ended may not have gone yet.
        ended = [m for m in models if any(p.ended for p in m.programs.values())]
        waiting = [m for m in models if any(p.waiting for p in m.programs.values())]
        found = changed([m for m in models if m.has_to_take_in], Model.take_in)
        found += changed(ended, Model.take_in, keeps=True)
        return found + changed(waiting, Model.take_rings)

    def _die(self, falls: Iterable[Program] = ()) -> None:
        """falls: programs that end with it."""
        self._then = None
        self._note_missing()
        self._was_gathering = self._live.rings.gathering
        self.disk.dead = True
        self._bury_descriptors()
        self.daemon = None
        self._consumers_end()
        self._connections_end()
        for program in falls:
            self._end_process(program)
        self.disk.revive()
        self._succeed()

    def _note_missing(self) -> None:
        """A daemon that waits no longer has given up the rings that are not back."""
        if not self._live.rings.gathering:
            for program in self.programs:
                program.is_new |= not program.connected or program.is_unknown

    def _succeed(self) -> None:
        """The next daemon."""
        self.reached["a takeover within a takeover"] += self._was_gathering
        self._start()
        kept = [self.rings[name] for name in self.store.kept]
        stored, self._given = [program.pid for program in kept], Counter(program.uid for program in kept)
        self.reached["a stored ring is taken over"] += bool(stored)
        self.models = [other for model in self.models for other in model.with_older_tables(stored)]
        self.each(lambda m: m.restart({program.pid for program in self.programs}, stored))
        self.models = different(self.models)
        if any(SETTINGS in m.loose for m in self.models):
            self._look()  # no model knows the settings

    def _connections_end(self) -> None:
        if self.admin is not None:
            self.admin.close()
            self.admin = None
        for program in self.programs:
            program.disconnect()
        for answers in self.crowd:
            answers.close()
        self.crowd.clear()
        for listener in self.listeners:
            listener.errors.clear()
            listener.clear()
        self.machine.owner_of.clear()

    def _bury(self) -> None:
        """At the end: nothing is left of the dead ones, nor of a failed run."""
        self.disk.dead = True
        self.daemon = None
        for program in self.programs:
            program.end()
        for consumer in self.consumers:
            consumer.end()
        for answers in (self.admin, *self.crowd):
            if answers is not None:
                answers.close()
        for listener in self.listeners:
            listener.close()
        self.store.close()
        self._bury_descriptors()
        gc.collect()
        for fd in descriptors():
            with contextlib.suppress(OSError):
                if GRAVE in os.readlink(f"/proc/self/fd/{fd}"):
                    os.close(fd)

    def _kill(self, *_: int) -> None:
        self._die()

    def _manager(self, limit: int, *_: int) -> None:
        """The service manager keeps so many rings of the next daemons."""
        self._limit = (0, 1, 3, (8, 2)[limit // 4 % 2])[limit % 4]

    def _fall(self, which: int, *_: int) -> None:
        """A kill, and programs end with the daemon."""
        self._limit = self._limit or 8 * (which % 2)
        self._die([program for i, program in enumerate(self.programs) if which >> 1 + i & 1])

    def _restart(self, which: int = 0, how: int = 0, *_: int) -> None:
        """An orderly end, and the next daemon. Nothing is kept open."""
        self._begun = []
        unread = self._send_much(which) if how % 2 and not self.disk.planned else None
        programs = self.models[0].programs.values()
        is_read = not self._live.rings.gathering or any(p.ended or p.orphan is not None for p in programs)
        self._note_missing()
        self._was_gathering = self._live.rings.gathering
        self._live.close()
        self.daemon = None
        if unread is not None:
            self.machine.pass_time(0)
            self.each(unread)
        if is_read:  # events of ended programs stay for a moment
            self.models = changed(self.models, Model.take_in, keeps=True)
        elif any(map(self._waits, self.programs)):  # rings come later than they
            self.each(Model.take_waiting)
            self.each(lambda m: setattr(m, "is_late", True))
        self._consumers_end()
        self._connections_end()
        self._restarts += 1
        if self._restarts % COLLECT_EVERY == 1:
            self._look_at_descriptors()
        else:
            self._bury_descriptors()
        self._succeed()

    def _send_much(self, which: int) -> Callable[[Model], object] | None:
        """Records over a socket, more than a busy daemon reads before its last look at the sockets. They must
        be the first thing that it takes in."""
        self._gather()
        programs = [p for p in self.programs if p.connected and not p.is_unknown and not self._waits(p)]
        found = [(p, i) for p in programs for i, command in enumerate(p.commands) if TEXT in command]
        if not found:
            return None
        program, index = found[which % len(found)]
        if not program.status_of(index):
            self._turn("", program.commands[index].split()[0], "enable", on=True)
        if not program.connected or not program.status_of(index):
            return None
        records, sent = list[Record](), b""
        while len(sent) < MUCH:
            record, data = self._record(program, index, 1, text=b"x" * 3000)
            sent += sent_record(index, data)
            records.append(record)
        program.answers.send(sent)
        self.machine.set_time(tick_ns=2_000_000)
        self.reached["an end with full sockets"] += 1

        return lambda m: m.emit(program.pid, records, ring=False)
