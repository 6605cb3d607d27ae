"""The daemon of a world and what every step needs: to pump it, to ask it, to find programs and instances."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.simulation.disk import ERRORS, Disk, Killed
from tests.simulation.doubts import Doubts, unless_refused
from tests.simulation.machine import CPUS, DESCRIPTORS, Listener, Machine, Store
from tests.simulation.model import Model
from tests.simulation.parts import BUFFERS, HISTS, SETTINGS, SYNTHETIC, Record, Texts, Wrong, expect
from tests.simulation.programs import Answers, Consumer, Program, descriptors, payload
from utracefs_protocol.errors import TraceError
from utracefsd.daemon import GATHER_NS, GRACE_NS, HAND_OVER_NS, LOOK_AGAIN_NS, Daemon, DaemonOptions
from utracefsd.events.notifier import ACKNOWLEDGE_NS
from utracefsd.machine._machine import monotonic_ns

NAMES = ["e0", "e1", "e2", "e3", "e4", "e5"]
USERS = [0, 1001, 1002]
SEC = 1_000_000_000
MOST_GRAVES = 500
"""Descriptors of dead daemons until garbage is collected."""
GRAVE = "utracefs-grave"
IN_MEMORY = {"hist-in-memory": HISTS, "buffer-in-memory": BUFFERS}
"""Messages that say it: the next daemon will not have these."""
NEVER = {"buffer-lost", "snapshot-guessed", "state-file-replaced", "state-set-aside", "trigger-lost"}
"""Messages of files that a daemon cannot use: no kill leaves such."""


class _Log(logging.Handler):
    """Counts the daemon's messages by their id."""

    def __init__(self, world: Base) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        id_: str = record.id  # type: ignore[attr-defined]
        self._world.reached["log " + id_] += 1
        if id_ in ("state-full", "state-written-again"):
            self._world.log_is_behind = id_ == "state-full"
        is_announced = id_ == "buffer-lost" and any(BUFFERS in m.in_memory for m in self._world.models)
        if id_ in NEVER and not is_announced:
            self._world.never.append(record.getMessage())
        for model in self._world.models:
            if id_ == "state-was-full":
                model.loose.add(SETTINGS)
            elif id_ in IN_MEMORY:
                model.in_memory.add(IN_MEMORY[id_])
            elif id_ == "hist-without-memory":
                model.drop_records()


def _nothing(_: Model) -> None: ...


class Base(Doubts):
    """A daemon with its machine, disk and clients."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
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
        self.programs: list[Program] = []
        self.consumers: list[Consumer] = []
        self.admin: Answers | None = None
        self.numbers = 0
        self.daemon: Daemon | None = None
        self._then: Callable[[], object] | None = None
        """Called behind what a program has sent, before rings are taken in."""
        self._begun: list[tuple[int, Callable[[Any, Model], object]]] = []
        """Changes that may happen in this step, in this order: the number of the request, or 0, and the
        change, which gets its answer, or None."""
        self._ports = select.poll()
        """Shows which port of the daemon has work."""
        self._grace_ends = 0
        self._in_grace = False
        """Programs may still come back to their events."""
        self._refused_hists = 0
        """By this daemon; the file of one goes with the next line of the log."""
        self.log_is_behind = False
        """The daemon had no room for it, and keeps the files that it names."""
        self._opened_counts = 0
        """Files `event_counts`, by this daemon."""
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

    def collect(self) -> None:
        """Sockets and files of daemons that died, whose numbers are no longer theirs."""
        with self._logged():
            gc.collect()

    def _note(self, text: str) -> None:
        self.journal.append(text)

    def _start(self) -> None:
        """Until it is up: a start may be killed, and then there is another one."""
        for _ in range(9):
            self.disk.revive()
            self.store.limit = self._limit
            self.machine.cpu = (self.machine.cpu + 1) % CPUS
            self.log_is_behind = False
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
                self._refused_hists = self._opened_counts = 0
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

    def _grace_is_over(self) -> bool:
        """The daemon has yet to see it."""
        return self._in_grace and self.machine.now >= self._grace_ends

    @property
    def _live(self) -> Daemon:
        assert self.daemon is not None
        return self.daemon

    def _pump(self, *, stalled: bool = False) -> None:
        """Everything that was sent is taken in, and the model knows it; stalled: some of it."""
        daemon = self._live
        if is_over := self._grace_is_over():  # nothing stops as long as that
            for program in [program for program in self.programs if not program.connected]:
                self._go_on(program)
                if self.models[-1].programs[program.pid].early:
                    self._end_process(program)
                    self.each(partial(self._gone, program.pid))
        was_gathering = daemon.rings.gathering
        self._rest(stalled=stalled)
        while self._bits_are_written():
            self._rest(stalled=stalled)
        if was_gathering > daemon.rings.gathering and any(p.ended for p in self.models[-1].programs.values()):
            self.machine.pass_time(LOOK_AGAIN_NS)  # when it looks for programs that have ended
            self._rest(stalled=stalled)
        if self._then is not None:
            then, self._then = self._then, None
            then()
        if not daemon.rings.gathering:
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
            for port in (daemon.data, daemon.tracefs) if not daemon.rings.gathering else (daemon.data,):
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
                was_gathering = daemon.rings.gathering
                daemon.on_time(monotonic_ns())
                busy |= was_gathering and not daemon.rings.gathering  # its bell has rung
            if not busy:
                break
        else:
            if not stalled:
                raise Wrong("the daemon never rests")
        if self.disk.dead:  # compiled code may have passed the exception over
            raise Killed("an earlier call")

    def _bits_are_written(self) -> bool:
        """Whether programs have answered notifications about their tokens."""
        notified = [p for p in self.programs if p.connected and p.tokens.is_notified]
        for program in notified:
            program.answers.receive()
        found = [p for p in notified if p.tokens.unanswered and not p.tokens.is_slow]
        for program in found:
            self._acknowledge(program)
        return bool(found)

    def _acknowledge(self, program: Program) -> None:
        tokens = program.tokens
        tokens.unanswered = tokens.overdue = False
        program.answers.send(tokens.written(tokens.seq))
        self.reached["inputs"] += 1

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
        self._asked, change = answers, partial(unless_refused, after or _nothing)
        self._begun = [(answers.msgid, change)]
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
        waits = [(p, p.tokens.seq) for p in self.programs if p.tokens.is_slow and not p.tokens.overdue]
        received = answers.received
        self._pump()
        while found[0] is None and answers.received > received:  # it is larger than a socket's queue
            received = answers.received
            self._rest(stalled=False)
            found[0] = answers.read()
        answer = self._wait_for_bits(answers) if found[0] is None else found[0]
        if answer is found[0] and any(p.uid == 0 and p.tokens.seq > seq for p, seq in waits):
            raise Wrong(f"{method} {params!r:.100} does not wait for enablers")
        self._asked = None
        if answer is None and not answers.ended:
            raise Wrong(f"{method} {params!r:.100} is not answered")
        self._note(f"  {method}: {answer!r}")
        self._begun = []
        if after is not None and answer is not None and answer[0] is None:
            self._keep(lambda m: change(answer, m) is not False, f"{method} {params!r:.100} is accepted")
        return answer if answer is not None else (["ended"], None)

    def _wait_for_bits(self, answers: Answers) -> Any:
        """The answer of an operation, when programs have answered, or after a second."""
        late = [p for p in self.programs if p.tokens.unanswered and not (p.tokens.overdue and p.uid == 0)]
        if not late:
            return None
        self.reached["an operation waits for bits"] += 1
        in_time = self.numbers % 2 or self.machine.now < self._grace_ends <= self.machine.now + ACKNOWLEDGE_NS
        if in_time:
            for program in late:
                self._acknowledge(program)
        else:
            self.reached["bits are overdue"] += 1
            self.machine.pass_time(ACKNOWLEDGE_NS)
            for program in late:
                program.tokens.overdue = True
        self._pump()
        return answers.read()

    def _pump_to(self, after: Callable[[Model], object]) -> None:
        """Take in what has this effect."""
        self._may_do(after)
        self._pump()
        self.each(after)
        self._begun = []

    def _may_do(self, change: Callable[[Model], object]) -> None:
        """This change may happen from now on."""
        self._begun = [(0, partial(unless_refused, change))]

    def _gather(self) -> None:
        """Administrators wait until rings are back, or too late."""
        awaited = any(not p.connected or not p.ring or p.is_unknown for p in self.programs)
        ways = {"ends by time": GATHER_NS + HAND_OVER_NS}
        if not awaited and not self._has_strangers:
            ways = {"ends with programs": LOOK_AGAIN_NS} | ways
        for way, ns in ways.items():
            if self._live.rings.gathering:
                self.reached[f"gathering {way}"] += 1
                self.machine.pass_time(ns)
                self._pump()
                if self._live.rings.gathering:
                    raise Wrong(f"gathering rings never {way}")

    def _tree(self, method: str, *params: Any, after: Callable[[Model], object] | None = None) -> Any:
        error, result = self._ask_admin(method, *params, after=after)
        if error is not None:
            self.reached[f"{method} errno {error[0]}"] += 1
            return None
        return result if result is not None else True

    def _ask_admin(self, method: str, *params: Any, after: Callable[[Model], object] | None = None) -> Any:
        """(error, result) of a request of the administrator."""
        self._gather()
        if self.admin is None or self.admin.ended:
            self.admin = self._connect(self._root, to_tree=True)
        return self._ask(self.admin, method, *params, after=after)

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

    def _pick(self, number: int, connected: bool = True) -> Program | None:
        found = [p for p in self.programs if p.connected == connected]
        if connected:
            found = [p for p in found if not p.is_unknown and not self._waits(p)]
        return found[number % len(found)] if found else None

    def _waits(self, program: Program) -> bool:
        """The daemon has records of its socket that wait, and so does all that comes behind them."""
        return bool(self.models[-1].programs[program.pid].waiting)

    def _of_user(self, program: Program, number: Callable[[Program], int]) -> int:
        """The sum over the other programs of its user; 0 for root."""
        others = (p for p in self.programs if p is not program and p.uid == program.uid != 0)
        return sum(map(number, others))

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
            model.gone(pid, waits=self._live.rings.gathering)

    def _go_on(self, program: Program) -> None:
        if program.ring is not None:
            program.ring.commit()
            self._learn_of(program, stopped=0)

    def _record(
        self, program: Program, index: int, k: int, *, command: str = "", text: bytes = b"ab", **kind: Any
    ) -> tuple[Record, bytes]:
        """The next record of a program, and its payload. command: if that is not registered yet."""
        command = command or program.commands[index]
        self.numbers += 1
        where = {"cpu": self.machine.cpu, "valid": True, "in_ring": False} | kind
        name, now = command.split()[0], self.machine.now
        data = payload(command, self.numbers, k, valid=where["valid"], text=text)
        where |= {"pid": program.pid, "index": index, "size": len(data)}
        return Record(self.numbers, name, k, time=now, **where), data

    def _place(self, which: int | str) -> tuple[str, str]:
        """An instance, and the beginning of its paths."""
        names = sorted(set.intersection(*(set(m.instances) for m in self.models)))
        name = which if isinstance(which, str) else names[which % len(names)]
        return name, f"instances/{name}/" if name else ""

    def _event_in(self, number: int, *, of_programs: bool = False) -> str | None:
        """of_programs: none of the synthetic ones."""
        names = sorted(set.intersection(*(set(m.fields) for m in self.models)))
        names = names if not of_programs else [name for name in names if name not in SYNTHETIC]
        return names[number % len(names)] if names else None
