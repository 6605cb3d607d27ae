"""A daemon, its clients and its disk, driven by a list of steps: the same list gives the same journal.

A step is a tuple of a name and numbers. Numbers choose among what there is at the time, modulo its count, so
any part of a list is a list, too, and a failure can be shrunk. A step ends when all its input is taken in.

When the daemon is killed in a step, what that step did may have happened or not: `models` has both worlds,
and the next look at the tree removes the wrong one. No model left is a failure.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import logging
import os
import random
import select
import shutil
import socket
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgpack

from tests.simulation.disk import ERRORS, FAIL, KILL, TORN, Disk, Killed
from tests.simulation.machine import AT_ONCE, CPUS, DESCRIPTORS, MOST, Listener, Machine, Store
from tests.simulation.model import (
    BUFFERS,
    HISTS,
    PLAIN,
    SETTINGS,
    Instance,
    Model,
    Reader,
    Record,
    Texts,
    Wrong,
    expect,
    listed_events,
)
from tests.simulation.model import Program as ModelProgram
from tests.simulation.programs import (
    NO_EVENT,
    TEXT,
    Answers,
    Consumer,
    EnableWords,
    Program,
    descriptors,
    fields_of,
    payload,
)
from tests.simulation.rings import DATA_RINGS, STREAM_RING, DataRing, PerfRing, StreamRing
from utracefs_protocol.errors import TraceError
from utracefsd.connections.acceptor import ACCEPT_PAUSE_NS
from utracefsd.daemon import GATHER_NS, GRACE_NS, HAND_OVER_NS, LOOK_AGAIN_NS, Daemon, DaemonOptions
from utracefsd.machine._machine import monotonic_ns
from utracefsd.machine.shares import Resource

Step = tuple[Any, ...]

NAMES = ["e0", "e1", "e2", "e3", "e4", "e5"]
INSTANCES = ["", "a", "b"]
USERS = [0, 1001, 1002]
TRIGGERS = {
    "hist": "hist:keys=k:size=128",
    "traceoff": "traceoff if k == 3",
    "snapper": "snapshot if k == 99",
}
PLUG_EVENTS = "consumers/plug/set_event"
MOST_PROGRAMS = 5
MOST_CONSUMERS = 3
SEC = 1_000_000_000
MOST_MODELS = 32
MOST_GRAVES = 500
"""Descriptors of dead daemons until garbage is collected."""
COLLECT_EVERY = 8
"""Orderly ends until garbage is collected, which takes as long as a start."""
KINDS = ("stream", "perf", "count", "freq", "plugin", "pages")
"""Kinds of consumers."""
CONSUMED = ("trace_pipe", "trace_pipe_raw", "snapshot_raw")
GRAVE = "utracefs-grave"
MUCH = 160_000
"""Bytes in a socket."""
LOOKS = 20
"""So often the daemon looks in vain for a record that a thread is writing, in the ring of a connection that
has ended."""
IN_MEMORY = {"hist-in-memory": HISTS, "buffer-in-memory": BUFFERS}
"""Messages that say it: the next daemon will not have these."""

NEVER = {"buffer-lost", "snapshot-guessed", "state-file-replaced", "state-set-aside", "trigger-lost"}
"""Messages of files that a daemon cannot use: no kill leaves such."""

_BY_WEIGHT = {
    24: "emit",
    12: "write",
    10: "register enable",
    8: "early back disk strike word",
    6: "program look attach stop filter consume",
    5: "off end switch set glut",
    4: "ring time hist flood",
    3: "pipe torn corrupt traceoff size detach",
    2: "kill mkdir snapshot tgid stall storm vanish restart manager renew scarce half leave",
    1: "snapper rmdir clear nonsense delete grep hurry fall starve crowd",
}
WEIGHTS = {name: weight for weight, names in _BY_WEIGHT.items() for name in names.split()}
"""How often each step comes."""


STRUCK = ("mkdir", "rmdir", "hist", "size", "snapshot", "snapper", "set", "vanish")
"""Steps in which files are made, replaced and removed."""
STARTS = ("kill", "restart")

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


class _Log(logging.Handler):
    """Counts the daemon's messages by their id."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        id_: str = record.id  # type: ignore[attr-defined]
        self._world.reached["log " + id_] += 1
        if id_ in NEVER:
            self._world.never.append(record.getMessage())
        for model in self._world.models:
            if id_ == "state-was-full":
                model.loose.add(SETTINGS)
            elif id_ in IN_MEMORY:
                model.in_memory.add(IN_MEMORY[id_])


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reached: Counter[str] = Counter()
        self.journal: list[str] = []
        self.machine = Machine()
        self.store = Store()
        self.listeners = Listener(), Listener()
        """One for producers, one for administrators."""
        self.crowd: list[Answers] = []
        """Connections that ask nothing."""
        self._limit = 0
        self._given: Counter[int] = Counter()
        """By user: rings that this daemon has from the store."""
        self.rings: dict[str, Program] = {}
        """By their name in the store: also those of programs that have ended."""
        self.disk = Disk(self.reached)
        self.models = [Model()]
        self.programs: list[Program] = []
        self.consumers: list[Consumer] = []
        self.admin: Answers | None = None
        self.numbers = 0
        self.daemon: Daemon | None = None
        self._after: Callable[[Model], object] | None = None
        self._then: Callable[[], object] | None = None
        """Called behind what a program has sent, before rings are taken in."""
        self._stages: list[tuple[int, Callable[[Any, Model], object]]] = []
        """In place of `_after`: what requests that were sent together change, with their numbers."""
        self._ports = select.poll()
        """Shows which port of the daemon has work."""
        self._grace_ends = 0
        self._in_grace = False
        """Programs may still come back to their events."""
        self._refused_hists = 0
        """By this daemon; the file of one goes with the next line of the log."""
        self._looks = 0
        self._has_strangers = False
        """A daemon may have a ring of a process that ended before it connected, and cannot know that."""
        self._restarts = 0
        self._was_gathering = False
        """The daemon before waited for rings when it ended."""
        self.never: list[str] = []
        self._asked: Answers | None = None
        """It has a request without an answer."""
        self._grave = os.memfd_create(GRAVE)
        self._mine = descriptors()
        self._root = self.machine.start(0)

    # A run

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

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        log, handler = logging.getLogger("utracefsd"), _Log(self)
        propagates, log.propagate = log.propagate, False
        log.addHandler(handler)
        unraisable, sys.unraisablehook = sys.unraisablehook, lambda found: None
        try:
            yield
        finally:
            sys.unraisablehook = unraisable
            log.removeHandler(handler)
            log.propagate = propagates

    def step(self, step: Step) -> None:
        name, *numbers = step
        self.reached[name] += 1
        self.machine.pass_time(1000)
        self._after = self._then = None
        self._stages = []
        self._note(f"{name} {' '.join(map(str, numbers))}")
        try:
            getattr(self, "_" + name)(*numbers)
            self._look_at_status()
        except Killed as killed:
            self._note(f"killed in {killed}")
            self._killed_within()
            if len(self.models) > MOST_MODELS:
                self._look()

    def _note(self, text: str) -> None:
        self.journal.append(text)

    def each(self, change: Callable[[Model], Any]) -> Any:
        """The same change of each possible world. The result of the last."""
        result = None
        for model in self.models:
            result = change(model)
        return result

    def _keep(
        self, agrees: Callable[[Model], bool], why: str = "no possible world gives these answers"
    ) -> None:
        """The possible worlds that agree; without one the daemon is wrong."""
        self.models = [m for m in self.models if agrees(m)]
        if not self.models:
            raise Wrong(why)

    def _learn_of(self, program: Program, **values: object) -> None:
        """The same news of it in each possible world."""
        for model in self.models:
            vars(model.programs[program.pid]).update(values)

    # Daemons

    def _start(self) -> None:
        """Until it is up: a start may be killed, and then there is another one."""
        for _ in range(9):
            self.disk.revive()
            self.store.limit = self._limit
            self.machine.cpu = (self.machine.cpu + 1) % CPUS
            try:
                self.daemon = Daemon(
                    DaemonOptions(plugins=[], buffer_size_kb=8),
                    now_ns=monotonic_ns,
                    status_path=self.folder / "user_events_status",
                    state_folder=self.folder,
                    max_descriptors=DESCRIPTORS,
                    store=self.store,
                    stored=self.store.given(),
                )
                self._ports = select.poll()
                for port in (self.daemon.data, self.daemon.tracefs):
                    self._ports.register(port.fileno(), select.POLLIN)
                self.daemon.data.acceptor.listen(self.listeners[0])  # type: ignore[arg-type]
                self.daemon.tracefs.acceptor.listen(self.listeners[1])  # type: ignore[arg-type]
                self._grace_ends, self._in_grace = self.machine.now + GRACE_NS, True
                self._refused_hists = 0
                expect("complaints about files", self.never, [])
                return
            except Killed:
                self.reached["killed in a start"] += 1
                self._bury_descriptors()
            except (TraceError, OSError) as error:
                if error.errno not in ERRORS or (self.disk.planned and not self.disk.full):
                    raise Wrong(f"a start fails: {error}") from error
                self._bury_descriptors()  # its process ends
                self.reached["no room for a start"] += 1
                self.disk.full = False
        raise Wrong("no start")

    def _killed_within(self) -> None:
        """The step's input was taken in or not, and then its operation carried out or not: an answer says
        which."""
        before = self.models
        if self._grace_is_over():
            over = Model.grace_over  # rings are forgotten before events
            before = [*before, *_changed(before, over, keeps=True), *_changed(before, over)]
        taken = self._taken_in(before)
        if self._stages:
            self.models = self._carried_out([*before, *taken])
            self._die()
            return
        answer = None if self._asked is None else self._asked.read()
        is_done = answer is not None and answer[0] is None
        self.models = [] if is_done else [*before, *taken]
        if is_done:
            self.reached["killed behind an answer"] += 1
        # A program's request is carried out before the records of rings are taken in, which may not come.
        is_of_a_program = any(p.has_socket and p.answers is self._asked for p in self.programs)
        if is_of_a_program or self._live.gathering:
            carried_out = [*before, *taken]
        else:
            carried_out = [*(m for m in before if not m.has_to_take_in), *taken]
        if self._after is not None and (answer is None or is_done):
            done = _changed(carried_out, self._after)
            # An event that goes with it may not have gone yet, and then waits for its programs.
            kept = _changed(carried_out, self._after, keeps=True)
            kept += _changed(carried_out, self._after, only_room=True)
            self.models += [*done, *kept, *self._taken_in(done if is_of_a_program else [])]
        elif is_done:
            self.models = carried_out
        self._after = self._asked = None
        self._die()

    def _carried_out(self, models: list[Model]) -> list[Model]:
        """Stages that are answered, and perhaps the next ones; rings may be taken in after each."""
        answers = {} if self._asked is None else self._asked.read_all()
        done = sum(number in answers for number, _ in self._stages)
        found = [] if done else models
        for i, (_, change) in enumerate(self._stages, 1):
            if i > done:
                found = [*found, *_changed(models, partial(change, None), only_room=True)]
            models = _changed(models, partial(change, None))
            if i >= done:
                found = [*found, *models, *self._taken_in(models)]
        self._stages, self._asked = [], None
        self.reached["killed among early requests"] += 1
        return _different(found)

    def _taken_in(self, models: list[Model]) -> list[Model]:
        """Those of these worlds in which rings have records, after the daemon has taken them in."""
        if self._live.gathering:
            return []
        # Events of programs that have ended may not have gone yet.
        ended = [m for m in models if any(p.ended for p in m.programs.values())]
        waiting = [m for m in models if any(p.waiting for p in m.programs.values())]
        found = _changed([m for m in models if m.has_to_take_in], Model.take_in)
        found += _changed(ended, Model.take_in, keeps=True)
        return found + _changed(waiting, Model.take_rings)

    def _grace_is_over(self) -> bool:
        """The daemon has yet to see it."""
        return self._in_grace and self.machine.now >= self._grace_ends

    def _die(self, falls: Iterable[Program] = ()) -> None:
        """falls: programs that end with it."""
        self._then = None
        self._note_missing()
        self._was_gathering = self._live.gathering
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
        if not self._live.gathering:
            for program in self.programs:
                program.is_new |= not program.connected or program.is_unknown

    def _succeed(self) -> None:
        """The next daemon."""
        self.reached["a takeover within a takeover"] += self._was_gathering
        self._start()
        kept = [program for name, program in self.rings.items() if name in self.store.kept]
        stored, self._given = {program.pid for program in kept}, Counter(program.uid for program in kept)
        self.reached["a stored ring is taken over"] += bool(stored)
        self.models = [other for model in self.models for other in model.with_older_tables(stored)]
        self.each(lambda m: m.restart({program.pid for program in self.programs}, stored))
        self.models = _different(self.models)
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

    def _bury_descriptors(self) -> None:
        """As the kernel does with a killed process. The objects of the dead daemon still have their
        numbers, so each becomes an empty file that they may close."""
        found = descriptors() - self._kept()
        for fd in found:
            os.dup2(self._grave, fd)
        if len(found) > MOST_GRAVES:
            gc.collect()

    def _kept(self) -> set[int]:
        admin = set() if self.admin is None else self.admin.descriptors()
        clients = [one.descriptors() for one in self.programs]
        clients += [one.descriptors() for one in self.consumers]
        clients += [one.descriptors() for one in self.crowd]
        bells = [listener.fileno() for listener in self.listeners]
        return self._mine.union(admin, bells, self.store.kept.values(), *clients)

    def collect(self) -> None:
        """Sockets and files of daemons that died, whose numbers are no longer theirs."""
        with self._logged():
            gc.collect()

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

    def _pump(self, *, stalled: bool = False) -> None:
        """Everything that was sent is taken in, and the model knows it; stalled: some of it."""
        daemon = self._live
        if is_over := self._grace_is_over():  # nothing stops as long as that
            for program in [program for program in self.programs if not program.connected]:
                self._go_on(program)
                if self.models[-1].programs[program.pid].early:
                    self._end_process(program)
                    self.each(partial(self._gone, program.pid))
        was_gathering = daemon.gathering
        self._rest(stalled=stalled)
        if was_gathering > daemon.gathering and any(p.ended for p in self.models[-1].programs.values()):
            self.machine.pass_time(LOOK_AGAIN_NS)  # when it looks for programs that have ended
            self._rest(stalled=stalled)
        if self._then is not None:
            then, self._then = self._then, None
            then()
        if not daemon.gathering:
            self.each(lambda m: m.take_in())
        if is_over:
            self._in_grace = False
            self.each(lambda m: m.grace_over())
        self.each(lambda m: m.forget_unused())
        if daemon.faults.count:
            raise Wrong(f"{daemon.faults.count} unexpected exceptions")

    def _rest(self, *, stalled: bool) -> None:
        """Until nothing is left to do, as server/serve.py."""
        daemon = self._live
        for _ in range(256):
            busy = False
            readable = {fd for fd, _ in self._ports.poll(0)}
            for port in (daemon.data, daemon.tracefs) if not daemon.gathering else (daemon.data,):
                if port.fileno() not in readable and not port.has_more:
                    continue
                for accepted in port.ready():
                    busy = True
                    port.pump(accepted)
                daemon.hand_on()  # also without any: a connection was accepted
            if daemon.rings.round():
                busy = True
                daemon.hand_on()
            due = daemon.next_deadline_ns()
            if due is not None and due <= monotonic_ns():
                was_gathering = daemon.gathering
                daemon.on_time(monotonic_ns())
                busy |= was_gathering and not daemon.gathering  # its bell has rung
            if not busy:
                break
        else:
            if not stalled:
                raise Wrong("the daemon never rests")
        if self.disk.dead:  # compiled code may have passed the exception over
            raise Killed("an earlier call")

    @property
    def _live(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon

    def _connect(self, pid: int, uid: int = 0, *, to_tree: bool = False) -> Answers:
        ours, theirs = socket.socketpair()
        self.machine.owner_of[ours.fileno()] = pid, uid
        self.reached["inputs"] += 1
        self.listeners[to_tree].arrive(ours)
        return Answers(theirs)

    def _ask(
        self,
        answers: Answers,
        method: str,
        *params: Any,
        fds: Iterable[int] = (),
        cut: int = 0,
        after: Callable[[Model], object] | None = None,
    ) -> Any:
        """(error, result) of a request; `cut`: its bytes come in two pieces. after: the change, if it
        succeeds; False: that world would have refused it."""
        data = answers.request(method, *params)
        self.reached["inputs"] += 1
        self._asked = answers
        if after is not None:
            self._after = after = partial(_and_forget, after)
        if cut:
            at = cut % len(data)
            answers.send(data[:at], list(fds))
            self._pump()
            self.machine.pass_time(1000)
            answers.send(data[at:])
        else:
            answers.send(data, list(fds))
        found: list[Any] = []

        self._then = lambda: found.append(answers.read())
        self._pump()
        answer, self._asked = found[0], None
        if answer is None and not answers.ended:
            raise Wrong(f"{method} {params!r:.100} is not answered")
        self._note(f"  {method}: {answer!r}")
        if after is not None:
            self._after = None
            if answer is not None and answer[0] is None:
                self._keep(lambda m: after(m) is not False, f"{method} {params!r:.100} is accepted")
        return answer if answer is not None else (["ended"], None)

    def _pump_to(self, after: Callable[[Model], object]) -> None:
        """Take in what has this effect."""
        self._after = after
        self._pump()
        self.each(after)
        self._after = None

    def _gather(self) -> None:
        """Administrators wait until rings are back, or too late."""
        awaited = any(not p.connected or not p.ring or p.is_unknown for p in self.programs)
        ways = {"ends by time": GATHER_NS + HAND_OVER_NS}
        if not awaited and not self._has_strangers:
            ways = {"ends with programs": LOOK_AGAIN_NS} | ways
        for way, ns in ways.items():
            if self._live.gathering:
                self.reached[f"gathering {way}"] += 1
                self.machine.pass_time(ns)
                self._pump()
                if self._live.gathering:
                    raise Wrong(f"gathering rings never {way}")

    def _tree(self, method: str, *params: Any, after: Callable[[Model], object] | None = None) -> Any:
        self._gather()
        if self.admin is None or self.admin.ended:
            self.admin = self._connect(self._root, to_tree=True)
        error, result = self._ask(self.admin, method, *params, after=after)
        if error is not None:
            self.reached[f"{method} errno {error[0]}"] += 1
            return None
        return result if result is not None else True

    def _read_files(self, paths: list[str]) -> Texts:
        found: Texts = {}
        for path, (error, result) in zip(
            paths, self._ask_all([("read_file", path) for path in paths]), strict=True
        ):
            expect(f"{path}: error", error, None)
            found[path] = result
            self._note(f"  {path}: {result!r}")
        return found

    def _ask_all(self, requests: list[tuple[Any, ...]]) -> list[tuple[Any, Any]]:
        """The administrator's, by one packet: (error, result) of each."""
        admin = self.admin
        assert admin is not None
        first = admin.msgid + 1
        admin.send(b"".join(admin.request(*request) for request in requests))
        found: dict[int, tuple[Any, Any]] = {}
        while len(found) < len(requests):
            before = admin.received
            self._pump()
            found |= admin.read_all()
            if admin.received == before:
                raise Wrong(f"{len(requests) - len(found)} of {requests[:3]} are not answered")
        return [found[first + i] for i in range(len(requests))]

    def _write_file(
        self, path: str, text: str, after: Callable[[Model], object], truncate: bool = True
    ) -> bool:
        return self._tree("write_file", path, text.encode(), truncate, after=after) is not None

    # Looks

    def _look_at_status(self) -> None:
        """A program's status byte is that of the attached consumers, as soon as nothing is in doubt."""
        if len(self.models) > 1 or self._live.gathering:
            return
        model = self.models[0]
        status = functools.cache(model.status)
        for program in self.programs:
            if program.has_socket:
                for index, name in enumerate(model.programs[program.pid].events):
                    if program.status_of(index) != status(name):
                        raise Wrong(
                            f"status byte of {name} is {program.status_of(index)}, not {status(name)}"
                        )
                words = program.words
                if words.registered:
                    asked = {place: words.wanted[place] for place in sorted(words.registered)}
                    bits = {place: 1 << bit for place, (name, bit) in asked.items() if status(name)}
                    expect("enable words", words.bits(), bits)

    def _look(self, which: int = 0, *_: int) -> None:
        """At the whole tree while anything is in doubt, at each fourth look and in the end; else at one
        instance."""
        self._gather()
        self._pump()
        texts: Texts = {}
        models = self.models
        self._looks += 1
        is_in_doubt = len(models) > 1 or bool(models[0].loose) or models[0].is_late
        is_all = is_in_doubt or not which or self._looks % 4 == 0
        every = {name for model in models for name in model.instances}
        wanted: list[str] = []
        there = {name.decode() for name, _ in self._tree("list_dir", "instances")}
        texts["instances"] = " ".join(sorted(there)).encode()
        texts["available_events"] = self._tree("read_file", "available_events")
        events = listed_events(texts)
        wanted += ["saved_tgids", "options/record-tgid", "refused_events"]
        wanted += [f"events/user_events/{event}/{file}" for event in events for file in ("id", "stats")]
        names = sorted((every & there) | {""})
        for name in names if is_all else [names[which % len(names)]]:
            at = f"instances/{name}/" if name else ""
            paths = ["tracing_on", *PLAIN, "buffer_size_kb", "buffer_subbuf_size_kb", "trace", "snapshot"]
            paths += [f"per_cpu/cpu{cpu}/stats" for cpu in range(CPUS)]
            for event in events:
                files = ["enable", "filter", "trigger"]
                if any(model.may_have_hist(name, event) for model in models):
                    files.append("hist")
                paths += [f"events/user_events/{event}/{file}" for file in files]
            wanted += [at + path for path in paths]
        texts |= self._read_files(wanted)
        wrong = []
        right = []
        for model in models:
            try:
                model.check(texts)
                right.append(model)
            except (Wrong, KeyError) as error:
                wrong.append(error)
        if not right:
            raise Wrong(
                f"no possible world is like that: {'; '.join(map(str, dict.fromkeys(map(str, wrong))))}"
            )
        if len(models) > len(right):
            self.reached["a doubt is resolved"] += 1
        if len(right) > 1:  # equally possible, unless they differ in nothing
            right = _different(right)[-MOST_MODELS:]
        self.models = right
        if self.machine.now > self._grace_ends:
            kept = self.store.kept.keys() - {str(program.ring_name) for program in self.programs}
            if kept:
                raise Wrong(f"the store keeps {sorted(kept)} of programs that have ended")
        held = Counter(program.uid for name, program in self.rings.items() if name in self.store.kept)
        for uid in held.keys() - {0}:
            if held[uid] > max((self.store.limit + 1) // 2, self._given[uid]):
                raise Wrong(f"user {uid} has {held[uid]} of {self.store.limit} places in the store")
        if self.store.limit and not self.store.kept and any(p.connected and p.ring for p in self.programs):
            raise Wrong("no ring is stored")
        if len(right) == 1:
            self._look_at_files(right[0])
        self._note(f"  looked: {len(right)} possible worlds, events {list(right[-1].fields)}")

    def _look_at_files(self, model: Model) -> None:
        """No more than the instances and histograms need."""
        names = [name for _, folders, files in os.walk(self.folder) for name in (*folders, *files)]
        spares = sum(i.spare is not None for i in model.instances.values())
        hists = sum(len(i.hist) for i in model.instances.values())
        found = [sum(name.startswith(kind) for name in names) for kind in ("buffer.", "cpu", "hist.")]
        most = [len(model.instances), CPUS * (len(model.instances) + spares), hists + self._refused_hists]
        if any(a > b for a, b in zip(found, most, strict=True)):
            raise Wrong(f"buffers, their files, histograms: {found}, at most {most} are needed: {names}")

    # Steps

    def _pick(self, number: int, connected: bool = True) -> Program | None:
        found = [p for p in self.programs if p.connected == connected]
        if connected:
            found = [p for p in found if not p.is_unknown and not self._waits(p)]
        return found[number % len(found)] if found else None

    def _waits(self, program: Program) -> bool:
        """The daemon has records of its socket that wait, and so does all that comes behind them."""
        return bool(self.models[-1].programs[program.pid].waiting)

    def _program(self, user: int, *_: int) -> None:
        if len(self.programs) == MOST_PROGRAMS:
            return
        self._open(self._new_program(USERS[user % len(USERS)]))

    def _new_program(self, uid: int) -> Program:
        program = Program(self.machine.start(uid), uid)
        self.programs.append(program)
        self.each(lambda m: m.programs.setdefault(program.pid, ModelProgram(uid)))
        return program

    def _open(self, program: Program) -> bool:
        is_full = self._connect_program(program)
        error, _ = self._ask(program.answers, "mmap_status")
        if is_full:
            expect("connection", error, ["ended"])
        expect("why it is refused", program.answers.errno(), errno.EMFILE if is_full else None)
        if error is not None:
            self._abandon(program)
            return False
        program.map_status()
        return True

    def _connect_program(self, program: Program) -> bool:
        """Whether its user has too many connections."""
        is_full = self._of_user(program, lambda p: p.connected) >= MOST[Resource.CONNECTIONS]
        self.reached["too many connections"] += is_full
        program.answers = self._connect(program.pid, program.uid)
        return is_full

    def _of_user(self, program: Program, number: Callable[[Program], int]) -> int:
        """The sum over the other programs of its user; 0 for root."""
        others = (p for p in self.programs if p is not program and p.uid == program.uid != 0)
        return sum(map(number, others))

    def _abandon(self, program: Program) -> None:
        """It could not do what it must: it ends."""
        self.reached["a program gives up"] += 1
        self._end_program(program)

    def _end_program(self, program: Program) -> None:
        if self._waits(program):
            self._gather()
        if self.models[-1].programs[program.pid].orphan is not None:  # the daemon looks whether it lives
            self.machine.pass_time(LOOK_AGAIN_NS)
        self._end_process(program)
        self._pump_to(partial(self._gone, program.pid))

    def _end_process(self, program: Program) -> None:
        self.machine.processes.pop(program.pid, None)
        program.end()
        self.programs.remove(program)

    def _gone(self, pid: int, model: Model) -> None:
        if pid in model.programs:
            model.gone(pid, waits=self._live.gathering)

    def _register(self, which: int, event: int, other: int, cut: int) -> None:
        program = self._pick(which)
        if program is None:
            return
        event %= len(NAMES)
        fields = fields_of(event, other=other % 8 == 0)
        self._do_register(program, NAMES[event], fields, cut if cut % 4 == 0 else 0)

    def _do_register(self, program: Program, name: str, fields: str, cut: int = 0) -> bool:
        command = f"{name} {fields}"
        if program.is_early and command not in program.commands:
            program.commands.append(NO_EVENT)
            program.indexes.append(0)
            self._introduce(program, {len(program.commands) - 1: command}, ring=False)
            return program.commands[-1] == command
        is_full = self._has_too_many(program, program.indexed)
        error, result = self._ask(
            program.answers,
            "DIAG_IOCSREG",
            {"name_args": command},
            cut=cut,
            after=lambda m: m.register(program.pid, name, fields),
        )
        if is_full:
            expect("error of too many registrations", error and error[0], errno.EMFILE)
        self._note_answer(program, command, error)
        if error is None:
            if command not in program.commands:
                program.commands.append(command)
                program.indexes.append(0)
            index = program.commands.index(command)
            program.indexes[index] = result[b"status_index"]
            expect("write_index", result[b"write_index"], index)
            program.indexed = max(program.indexed, index + 1)
            return True
        self.reached[f"register errno {error[0]}"] += 1
        self._keep(
            lambda m: is_full or _refuses(program.pid, name, fields, error[0], m),
            f"{command} is refused: {error}",
        )
        return False

    def _note_answer(self, program: Program, command: str, error: Any) -> None:
        if error is None or error[0] != "ended":
            self.each(lambda m: m.note_answer(command, error and error[0]))

    def _has_too_many(self, program: Program, index: int) -> bool:
        """Whether its user's share refuses this registration; it is counted, whatever else becomes of it."""
        more = max(0, -(-(index + 1 - program.room) // AT_ONCE) * AT_ONCE)
        held = program.room + self._of_user(program, lambda p: p.room)
        is_full = program.uid != 0 and more > 0 and held + more > MOST[Resource.REGISTRATIONS]
        program.room += 0 if is_full else more
        self.reached["too many registrations"] += is_full
        return is_full

    def _learn(self, program: Program, index: int, command: str, error: Any, result: Any) -> bool:
        if error is None:
            expect("write_index", result[b"write_index"], index)
            program.refused.pop(index, None)
            program.commands[index], program.indexes[index] = command, result[b"status_index"]
        else:
            self.reached[f"register errno {error[0]}"] += 1
            program.refused[index] = command
            program.commands[index], program.indexes[index] = NO_EVENT, 0
        return error is None

    def _early(self, user: int, event: int, number: int, how: int) -> None:
        """A program writes to a ring of its own before the daemon knows any of its events, and registers them
        with the ring, later, or while it ends."""
        waiting = [p for p in self.programs if p.is_unknown and p.connected]
        if waiting and user % 2:
            program, has_ring = waiting[user // 2 % len(waiting)], True
        elif len(self.programs) < MOST_PROGRAMS:
            program, has_ring = self._unborn(user, event, number), False
        else:
            return
        ends = how % 3 == 0 and not self.disk.may_refuse and not (program.uid and self._live.gathering)
        if ends and how // 3 % 2:
            self.machine.processes.pop(program.pid)
            self._has_strangers = True
            self._learn_of(program, is_stranger=True)
        is_full = not has_ring and self._connect_program(program)
        if ends:
            self._pump()  # it is accepted while it lives, unless it is a stranger
        if how // 6 % 4 == 0 and not self.disk.planned:
            self.disk.plan((KILL, TORN)[number % 2], number // 2 % 8)
        if is_full:
            self._end_program(program)
        elif ends:
            self.reached["early, and ends"] += 1
            self._introduce(program, program.all_commands(), ring=not has_ring, ends=True)
        elif not has_ring and how % 3 == 1:
            self.reached["early, and waits"] += 1
            if self._introduce(program, {}):
                self._emit_early(program, event, number >> 4)
                self._pump()
        elif self._introduce(program, program.all_commands(), ring=not has_ring):
            program.is_unknown = program.is_new = False
            self.reached["early, and registers"] += 1
            error, _ = self._ask(program.answers, "mmap_status")
            if error is None:
                program.map_status()
            else:
                self._abandon(program)

    def _hurry(self, user: int, event: int, number: int, *_: int) -> None:
        """A program registers, emits and ends, and a daemon two seconds behind sees its end first."""
        self._gather()
        self.machine.pass_time(GRACE_NS)
        self._pump()
        name = self._event_in(event)
        if name is None or len(self.models) > 1 or self.disk.planned or len(self.programs) == MOST_PROGRAMS:
            return
        program = self._new_program(USERS[user % len(USERS)])
        if not self.models[0].status(name) or not self._open(program) or self._has_too_many(program, 0):
            return
        for one in self.programs:
            self._go_on(one)
        fields, answers = self.models[0].fields[name], program.answers
        answers.send(
            answers.request("DIAG_IOCQLOCOFFSET"), [self._grave]
        )  # (a read ends behind a descriptor)
        answers.send(answers.request("DIAG_IOCSREG", {"name_args": f"{name} {fields}"}))
        self.numbers += 1
        record = Record(
            *(self.numbers, name, number % 5, self.machine.cpu, self.machine.now, program.pid),
            valid=True,
            in_ring=False,
            index=0,
        )
        data = payload(f"{name} {fields}", record.n, record.k, valid=True)
        answers.send(msgpack.packb(bytes(4) + data))
        self._end_process(program)
        self.machine.set_time(tick_ns=SEC // 2)
        self._pump(stalled=True)
        self.each(lambda m: m.register(program.pid, name, fields))
        self.each(lambda m: m.emit(program.pid, [record], ring=False))
        self.each(partial(self._gone, program.pid))
        self.machine.pass_time(0)
        self._pump()

    def _unborn(self, user: int, event: int, number: int) -> Program:
        """Without a connection."""
        uid = USERS[user % len(USERS)]
        program = Program(self.machine.start(uid), uid)
        program.make_ring(DATA_RINGS[number % 7 == 0], early=True)
        self._note_ring(program)
        for i in range(1 + number % 3):
            of = (event + i) % len(NAMES)
            program.refused[i] = f"{NAMES[of]} {fields_of(of, other=number // 3 % 8 == 0)}"
            program.commands.append(NO_EVENT)
            program.indexes.append(0)
        self.programs.append(program)
        for m in self.models:
            born = m.programs[program.pid] = ModelProgram(uid)
            born.ring, born.adopted, born.connected = [], False, False
        self._emit_early(program, event, number)
        return program

    def _emit_early(self, program: Program, event: int, number: int) -> None:
        for i in range(1 + number % 3):
            index = (event + i) % len(program.commands)
            self._emit_records(program, index, program.refused[index], number >> i, 2 + number % 2)

    def _introduce(
        self,
        program: Program,
        commands: dict[int, str],
        *,
        ring: bool = True,
        early: bool = True,
        ends: bool = False,
    ) -> bool:
        """Its ring, and registrations with their write_index, in one packet; nothing waits for an answer.
        ends: nor does the process. Whether the daemon has the ring; without it the program gives up."""
        answers, pid = program.answers, program.pid
        assert program.ring is not None
        data, fds = b"", list[int]()
        stages: list[tuple[int, Callable[[Any, Model], object]]] = []
        is_full = ring and self._has_no_room_for(program, program.ring.size)
        if ring:
            data, fds = answers.request("adopt_ring", {"early": 1} if early else {}), program.ring_fds
            refused = ([errno.ENOMEM], None) if is_full else None
            stages.append((answers.msgid, lambda answer, m: _adopts(pid, early, answer or refused, m)))
        full = {index: self._has_too_many(program, index) for index in commands}
        for index, command in commands.items():
            program.refused[index] = command
            data += answers.request("DIAG_IOCSREG", {"name_args": command, "write_index": index})
            registers = partial(
                _registers, pid, index, command, ([errno.EMFILE], None) if full[index] else None
            )
            stages.append((answers.msgid, registers))
        self.reached["inputs"] += len(stages)
        if ends:
            stages.append((0, lambda _, m: self._gone(pid, m)))
        answers.send(data, fds)
        found: dict[int, Any] = {}

        def then() -> None:
            if not ends:
                found.update(answers.read_all())
            self._stages = []
            self._keep(lambda m: all(change(found.get(number), m) for number, change in stages if number))

        if ends:
            self._end_process(program)
        else:
            self._asked = answers
        self._then, self._stages = then, stages
        self._pump()
        self._asked = None
        self._note(f"  early: {found!r}")
        if ends:
            self.each(partial(self._gone, pid))
            return False
        adopted = found.get(stages[0][0], (["ended"], None))[0] if ring else None
        if is_full:
            expect("ring", adopted and adopted[0], errno.ENOMEM)
        if adopted is not None or answers.ended:
            self.reached[f"adopt errno {adopted and adopted[0]}"] += 1
            self._abandon(program)
            return False
        for (index, command), (number, _) in zip(commands.items(), stages[ring:], strict=True):
            if full[index]:
                expect("error of too many registrations", (found[number][0] or [0])[0], errno.EMFILE)
            else:
                program.indexed = max(program.indexed, index + 1)
            self._learn(program, index, command, *found[number])
        return True

    def _ring(self, which: int, *_: int) -> None:
        program = self._pick(which)
        if program is not None:
            self._give_ring(program)

    def _give_ring(self, program: Program) -> bool:
        """Whether it has one."""
        if program.ring is not None or not program.has_socket:
            return program.ring is not None
        size = DATA_RINGS[program.pid % 2]
        is_full = self._has_no_room_for(program, size)
        program.make_ring(size, early=False)
        self._note_ring(program)
        self.each(lambda m: vars(m.programs[program.pid]).update(ring=[], adopted=False))
        error, _result = self._ask(program.answers, "adopt_ring", {}, fds=program.ring_fds)
        if is_full:
            expect("ring", error and error[0], errno.ENOMEM)
        if error is None:
            program.is_new = False
            self.each(lambda m: vars(m.programs[program.pid]).update(adopted=True))
        else:
            program.drop_ring()
            self.each(lambda m: setattr(m.programs[program.pid], "ring", None))
            self.reached[f"ring errno {error[0]}"] += 1
        return error is None

    def _has_no_room_for(self, program: Program, size: int) -> bool:
        """Whether its user's share refuses a ring."""
        stored = {p for name, p in self.rings.items() if name in self.store.kept}
        others = stored | {p for p in self.programs if p.connected and p.ring is not None}
        held = sum(DataRing.counted(p.ring_size) for p in others - {program} if p.uid == program.uid)
        is_full = (
            program.uid != 0
            and program not in stored
            and held + DataRing.counted(size) > MOST[Resource.RING_BYTES]
        )
        self.reached["too many rings"] += is_full
        return is_full

    def _emit(self, which: int, event: int, number: int, how: int) -> None:
        """By its ring, which the daemon reads later, or by its socket, at once."""
        program = self._pick(which)
        if program is not None:
            self._emit_some(program, event, number, how, pump=how % 16 > 7)

    def _emit_some(
        self, program: Program, event: int, number: int, how: int, *, pump: bool, **kind: Any
    ) -> None:
        if not program.commands or program.is_unknown:
            return
        index = event % len(program.commands)
        if program.status is None or not program.status_of(index):
            return
        if program.ring is not None and program.ring.size == max(DATA_RINGS):
            self.reached["a data ring skips"] += program.ring.has_skipped
            for _ in range(how // 8 % 32):  # to where it skips
                program.ring.refuse(index, 60_000)
        self._emit_records(program, index, program.commands[index], number, how, **kind)
        if pump:
            self._pump()

    def _emit_records(
        self,
        program: Program,
        index: int,
        command: str,
        number: int,
        how: int,
        text: bytes = b"ab",
        stops: int = 0,
    ) -> None:
        in_ring = program.ring is not None and how % 8 > 1
        cpu, name = how % CPUS if in_ring else self.machine.cpu, command.split()[0]
        packet, sent = b"", list[Record]()
        for i in range(1 + number % 8):
            self.numbers += 1
            self.reached["inputs"] += 1
            self.machine.pass_time(100)
            n, k, now = self.numbers, (number >> 3) % 5, self.machine.now
            valid = TEXT not in command or (number + i) % 16 > 0
            record = Record(n, name, k, cpu, now, program.pid, valid=valid, in_ring=in_ring, index=index)
            data = payload(command, n, k, valid=valid, text=text)
            if not in_ring:
                packet += msgpack.packb(index.to_bytes(4, "little") + data)
                sent.append(record)
            elif program.ring is not None and program.ring.write(
                index, data, now, program.pid, cpu, stops=stops
            ):
                for m in self.models:
                    m.emit(program.pid, [record], ring=True)
                if stops:
                    self._learn_of(program, stopped=-n if stops == 2 else n)
            else:
                assert program.ring is not None
                program.ring.lose(index)
                for m in self.models:
                    m.programs[program.pid].lost[index] += 1
                self.reached["data ring full"] += 1
        if in_ring:
            return
        if not self._live.gathering:
            program.answers.send(packet)
            self._pump_to(lambda m: m.emit(program.pid, sent, ring=False))
        elif program.has_socket and not any(map(self._waits, self.programs)):
            # One program's wait at a time, since the order of two is not known.
            self.reached["a record over the socket waits"] += 1
            program.answers.send(packet)
            self.each(lambda m: m.emit(program.pid, sent, ring=False, waits=True))
            self._pump()

    def _glut(self, which: int, event: int, number: int, how: int) -> None:
        """More than its data ring holds, and then perhaps the end of the daemon, or of the program."""
        program = self._pick(which)
        if program is None or not program.commands or not self._give_ring(program) or program.ring is None:
            return
        program.ring.fill(event % len(program.commands), number % 256)
        for more in range(2):
            self._emit_some(program, event + more, number | 7, how & ~1 | 2, pump=False)
        if how % 4 > 1:
            self._pump()
        match how // 4 % 8:
            case 0:
                self._restart(number, how >> 5)
            case 1:
                self._die()
            case 2 if program in self.programs:
                self._end_program(program)

    def _note_ring(self, program: Program) -> None:
        assert program.ring is not None
        program.ring_size = program.ring.size
        self.rings[str(program.ring_name)] = program

    def _stop(self, which: int, event: int, number: int, how: int) -> None:
        """A thread stops in the middle of a record, or continues."""
        program = self._pick(which, connected=how % 4 > 0)
        if program is None:
            return
        if self.models[-1].programs[program.pid].stopped:
            self._go_on(program)
            self._pump()
        elif self._give_ring(program):
            self.reached["a thread stops"] += 1
            self._emit_some(
                program, event, 8 * number, 6 + how % 2, pump=how % 16 > 7, stops=1 + (how % 8 == 7)
            )

    def _go_on(self, program: Program) -> None:
        if program.ring is not None:
            program.ring.commit()
            self._learn_of(program, stopped=0)

    def _write(self, *_: int) -> None:
        self._pump()

    def _place(self, which: int | str) -> tuple[str, str]:
        """An instance, and the beginning of its paths."""
        names = sorted(set.intersection(*(set(m.instances) for m in self.models)))
        name = which if isinstance(which, str) else names[which % len(names)]
        return name, f"instances/{name}/" if name else ""

    def _event_in(self, number: int) -> str | None:
        names = sorted(set.intersection(*(set(m.fields) for m in self.models)))
        return names[number % len(names)] if names else None

    def _change(
        self,
        where: int | str,
        file: str,
        text: str,
        change: Callable[[Instance], object],
        truncate: bool = True,
    ) -> bool:
        """Write to a file of an instance."""
        name, at = self._place(where)

        return self._write_file(at + file, text, lambda m: change(m.instances[name]), truncate)

    def _turn(self, where: int | str, name: str, kind: str, *, on: bool) -> bool:
        """Enable an event in an instance, or add a trigger; or the opposite."""
        file, text = ("trigger", "!" * (not on) + TRIGGERS[kind]) if kind in TRIGGERS else (kind, "01"[on])
        file = f"events/user_events/{name}/{file}"
        return self._change(where, file, text, lambda i: i.turn(kind, name, on=on), kind == "enable")

    def _enable(self, where: int, event: int, on: int, *_: int) -> None:
        if name := self._event_in(event):
            self._turn(where, name, "enable", on=on % 4 > 0)

    def _off(self, where: int, *_: int) -> None:
        """All events of an instance, so that those without a program go."""
        self._change(where, "events/enable", "0", lambda i: i.enable.clear())

    def _filter(self, where: int, event: int, limit: int, *_: int) -> None:
        if name := self._event_in(event):
            k = limit % 5 if limit % 3 else None
            text = "0" if k is None else f"k > {k}"
            self._change(where, f"events/user_events/{name}/filter", text, lambda i: i.set_filter(name, k))

    def _hist(self, where: int, event: int, on: int, *_: int) -> None:
        self._trigger("hist", where, event, may_remove=on % 3 == 0)

    def _traceoff(self, where: int, event: int, *_: int) -> None:
        self._trigger("traceoff", where, event)

    def _snapper(self, where: int, event: int, *_: int) -> None:
        """Never fires, but needs a spare buffer."""
        self._trigger("snapper", where, event)

    def _trigger(self, kind: str, where: int, event: int, *, may_remove: bool = True) -> None:
        """Add it, or remove it where it is."""
        (inst, _), name = self._place(where), self._event_in(event)
        if name is None:
            return
        is_there = name in getattr(self.models[-1].instances[inst], kind)
        if is_there and not may_remove:
            return
        done = self._turn(inst, name, kind, on=not is_there)
        self._refused_hists += kind == "hist" and not done
        if kind == "snapper" and not done:  # the spare was made, and then there was no room for the rest
            self.models += _changed(self.models, lambda m: m.instances[inst].make_spare())

    def _switch(self, where: int, on: int, *_: int) -> None:
        turn = on % 3 > 0
        self._change(where, "tracing_on", "01"[turn], lambda i: setattr(i, "on", turn))

    def _set(self, where: int, which: int, value: int, *_: int) -> None:
        file = list(PLAIN)[which % len(PLAIN)]
        text, shown = list(PLAIN[file].items())[value % len(PLAIN[file])]
        self._change(where, file, text, lambda i: i.plain.__setitem__(file, shown))

    def _tgid(self, on: int, *_: int) -> None:
        turn = on % 4 > 0
        self._write_file("options/record-tgid", "01"[turn], lambda m: setattr(m, "record_tgid", turn))

    def _mkdir(self, which: int, *_: int) -> None:
        name = INSTANCES[1 + which % 2]
        if not any(name in m.instances for m in self.models) and self._tree(
            "mkdir", f"instances/{name}", after=lambda m: m.instances.__setitem__(name, Instance())
        ):
            self._set_size(name, 8)

    def _rmdir(self, which: int, *_: int) -> None:
        name = INSTANCES[1 + which % 2]
        if all(name in m.instances for m in self.models):
            self._tree("rmdir", f"instances/{name}", after=lambda m: m.instances.__delitem__(name))

    def _clear(self, where: int, *_: int) -> None:
        self._change(where, "trace", "", Instance.clear)

    def _snapshot(self, where: int | str, what: int, *_: int) -> None:
        code = (1, 1, 0, 2)[what % 4]
        has_pages = self.models[-1].instances[self._place(where)[0]].has_pages
        self.reached["a swap under a reader of pages"] += code == 1 and has_pages
        self._change(where, "snapshot", str(code), lambda i: i.snapshot(code))

    def _grep(self, where: int, *_: int) -> None:
        """Each file of an instance is opened for reading, read and closed: that changes nothing. (But for the
        files that are read to take records out.)"""
        at = self._place(where)[1]
        self._tree("read_file", at + "trace")
        files: list[str] = []
        folders = [at]
        while folders:
            listed = self._ask_all([("list_dir", folder.rstrip("/")) for folder in folders])
            entries = [
                (folder + entry.decode(), kind)
                for folder, (_, found) in zip(folders, listed, strict=True)
                for entry, kind in found
            ]
            files += [path for path, kind in entries if kind == b"f" and not path.endswith(CONSUMED)]
            folders = [path + "/" for path, kind in entries if kind == b"d" and path != "instances"]
        opened = self._ask_all([("open", path, os.O_RDONLY | os.O_NONBLOCK) for path in files])
        handles = [handle for error, handle in opened if error is None]
        self._ask_all([("read", handle, 4096) for handle in handles])
        self._ask_all([("close", handle) for handle in handles])
        self.reached["files read as by grep"] += len(handles)

    def _pipe(self, where: int, size: int, *_: int) -> None:
        """Consume some records: those are gone from the buffer."""
        inst, at = self._place(where)
        handle = self._tree("open", at + "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        if handle is None:
            return
        for m in self.models:
            m.instances[inst].exact = False
            m.instances[inst].disturbed = True
        self._tree("read", handle, 200 + size % 400)
        self._tree("close", handle)

    def _size(self, where: int | str, size: int, *_: int) -> None:
        """The buffer gets another size, or its sub-buffers do, and then it begins empty."""
        if size % 2 == 0:
            kb = 4 + 4 * (size % 3 > 0)
            self._change(where, "buffer_subbuf_size_kb", str(kb), lambda i: i.resize(kb))
            return
        inst = self._place(where)[0]
        for m in self.models:
            m.instances[inst].exact = m.instances[inst].spare_exact = False
            m.instances[inst].disturbed = True
        self._set_size(inst, 8 + 4 * (size % 3))

    def _set_size(self, instance: str, kb: int) -> None:
        for m in self.models:  # a kill may come between two cpus
            m.instances[instance].size = None
        self._change(instance, "buffer_size_kb", str(kb), lambda i: i.set_size(kb))

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

    def _kill(self, *_: int) -> None:
        self._die()

    def _manager(self, limit: int, *_: int) -> None:
        """The service manager keeps so many rings of the next daemons."""
        self._limit = (0, 1, 3, (8, 2)[limit // 4 % 2])[limit % 4]

    def _fall(self, which: int, *_: int) -> None:
        """A kill, and programs end with the daemon."""
        self._limit = self._limit or 8 * (which % 2)
        self._die([program for i, program in enumerate(self.programs) if which >> 1 + i & 1])

    def _storm(self, event: int, number: int, how: int, *_: int) -> None:
        """Programs fill their rings by turns, the daemon is killed, and they come back one after the other:
        their records are older and younger by turns, too."""
        self._gather()
        for which in range(2):
            if which >= len(self.programs):
                self._program(which)
                self._register(which, event + which, 1, 1)
            program = self._pick(which)
            if program is not None and self._give_ring(program) and (command := program.command(event)):
                self._turn("", command.split()[0], "enable", on=True)
        programs = [p for p in self.programs if p.has_socket and p.ring is not None]
        for i in range(3):
            for program in programs:
                self._emit_some(program, event, number + i, 8 * how + 2, pump=False)
        self._die()
        for program in list(self.programs):
            self._come_back(program)
            if program in self.programs:  # over its socket, while rings of others may come back
                self._emit_some(program, event, number, 8 * how, pump=False)

    def _vanish(self, event: int, *_: int) -> None:
        """An event loses its programs and its consumers, and another one may get what it had."""
        name = self._event_in(event)
        if name is None:
            return
        for program in list(self.programs):
            if any(command.split()[0] == name for command in program.commands):
                self._end_program(program)
        for inst in INSTANCES:
            for kind in (*TRIGGERS, "enable"):
                if all(name in m.fields and inst in m.instances for m in self.models):
                    self._turn(inst, name, kind, on=False)

    def _restart(self, which: int = 0, how: int = 0, *_: int) -> None:
        """An orderly end, and the next daemon. Nothing is kept open."""
        self._after = None
        unread = self._send_much(which) if how % 2 and not self.disk.planned else None
        programs = self.models[0].programs.values()
        is_read = not self._live.gathering or any(p.ended or p.orphan is not None for p in programs)
        self._note_missing()
        self._was_gathering = self._live.gathering
        self._live.close()
        self.daemon = None
        if unread is not None:
            self.machine.pass_time(0)
            self.each(unread)
        if is_read:  # events of ended programs stay for a moment
            self.models = _changed(self.models, Model.take_in, keeps=True)
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
        command = program.commands[index]
        if not program.status_of(index):
            self._turn("", command.split()[0], "enable", on=True)
        if not program.connected or not program.status_of(index):
            return None
        records, sent = list[Record](), b""
        while len(sent) < MUCH:
            self.numbers += 1
            record = Record(
                *(self.numbers, command.split()[0], 1, self.machine.cpu, self.machine.now, program.pid),
                valid=True,
                in_ring=False,
                index=index,
            )
            data = payload(command, record.n, record.k, valid=True, text=b"x" * 3000)
            sent += msgpack.packb(index.to_bytes(4, "little") + data)
            records.append(record)
        program.answers.send(sent)
        self.machine.set_time(tick_ns=2_000_000)
        self.reached["an end with full sockets"] += 1

        return lambda m: m.emit(program.pid, records, ring=False)

    def _look_at_descriptors(self) -> None:
        """A process would end here: objects in cycles close what they own, and nothing is left."""
        gc.collect()
        paths = [os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors() - self._kept()]
        if left := [path for path in paths if GRAVE not in path]:
            raise Wrong(f"descriptors left: {left}")

    def _back(self, which: int, how: int, *_: int) -> None:
        """One program, or all, finds the next daemon: registers as before, and hands its ring over."""
        program = self._pick(which, connected=False)
        for one in list(self.programs) if how % 3 else [program]:
            if one is not None and not one.connected:
                self._come_back(one)

    def _come_back(self, program: Program, *, damaged: bool = False) -> None:
        if program.damaged and not damaged:  # its daemon was killed before it saw the ring
            self._end_program(program)
            return
        program.disconnect()
        if not self._open(program):
            return
        self.each(lambda m: vars(m.programs[program.pid]).update(connected=True, events=[]))
        if program.is_early:
            self._come_back_early(program)
            return
        for command in program.commands:
            name, fields = command.split(" ", 1)
            if not self._do_register(program, name, fields):
                self._abandon(program)
                return
        for place in sorted(program.words.wanted):
            self._register_word(program, place)
        if program.ring is not None:
            self._note_return(program)
            if self._introduce(program, {}, early=False):
                program.is_new = False
                self._pump()

    def _note_return(self, program: Program) -> None:
        if program.is_new or self.machine.now > self._grace_ends - GRACE_NS + GATHER_NS:
            self.reached["a ring comes late"] += 1
            program.is_new = True  # this daemon has given it up
            self.each(lambda m: setattr(m, "is_late", True))
        else:
            self.reached["a ring comes back"] += 1

    def _come_back_early(self, program: Program) -> None:
        must_wait = self._live.gathering and self.machine.now < self._grace_ends - GRACE_NS + GATHER_NS - SEC
        self._note_return(program)
        program.is_unknown = True
        commands = program.all_commands()
        if self.numbers % 2 == 0 and not self.disk.may_refuse:
            self._introduce(program, commands)
        elif self._introduce(program, {}):
            must_wait &= not program.is_new and any(c != NO_EVENT for c in program.commands)
            if must_wait and not self._live.gathering:
                raise Wrong("rings are read before the last one has its events")
            for index, command in commands.items():
                self._introduce(program, {index: command}, ring=False)
                if program not in self.programs:
                    return
        if program in self.programs:
            program.is_unknown = program.is_new = False
            known = {command.split()[0] for command in program.commands}
            for place, (name, _) in sorted(program.words.wanted.items()):
                if name in known:
                    self._register_word(program, place)
                else:
                    program.words.give_up(place)
            self._pump()

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

    def _leave(self, which: int, how: int, event: int, number: int) -> None:
        """Its connection breaks, and the program lives on. A thread may be in the middle of a record, for
        which the daemon waits a second, until another one begins, or until the program connects again."""
        program = self._pick(which)
        if program is None:
            return
        self._gather()
        if program.ring is not None and how % 4:
            if not self.models[-1].programs[program.pid].stopped:
                self._emit_some(program, event, 8 * number, 6 + how % 2, pump=False, stops=1 + how // 4 % 2)
            self._emit_some(program, event + 1, number, 6 + how % 2, pump=False)
        program.disconnect()
        self._pump_to(lambda m: m.left(program.pid))
        expect("enable words without a connection", program.words.bits(), {})
        program.is_new = True
        if not self.models[-1].programs[program.pid].orphan:
            return
        self.reached["left within a record"] += 1
        if how % 4 == 1:
            self._come_back(program)
        elif how % 4 == 2:
            self._die()
        else:
            looks = 1 + LOOKS * (how // 8 % 2)
            if looks == 1:
                self._go_on(program)
            for _ in range(looks - 1):
                self.machine.pass_time(LOOK_AGAIN_NS)
                self._pump()
            self.machine.pass_time(LOOK_AGAIN_NS)
            self._pump_to(lambda m: m.let_go(program.pid))

    def _torn(self, which: int, at: int, *_: int) -> None:
        """A registration in two pieces, with time between them."""
        self._register(which, at, 1, 4 * at + 4)

    def _nonsense(self, which: int, *_: int) -> None:
        """Bytes that are no message end the connection, and no other."""
        program = self._pick(which)
        if program is not None and program.ring is None:
            program.answers.send(b"\xc1")
            self._after = lambda m: m.disconnected(program.pid)
            self._pump()
            program.answers.read()
            if not program.answers.ended:
                raise Wrong("it listens to nonsense")
            self._end_program(program)

    def _half(self, which: int, size: int, *_: int) -> None:
        """Programs of a user send half of a long message each, and what exceeds their share ends a
        connection; then the other half."""
        first = self._pick(which)
        if first is None:
            return
        self._gather()
        sent: list[tuple[Program, bytes]] = []
        held = 0
        for program in [p for p in self.programs if p.connected and not p.is_unknown and p.uid == first.uid]:
            self._go_on(program)
            self._pump()
            data = program.answers.request("x" * (1000 + size % 5000))
            held += len(data) - 1
            program.answers.send(data[:-1])
            if program.uid != 0 and held > MOST[Resource.MESSAGE_BYTES]:
                self.reached["too long messages"] += 1
                held -= len(data) - 1
                self._after = partial(Model.disconnected, pid=program.pid)
                self._pump()
                program.answers.read_all()
                expect("the end of too long a message", program.answers.errno(), errno.ENOBUFS)
                self._end_program(program)
            else:
                self._pump()
                sent.append((program, data[-1:]))
        for program, rest in sent:
            program.answers.send(rest)
            self._pump()
            answer = program.answers.read()
            expect("the error of both halves", answer and answer[0][0], errno.ENOSYS)

    def _crowd(self, user: int, number: int, how: int, *_: int) -> None:
        """More processes of a user connect than may wait, and one of root behind them."""
        uid = USERS[1 + user % 2]
        pids = [self.machine.start(uid) for _ in range(6 + number % 6)] + [self.machine.start(0)]
        crowd = self.crowd
        held = sum(p.connected for p in self.programs if p.uid == uid)
        for pid in pids:
            crowd.append(self._connect(pid, self.machine.processes[pid][0]))
        error = (0, errno.EMFILE, errno.ENOMEM)[how % 3]
        self.listeners[0].errors = [error] * (error > 0)
        crowd[-1].send(crowd[-1].request("DIAG_IOCQLOCOFFSET"))
        self._pump()
        if error == errno.ENOMEM:
            expect("connections without memory", [one.read() for one in crowd], [None] * len(crowd))
            self.machine.pass_time(ACCEPT_PAUSE_NS)
            self._pump()  # ends the pause
            self._pump()
        expect("the answer behind a crowd", crowd[-1].read(), (None, 8))
        for answers in crowd:
            answers.read_all()
        accepted = max(0, MOST[Resource.CONNECTIONS] - held)
        waiting = min(len(crowd) - 1 - (error == errno.EMFILE), DESCRIPTORS // 4)
        ends = [None] * (error == errno.EMFILE) + [0] * min(accepted, waiting)
        ends += [errno.EMFILE] * (len(crowd) - 1 - len(ends))
        expect("a crowd", [one.errno() if one.ended else 0 for one in crowd[:-1]], ends)
        texts = [params[1] for one in crowd for _, params in one.notices]
        many = sum(b"wait to be accepted" in text for text in texts)
        expect("connections that may not wait", many, len(crowd) - 1 - (error == errno.EMFILE) - waiting)
        self.reached[f"a crowd, errno {error}"] += 1
        self.reached["too many wait to be accepted"] += many > 0
        for answers in crowd:
            answers.close()
        crowd.clear()
        for pid in pids:
            del self.machine.processes[pid]
        self._pump()

    # Consumers

    def _attach(self, event: int, kind: int, which: int, where: int | str = 0) -> None:
        """A stream or a perf event of one event, or a stream of an instance's pages, by a program of its
        own."""
        name, program = self._event_in(event), self._pick(which)
        if program is not None and (command := program.command(event)):  # more often one with records to come
            name = command.split()[0]
        if name is None or len(self.consumers) == MOST_CONSUMERS:
            return
        self._gather()
        self.numbers += 1
        answers = self._connect(self._root, to_tree=True)
        made = Consumer(KINDS[kind % len(KINDS)], self.numbers, answers)
        full_name = f"user_events:{name}"
        if made.kind == "plugin" and any(c.kind == "plugin" and c.name == name for c in self.consumers):
            answers.close()
            return
        made.name = name
        self.consumers.append(made)
        asked: tuple[Any, ...] = "stream_open", {"events": [full_name], "size": STREAM_RING}
        reader, is_taken = partial(Reader, made.kind, name), False
        if made.kind == "pages":
            at, _ = self._place(where)
            self._turn(at, name, "enable", on=True)
            asked = "stream_open", {"instances": [at], "size": STREAM_RING, "pages": True}
            reader, is_taken = (
                partial(Reader, made.kind, NO_EVENT, at),
                self.models[-1].instances[at].has_pages,
            )
        elif made.kind == "plugin":
            asked = "write_file", PLUG_EVENTS, full_name.encode(), False
        elif made.kind != "stream":  # of perf
            of = {"perf": {"sample_period": 1, "data_pages": 1}, "count": {}}
            sampled = of.get(made.kind, {"sample_freq": 1 + event, "data_pages": 1})
            asked = "perf_event_open", {"name": full_name, "read_format": 0x10, **sampled}
        error, result = self._ask(answers, *asked, after=lambda m: m.attach(made.key, reader()))
        if error is None or error[0] == errno.EBUSY:
            expect("whether another has the pages", error is not None, is_taken)
        if error is not None:
            self.reached[f"attach errno {error[0]}"] += 1
            self._drop(made)
            return
        self.reached[f"attach {made.kind}"] += 1
        if made.kind != "plugin":
            made.handle = result[b"handle"]
            made.map_ring()
            for m in self.models:
                m.readers[
                    made.key
                ].consumer = f"{'stream' if made.kind == 'stream' else 'perf'}:{made.handle}"
        if made.kind == "pages":
            self._check_consumer(made)  # older records

    def _drop(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.end()

    def _consume(self, which: int, of: int, number: int, how: int) -> None:
        """It reads all that is there, often behind new records."""
        if consumer := self._some_consumer(which, of, number):
            if how % 4:
                self._emit_to(consumer, of, number, how, b"ab")
            self._pump()
            self._check_consumer(consumer)

    def _some_consumer(
        self, which: int, event: int, kind: int, kinds: Sequence[str] = KINDS
    ) -> Consumer | None:
        """Of one of these kinds, if there is one, or a new one."""
        if not any(one.kind in kinds for one in self.consumers):
            self._attach(event, kind, which)
        found = [one for one in self.consumers if one.kind in kinds] or self.consumers
        return found[which % len(found)] if found else None

    def _emit_to(self, consumer: Consumer, of: int, number: int, how: int, text: bytes) -> None:
        """Records of its event, by any program that has it, or registers it now."""
        name = consumer.name
        programs = [program for program in self.programs if program.connected and not program.is_unknown]
        found = [p for p in programs if any(c.split()[0] == name for c in p.commands)]
        if not found and programs:
            found = [programs[of % len(programs)]]
            if not self._do_register(found[0], name, self.models[-1].latest[name]):
                return
        if found:
            program = found[of % len(found)]
            if how % 2:
                self._give_ring(program)
            index = [command.split()[0] for command in program.commands].index(name)
            self._emit_some(program, index, number, how, pump=True, text=text)

    def _check_consumer(self, consumer: Consumer, *, ended: bool = False) -> None:
        is_full = False
        if consumer.kind == "pages":
            self._check_pages(consumer, ended=ended)
            return
        if consumer.kind == "stream":
            assert isinstance(consumer.ring, StreamRing)
            numbers, all_lost, is_full = consumer.ring.read(ended=ended)
        elif consumer.kind == "plugin":
            numbers, all_lost = self.machine.plug_in.got.pop(consumer.name.encode(), []), 0
            if ended and self.disk.dead:  # it was killed with the daemon
                return
        else:
            if ended:
                return
            _, values = self._ask(consumer.answers, "read", consumer.handle, 16)
            count, all_lost = struct.unpack("<QQ", values)
            self._keep(lambda m: m.readers[consumer.key].count == count, f"perf counts {count}")
            if not isinstance(consumer.ring, PerfRing):
                return
            numbers, is_full = consumer.ring.read()
        lost, consumer.lost = all_lost - consumer.lost, all_lost
        self._note(f"  {consumer.kind}: {numbers}, {lost} lost")
        self.reached[f"{consumer.kind} read"] += bool(numbers)
        self.reached[f"{consumer.kind} lost"] += bool(lost)
        due = [m.readers[consumer.key].due for m in self.models]
        self._keep(
            lambda m: m.readers[consumer.key].accepts(numbers, lost, is_full=is_full),
            f"a {consumer.kind} gets {numbers} and {lost} lost, must be {due}",
        )
        for m in self.models:
            m.readers[consumer.key].due.clear()
            m.readers[consumer.key].due_lost = 0

    def _check_pages(self, consumer: Consumer, *, ended: bool) -> None:
        """A page that is not full comes when it is asked for, unless the daemon has ended."""
        if not ended:
            self._ask(consumer.answers, "ready", consumer.handle)
        assert isinstance(consumer.ring, StreamRing)
        numbers, _, is_full = consumer.ring.read(ended=ended)
        self._note(f"  pages: {numbers}")
        self.reached["pages read"] += bool(numbers)
        if twice := consumer.seen.intersection(numbers):
            raise Wrong(f"pages have {sorted(twice)} again")
        consumer.seen.update(numbers)
        is_all = not (ended or is_full)

        def agrees(m: Model) -> bool:
            reader = m.readers[consumer.key]
            instance = m.instances[str(reader.instance)]
            return reader.accepts_pages(numbers, is_all=is_all and not instance.disturbed)

        due = [m.readers[consumer.key].due for m in self.models]
        self._keep(agrees, f"pages have {numbers}, must have {due}")
        for m in self.models:
            reader = m.readers[consumer.key]
            reader.due.clear()
            m.instances[str(reader.instance)].disturbed = not is_all

    def _consumers_end(self) -> None:
        """Their daemon has ended: they read the rest."""
        for consumer in self.consumers:
            if all(consumer.key in m.readers for m in self.models):
                self._check_consumer(consumer, ended=True)
                is_stream = consumer.kind in ("stream", "pages")
                self.reached["the rest of a stream"] += is_stream
                if is_stream and not consumer.is_told_the_end():
                    raise Wrong("a stream is not told its end")
            consumer.end()
        self.consumers.clear()

    def _detach(self, which: int, how: int, *_: int) -> None:
        """It closes its handle, or ends."""
        if not self.consumers:
            return
        consumer = self.consumers[which % len(self.consumers)]
        self._pump()  # its end is no operation, before which rings are read

        self._after = after = partial(_and_forget, lambda m: m.detach(consumer.key))
        if consumer.kind == "plugin":
            self._ask(
                consumer.answers, "write_file", PLUG_EVENTS, f"!user_events:{consumer.name}".encode(), False
            )
            self._check_consumer(consumer)
        elif how % 2:
            self._ask(consumer.answers, "close", consumer.handle)
        instance = self.models[-1].readers[consumer.key].instance
        self._drop(consumer)
        self._pump_to(after)
        if instance is not None:  # its pages are free
            self._attach(0, KINDS.index("pages"), 0, instance)

    def _flood(self, which: int, of: int, number: int, how: int) -> None:
        """More than the ring of a consumer holds."""
        consumer = self._some_consumer(which, of, number % 2, kinds=("stream", "perf"))
        if consumer is None:
            return
        for i in range(12):
            self._emit_to(consumer, of, number | 7, 3 + 8 * (i % 2), b"x" * 3500)
        if how % 4 and consumer in self.consumers:
            self._check_consumer(consumer)

    # Enable words, and memory that contradicts itself

    def _word(self, which: int, event: int, place: int, bit: int) -> None:
        """Register one, or unregister the one in that place."""
        program = self._pick(which)
        if program is None or (command := program.command(event)) is None:
            return
        words, place = program.words, place % EnableWords.NUMBER
        words.make()
        if place in words.registered:
            asked = words.asked(place, "disable")
            error, _ = self._ask(program.answers, "DIAG_IOCSUNREG", asked, fds=[words.fd])
            expect("error of unregistering", error, None)
            words.registered.discard(place)
            words.wanted.pop(place)
            expect("a word that is unregistered", words.bits().get(place, 0), 0)
        else:
            name = command.split()[0]
            words.wanted[place] = name, EnableWords.BITS[bit % 4]
            self._register_word(program, place)

    def _register_word(self, program: Program, place: int) -> None:
        words = program.words
        command = next(c for c in program.commands if c.split()[0] == words.wanted[place][0])
        is_full = program.uid != 0 and (
            len(words.registered) + self._of_user(program, lambda p: len(p.words.registered))
            >= MOST[Resource.ENABLERS]
            or (self._of_user(program, lambda p: len(p.words.registered) > 0) > 0 and not words.registered)
        )
        asked = {"name_args": command} | words.asked(place, "enable")
        has_too_many = self._has_too_many(program, program.indexed)
        error, _ = self._ask(program.answers, "DIAG_IOCSREG", asked, fds=[words.fd])
        wanted = errno.EMFILE if has_too_many else errno.ENOMEM if is_full else None
        expect("error of a word", error and error[0], wanted)
        self._note_answer(program, command, error)
        if error is None:
            words.registered.add(place)
            self.reached["enable word"] += 1
        else:
            words.give_up(place)
            self.reached["too many enable words"] += 1

    def _corrupt(self, which: int, what: int, noise: int, how: int) -> None:
        """A program damages its ring, now or between two daemons: that ends its connection, and no more."""
        program = self._pick(which)
        if program is None or program.ring is None:
            return
        self._gather()
        self._go_on(program)
        self._pump()
        kind = DataRing.DAMAGES[what % len(DataRing.DAMAGES)]
        program.damaged = True
        must_end = program.ring.damage(kind, noise)
        self.reached[kind] += 1
        if how % 3 == 0:
            self._die()
            self._come_back(program, damaged=True)
            self._gather()
        if program in self.programs:
            self._after = lambda m: m.disconnected(program.pid)
            self._pump()
            program.answers.read()
            if must_end:
                expect(f"end of a ring, {kind}", program.answers.errno(), errno.EPROTO)
            self._end_program(program)
        self._pump()

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

    def _delete(self, which: int, event: int, *_: int) -> None:
        program = self._pick(which)
        if program is not None:
            name = NAMES[event % len(NAMES)]
            error, _ = self._ask(program.answers, "DIAG_IOCSDEL", name)
            if error is None:
                raise Wrong(f"{name} is deleted with {self.models[-1].status(name)}")


def _adopts(pid: int, early: bool, answer: Any, m: Model) -> bool:
    program = m.programs[pid]
    if early:
        program.connected, program.events, program.waits_no_more = True, [], False
    if answer is None or answer[0] is None:
        program.adopted, program.early = True, early
        program.orphan = None
        m.count_lost(program)
    else:
        program.adopted = program.orphan is not None
    return True


def _registers(pid: int, index: int, command: str, refused: Any, answer: Any, m: Model) -> bool:
    """False: this world gives another answer. Without one it decides. refused: the answer that must come."""
    is_answered = answer is not None
    answer = answer or refused
    name, fields = command.split(" ", 1)
    if answer is None or answer[0] is None:
        has_others = m.fields.get(name, fields) != fields
        is_accepted = m.register(pid, name, fields, index)
        m.note_answer(command, None if is_accepted else errno.EADDRINUSE if has_others else errno.EMFILE)
        return is_accepted or not is_answered
    m.note_answer(command, answer[0][0])
    if refused is not None:
        m.programs[pid].waits_no_more = True
        return True
    m.have(pid, index, "")
    return _refuses(pid, name, fields, answer[0][0], m)


def _refuses(pid: int, name: str, fields: str, number: int | str, m: Model) -> bool:
    """Whether a registration has this error in that world."""
    uid = m.programs[pid].uid
    if number == errno.EADDRINUSE:
        return m.fields.get(name, fields) != fields
    if number == errno.EMFILE:
        return not m.make_room(uid, name, fields)
    if number == errno.ENOSPC:
        m.make_room(uid, name, fields)
    return True


def _and_forget(change: Callable[[Model], object], model: Model) -> object:
    """Events that nothing needs any more go with it."""
    result = change(model)
    model.forget_unused()
    return result


def _changed(
    models: list[Model], change: Callable[[Model], object], *, keeps: bool = False, only_room: bool = False
) -> list[Model]:
    """The same worlds after it. keeps: events that go with it are still there. only_room: what makes room for
    an event has gone, and that event has not come."""
    models = [model.copy() for model in models]
    for model in models:
        model.keeps, model.only_makes_room = keeps, only_room
        change(model)
        model.keeps = model.only_makes_room = False
    return models


def _different(models: list[Model]) -> list[Model]:
    """The last of those that are equal; few have the same outline."""
    found: list[Model] = []
    by_outline: dict[object, list[Model]] = {}
    for model in reversed(models):
        alike = by_outline.setdefault(model.outline(), [])
        if model not in alike:
            alike.append(model)
            found.append(model)
    return found[::-1]


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
