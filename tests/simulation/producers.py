"""Steps of programs: they connect, register, emit, and come back to the next daemon."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.base import NAMES, SEC, USERS
from tests.simulation.disk import KILL, TORN
from tests.simulation.doubts import adopts, refuses, registers
from tests.simulation.kills import Kills
from tests.simulation.machine import AT_ONCE, CPUS, MOST
from tests.simulation.model import Model
from tests.simulation.parts import Program as ModelProgram
from tests.simulation.parts import Record, Wrong, expect
from tests.simulation.programs import NO_EVENT, TEXT, EnableWords, Program, Tokens, fields_of, sent_record
from tests.simulation.rings import DATA_RINGS, DataRing
from utracefsd.daemon import GATHER_NS, GRACE_NS
from utracefsd.machine.shares import Resource

MOST_PROGRAMS = 5


class Producers(Kills):
    """Programs that do what they should."""

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
        wanted = errno.EMFILE if is_full else None
        error = None
        if program.by_proxy:
            error, _ = self._ask(program.answers, "open_for", self._identity(program))
            expect("error of open_for", error and error[0], wanted)
        if error is None:
            error, _ = self._ask(program.answers, "mmap_status")
        if is_full and not program.by_proxy:
            expect("connection", error, ["ended"])
            expect("why it is refused", program.answers.errno(), wanted)
        if error is not None:
            self._abandon(program)
            return False
        program.map_status()
        return True

    def _connect_program(self, program: Program) -> bool:
        """Whether its user has too many connections."""
        is_full = self._of_user(program, lambda p: p.connected) >= MOST[Resource.CONNECTIONS]
        self.reached["too many connections"] += is_full
        peer = (self._root, 0) if program.by_proxy else (program.pid, program.uid)
        program.answers = self._connect(*peer)
        return is_full

    def _identity(self, program: Program) -> dict[str, int]:
        uid, start_time = self.machine.processes[program.pid]
        return {"pid": program.pid, "start_time": start_time, "uid": uid, "gid": uid}

    def _proxy(self, user: int, what: int, *_: int) -> None:
        """A process of root opens a connection for a program, or asks for what it must not."""
        program = self._pick(what)
        if what % 3 > 0 and len(self.programs) < MOST_PROGRAMS:
            program = self._new_program(USERS[user % len(USERS)])
            program.by_proxy = True
            self.reached["open for"] += self._open(program)
        elif program is None or user % 2:
            gone = {"pid": self._root, "start_time": 1, "uid": USERS[1], "gid": USERS[1]}
            answers = self._connect(self._root)
            self.crowd.append(answers)
            error, _ = self._ask(answers, "open_for", gone)
            expect("error of open_for for no process", error and error[0], errno.ESRCH)
            answers.close()
            self.crowd.remove(answers)
        elif program.by_proxy or program.uid or program.room:
            error, _ = self._ask(program.answers, "open_for", self._identity(program))
            is_in_use = program.by_proxy or program.uid == 0
            expect(
                "error of a second open_for", error and error[0], errno.EBUSY if is_in_use else errno.EPERM
            )

    def _abandon(self, program: Program) -> None:
        """It could not do what it must: it ends."""
        self.reached["a program gives up"] += 1
        self._end_program(program)

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
            lambda m: is_full or refuses(program.pid, name, fields, error[0], m),
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
        ends = how % 3 == 0 and not self.disk.may_refuse and not (program.uid and self._live.rings.gathering)
        if ends and not has_ring and how // 3 % 2:
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

    def _unborn(self, user: int, event: int, number: int) -> Program:
        """Without a connection."""
        program = self._new_program(USERS[user % len(USERS)])
        program.make_ring(DATA_RINGS[number % 7 == 0], early=True)
        self._note_ring(program)
        for i in range(1 + number % 3):
            of = (event + i) % len(NAMES)
            program.refused[i] = f"{NAMES[of]} {fields_of(of, other=number // 3 % 8 == 0)}"
            program.commands.append(NO_EVENT)
            program.indexes.append(0)
        for m in self.models:
            vars(m.programs[program.pid]).update(ring=[], adopted=False, connected=False)
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
            stages.append((answers.msgid, partial(adopts, pid, early, refused)))
        full = {index: self._has_too_many(program, index) for index in commands}
        for index, command in commands.items():
            program.refused[index] = command
            data += answers.request("DIAG_IOCSREG", {"name_args": command, "write_index": index})
            refused = ([errno.EMFILE], None) if full[index] else None
            stages.append((answers.msgid, partial(registers, pid, index, command, refused)))
        self.reached["inputs"] += len(stages)
        if ends:
            stages.append((0, lambda _, m: self._gone(pid, m)))
        answers.send(data, fds)
        found: dict[int, Any] = {}

        def then() -> None:
            if not ends:
                found.update(answers.read_all())
            self._begun = []
            self._keep(lambda m: all(change(found.get(number), m) for number, change in stages if number))

        if ends:
            self._end_process(program)
        else:
            self._asked = answers
        self._then, self._begun = then, stages
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
        if program is not None and program.by_proxy:
            error, _ = self._ask(program.answers, "adopt_ring", {})
            expect("error of another's ring", error and error[0], errno.EPERM)
        elif program is not None:
            self._give_ring(program)

    def _give_ring(self, program: Program) -> bool:
        """Whether it has one."""
        if program.ring is not None or not program.has_socket or program.by_proxy:
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
            self._learn_of(program, adopted=True)
        else:
            program.drop_ring()
            self._learn_of(program, ring=None)
            self.reached[f"ring errno {error[0]}"] += 1
        return error is None

    def _note_ring(self, program: Program) -> None:
        assert program.ring is not None
        program.ring_size = program.ring.size
        self.rings[str(program.ring_name)] = program

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
        is_asked = program.by_proxy and how % 2 > 0 and not self._live.rings.gathering
        cpu = how % CPUS if in_ring else self.machine.cpu
        cpu = self.machine.cpu_of(program.pid) if is_asked else cpu
        packet, sent = b"", list[Record]()
        for i in range(1 + number % 8):
            self.reached["inputs"] += 1
            self.machine.pass_time(100)
            valid = TEXT not in command or (number + i) % 16 > 0
            kind = {"cpu": cpu, "valid": valid, "in_ring": in_ring}
            record, data = self._record(program, index, (number >> 3) % 5, command=command, text=text, **kind)
            if is_asked:
                self._write_record(program, index, record, data)
            elif not in_ring or program.ring is None:
                packet += sent_record(index, data)
                sent.append(record)
            elif program.ring.write(index, data, record.time, program.pid, cpu, stops=stops):
                for m in self.models:
                    m.emit(program.pid, [record], ring=True)
                if stops:
                    self._learn_of(program, stopped=-record.n if stops == 2 else record.n)
            else:
                program.ring.lose(index)
                for m in self.models:
                    m.programs[program.pid].lost[index] += 1
                self.reached["data ring full"] += 1
        if in_ring or is_asked:
            return
        if not self._live.rings.gathering:
            program.answers.send(packet)
            self._pump_to(lambda m: m.emit(program.pid, sent, ring=False))
        elif program.has_socket and not any(map(self._waits, self.programs)):
            # One program's wait at a time, since the order of two is not known.
            self.reached["a record over the socket waits"] += 1
            program.answers.send(packet)
            self.each(lambda m: m.emit(program.pid, sent, ring=False, waits=True))
            self._pump()

    def _write_record(self, program: Program, index: int, record: Record, data: bytes) -> None:
        """A proxy names the thread that writes."""
        content = index.to_bytes(4, "little") + data
        error, result = self._ask(
            program.answers,
            "write",
            content,
            program.pid,
            after=lambda m: m.emit(program.pid, [record], ring=False),
        )
        if record.valid:
            expect("a write", (error, result), (None, len(content)))

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
            self.each(lambda m: m.programs[program.pid].words.pop(place, None))
            expect("a word that is unregistered", words.bits().get(place, 0), 0)
        else:
            name = command.split()[0]
            words.wanted[place] = name, EnableWords.BITS[bit % 4]
            self._register_word(program, place)

    def _register_word(self, program: Program, place: int) -> None:
        words = program.words
        command = next(c for c in program.commands if c.split()[0] == words.wanted[place][0])
        is_full = program.uid != 0 and (
            self._has_too_many_enablers(program)
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
            name, _ = words.wanted[place]
            self.each(lambda m: m.programs[program.pid].words.update({place: name}))
            self.reached["enable word"] += 1
        else:
            words.give_up(place)
            self.reached["too many enable words"] += 1

    def _has_too_many_enablers(self, program: Program) -> bool:
        def held(of: Program) -> int:
            return len(of.words.registered) + len(of.tokens.bits)

        return program.uid != 0 and held(program) + self._of_user(program, held) >= MOST[Resource.ENABLERS]

    def _token(self, which: int, event: int, number: int, other: int) -> None:
        """Register one, also as the only reference on its event, or unregister it."""
        program = self._pick(which)
        if program is None:
            return
        tokens, token = program.tokens, number % Tokens.NUMBER
        tokens.is_slow = False
        if token in tokens.bits:
            self._unregister_token(program, token)
        else:
            event %= len(NAMES)
            tokens.wanted[token] = f"{NAMES[event]} {fields_of(event, other=other % 8 == 0)}"
            self._register_token(program, token)

    def _unregister_token(self, program: Program, token: int) -> None:
        pid, tokens, answers = program.pid, program.tokens, program.answers
        tokens.asked[answers.msgid + 1] = token
        error, _ = self._ask(
            answers,
            "DIAG_IOCSUNREG",
            {"disable_token": token},
            after=lambda m: m.programs[pid].tokens.pop(token),
        )
        expect("error of unregistering", error, None)
        tokens.wanted.pop(token)

    def _register_token(self, program: Program, token: int) -> None:
        pid, tokens, answers = program.pid, program.tokens, program.answers
        if not tokens.is_notified:
            expect("notify_enablers", self._ask(answers, "notify_enablers", {}), (None, None))
            tokens.is_notified = True
        command = tokens.wanted[token]
        name, fields = command.split(" ", 1)
        is_full = self._has_too_many_enablers(program)
        tokens.asked[answers.msgid + 1] = token
        asked = {"name_args": command, "enable_token": token}
        error, _ = self._ask(
            answers, "DIAG_IOCSREG", asked, after=lambda m: m.register(pid, name, fields, token=token)
        )
        if is_full:
            expect("error of too many tokens", error and error[0], errno.ENOMEM)
        self._note_answer(program, command, error)
        if error is None:
            self.reached["a token is registered"] += 1
            return
        tokens.wanted.pop(token)
        self.reached["too many tokens"] += is_full
        self._keep(
            lambda m: is_full or refuses(pid, name, fields, error[0], m), f"{command} is refused: {error}"
        )

    def _delete(self, which: int, event: int, *_: int) -> None:
        program = self._pick(which)
        if program is not None:
            name = NAMES[event % len(NAMES)]
            error, _ = self._ask(program.answers, "DIAG_IOCSDEL", name)
            if error is None:
                raise Wrong(f"{name} is deleted with {self.models[-1].status(name)}")

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
        for token in sorted(program.tokens.wanted):
            self._register_token(program, token)
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
        must_wait = (
            self._live.rings.gathering and self.machine.now < self._grace_ends - GRACE_NS + GATHER_NS - SEC
        )
        self._note_return(program)
        program.is_unknown = True
        commands = program.all_commands()
        if self.numbers % 2 == 0 and not self.disk.may_refuse:
            self._introduce(program, commands)
        elif self._introduce(program, {}):
            must_wait &= not program.is_new and any(c != NO_EVENT for c in program.commands)
            if must_wait and not self._live.rings.gathering:
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
            for token in sorted(program.tokens.wanted):
                self._register_token(program, token)
            self._pump()
