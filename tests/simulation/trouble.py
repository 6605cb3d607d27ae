"""Steps of programs that are in trouble, or make it: threads that stop, rings that are full or damaged,
messages that are torn or too long, too many connections.
"""

from __future__ import annotations

import errno
from functools import partial

from tests.simulation.base import SEC, USERS
from tests.simulation.machine import DESCRIPTORS, MOST
from tests.simulation.model import Model
from tests.simulation.parts import Wrong, expect
from tests.simulation.producers import MOST_PROGRAMS, Producers
from tests.simulation.programs import Program, sent_record
from tests.simulation.rings import DataRing
from utracefsd.connections.acceptor import ACCEPT_PAUSE_NS
from utracefsd.daemon import GRACE_NS, LOOK_AGAIN_NS
from utracefsd.machine.shares import Resource

LOOKS = 20
"""So often the daemon looks in vain for a record that a thread is writing, in the ring of a connection that
has ended."""


class Trouble(Producers):
    """Programs that stop, leave, flood and lie."""

    def _hurry(self, user: int, event: int, number: int, *_: int) -> None:
        """A program registers, emits and ends, and a daemon two seconds behind sees its end first."""
        self._gather()
        self.machine.pass_time(GRACE_NS)
        self._pump()
        name = self._event_in(event, of_programs=True)
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
        record, data = self._record(program, 0, number % 5, command=f"{name} {fields}")
        answers.send(sent_record(0, data))
        self._end_process(program)
        self.machine.set_time(tick_ns=SEC // 2)
        self._pump(stalled=True)
        self.each(lambda m: m.register(program.pid, name, fields))
        self.each(lambda m: m.note_answer(f"{name} {fields}", None))
        self.each(lambda m: m.emit(program.pid, [record], ring=False))
        self.each(partial(self._gone, program.pid))
        self.machine.pass_time(0)
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
                self._come_back(program)
            case 2 if program in self.programs:
                self._end_program(program)

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

    def _lag(self, which: int, event: int, number: int, how: int) -> None:
        """A program does not answer notifications while events are switched on and off."""
        if not any(p.tokens.bits for p in self.programs):
            for token in range(2):
                self._token(which, event, token, how)
        found = [p for p in self.programs if p.connected and p.tokens.bits]
        if not found:
            return
        program = found[which % len(found)]
        tokens = program.tokens
        tokens.is_slow = True
        for i in range(2 + number % 3):
            token = sorted(tokens.bits)[(event >> i) % len(tokens.bits)]
            name = tokens.wanted[token].split()[0]
            self._turn("", name, "enable", on=name not in self.models[-1].instances[""].enable)
        if how % 2 and token in tokens.bits:
            self._unregister_token(program, token)
        tokens.is_slow = how % 8 > 5
        self._pump()

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
            tokens = program.tokens
            program.answers.send(tokens.written(tokens.seq + 1) if tokens.is_notified else b"\xc1")
            self._may_do(partial(Model.disconnected, pid=program.pid))
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
                self._may_do(partial(Model.disconnected, pid=program.pid))
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
            self._may_do(partial(Model.disconnected, pid=program.pid))
            self._pump()
            program.answers.read()
            if must_end:
                expect(f"end of a ring, {kind}", program.answers.errno(), errno.EPROTO)
            self._end_program(program)
        self._pump()
