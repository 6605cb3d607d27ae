"""The model of a daemon: plain Python, which shares no code with the product.

The words are those of SECURITY.md and docs/:

- **exactly once, in order**: a record that a consumer took is in its buffer once, behind the older ones of
  its program, with the name, the fields and the cpu that it was emitted with, over any number of daemons;
- **nothing is lost silently**: records in a buffer and those overwritten in it are those recorded in it;
  recorded, filtered and lost of each consumer are those emitted while it was attached, and a record that
  found its data ring full is emitted and lost, in one daemon;
- **settings outlive a daemon**: enabled events, filters, triggers, histograms, instances, their switches;
- **an answer is a promise**: what was answered is true in the next daemon, whenever this one is killed. An
  operation in progress then was carried out or was not: so there are several models, until one look at the
  tree tells which of them is true;
- **a reader gets each record once**, in order, while it is attached, also when the daemon is killed; only a
  full ring loses records, and their number is known;
- **programs are isolated**: what one does or suffers changes nothing for another; a user's limits refuse him
  alone, and memory that contradicts itself ends its own program alone.
"""

from __future__ import annotations

import errno
import functools
import itertools
import re
from collections import Counter
from collections.abc import Sequence

from tests.simulation.parts import (
    ANY_LINE,
    BUFFERS,
    DROPPED,
    FILTERED,
    FIRST_ID,
    FREE_FIELDS,
    FTRACE,
    HISTS,
    KINDS,
    LINE,
    LOST,
    MANY,
    MOST_EVENTS,
    MOST_FIELDS,
    PLAIN,
    RECORDED,
    SETTINGS,
    SYNTHETIC,
    SYNTHETIC_FIELDS,
    Action,
    Instance,
    Part,
    Program,
    Reader,
    Record,
    Texts,
    Wrong,
    expect,
    place_of,
)


class Model(Part):
    SHARED = frozenset(["known"])  # by all possible worlds

    def __init__(self) -> None:
        self.programs: dict[int, Program] = {}
        self.instances: dict[str, Instance] = {"": Instance()}
        self.instances[""].set_size(8)
        self.fields: dict[str, str] = {}
        """Events that exist: their fields."""
        self.latest: dict[str, str] = {}
        """Also of events that are gone."""
        self.owners: dict[str, int] = {}
        """The same of their users: each has at most MOST_EVENTS and MOST_FIELDS, root any number."""
        self.ids: dict[str, int] = {}
        """The ids of events that a look has seen."""
        self.refused: dict[str, int] = {}
        """Errors of registrations, by command, the latest last."""
        self.idle: list[str] = []
        """Events without a program, first those without one for longest."""
        self.released: list[str] = []
        """By the latest connections that ended, in this order."""
        self.awaited: set[str] = set()
        """Events that stay some seconds after a restart without a program."""
        self.readers: dict[int, Reader] = {}
        self.unsure: set[int] = set()
        """Numbers of records whose event was removed: shown with an unknown type."""
        self.emitted: Counter[str] = Counter()
        self.lost_in_rings: Counter[str] = Counter()
        self.counts: Counter[tuple[str, str, str]] = Counter()
        """By event, consumer, and RECORDED, FILTERED or LOST. Readers have some of RECORDED as LOST."""
        self.vague: set[str] = set()
        """Synthetic events whose records are not known since the last look."""
        self.either: Counter[tuple[str, str]] = Counter()
        """By event and consumer: of LOST or FILTERED the part that may be the other."""
        self.record_tgid = False
        self.tgids: set[bytes] = set()
        """Lines of `saved_tgids`: none goes, but a daemon that starts with the option off has none."""
        self.is_late = False
        """A ring came back when others had been read already: its records may be late."""
        self.keeps = False
        """Events without a reference are still there."""
        self.only_makes_room = False
        """For an event, which is not there yet."""
        self.in_memory: set[str] = set()
        """Things that the daemon said a restart would lose: HISTS, BUFFERS; SETTINGS when the next one says
        that its predecessor had no room for the latest."""
        self.loose: set[str] = set()
        """Things that may have been lost then: the next look tells."""
        self.known: dict[int, Record] = {}
        """All that were emitted, in any of the possible worlds."""

    def outline(self) -> object:
        """A small part of the contents, in which most different models differ."""
        instances = [
            (name, i.on, len(i.kept), i.size, len(i.enable), *i.filters.values(), *i.hist)
            for name, i in self.instances.items()
        ]
        programs = [(pid, len(p.events), len(p.ring or ()), p.early) for pid, p in self.programs.items()]
        return *instances, *programs, *self.fields, *self.awaited, self.record_tgid

    # Consumers

    def status(self, name: str) -> int:
        status = FTRACE * any(i.attaches(name) for i in self.instances.values())
        for reader in self.readers.values():
            status |= reader.bit * (reader.name == name)
        return status

    def _in_ftrace(self) -> set[str]:
        return {
            name
            for i in self.instances.values()
            for names in (i.enable, i.hist, i.traceoff, i.snapper, i.actions)
            for name in names
        }

    def forget_unused(self) -> None:
        """An event is removed with its last reference."""
        if self.keeps:
            return
        left = self._without_program() - self.awaited
        for name in left - self._in_use() if left else ():
            self._remove(name)

    def _without_program(self) -> set[str]:
        left = self.fields.keys() - SYNTHETIC
        for p in self.programs.values():
            left.difference_update(p.events if p.connected else (), p.tokens.values(), p.orphan or ())
        if left != set(self.idle):
            self.idle = [name for name in self.idle if name in left]
            together = dict.fromkeys((*self.released, *self.fields))
            self.idle += [name for name in together if name in left and name not in self.idle]
        return left

    def _in_use(self, but_for: Sequence[str] = ()) -> set[str]:
        """By consumers, but for readers of these kinds."""
        return self._in_ftrace().union(r.name for r in self.readers.values() if r.kind not in but_for)

    def _remove(self, name: str) -> None:
        del self.fields[name]
        self.idle = [one for one in self.idle if one != name]
        self.awaited.discard(name)
        for reader in self._readers_of(name):
            reader.by_process.clear()
        for by_name in (self.ids, self.emitted, self.lost_in_rings):
            by_name.pop(name, None)
        for counts in (self.counts, self.either):
            for key in [key for key in counts if key[0] == name]:
                del counts[key]
        for i in self.instances.values():
            i.filters.pop(name, None)
            if (is_sure := i.attached.pop(name, None)) is not None:
                i.is_marked = is_sure or i.is_marked or None
            self.unsure.update(r.n for r in [*i.kept, *(i.spare or ())] if r.name == name)

    def _is_full(self, uid: int, fields: str) -> bool:
        found = [their for name, their in self.fields.items() if self.owners[name] == uid]
        has_too_many = _counted(fields) and _counted(fields) + sum(map(_counted, found)) > MOST_FIELDS
        return uid != 0 and (len(found) >= MOST_EVENTS or bool(has_too_many))

    def _may_go(self, uid: int) -> list[str]:
        """Events of that user that make room for others; a stream, or a file `event_counts`, gets them again
        when they come back."""
        idle = self._without_program() - self._in_use(but_for=("stream", "counts"))
        return [name for name in self.idle if name in idle and self.owners[name] == uid]

    def make_room(self, uid: int, name: str, fields: str) -> bool:
        """For one more event of its user; without success others have gone all the same."""
        while name not in self.fields and self._is_full(uid, fields):
            found = self._may_go(uid)
            if not found:
                return False
            # Others that were examined first come last the next time.
            asked = [one for one in self.idle[: self.idle.index(found[0])] if self.owners[one] == uid]
            self.idle = [one for one in self.idle if one not in asked] + asked
            self._remove(found[0])
        return True

    # Programs

    def register(
        self, pid: int, name: str, fields: str, index: int | None = None, token: int | None = None
    ) -> bool:
        """Whether it is accepted."""
        program = self.programs[pid]
        uid, events = program.uid, program.events
        is_accepted = self.fields.get(name, fields) == fields and self.make_room(uid, name, fields)
        if self.only_makes_room:
            return is_accepted
        if index is not None:
            self.have(pid, index, name if is_accepted else "")
        elif is_accepted and token is not None:
            program.tokens[token] = name
        elif is_accepted and name not in events:
            events.append(name)
        if is_accepted:
            self.owners[name] = self.owners[name] if name in self.fields else uid
            self.fields[name] = self.latest[name] = fields
        return is_accepted

    def note_answer(self, command: str, number: int | None) -> None:
        """The errno that a registration had."""
        self.refused.pop(command, None)
        if number is not None:
            self.refused[command] = number

    def have(self, pid: int, index: int, name: str) -> None:
        """A write_index means this event, or none."""
        events = self.programs[pid].events
        events += [""] * (index - len(events))
        events[index : index + 1] = [name]

    def emit(self, pid: int, records: list[Record], *, ring: bool, waits: bool = False) -> None:
        """Into its ring, or in one packet over its socket. waits: behind rings that may come back."""
        self.known.update((record.n, record) for record in records)
        program = self.programs[pid]
        if ring:
            assert program.ring is not None
            program.ring += records
        elif waits:
            program.waiting += records
        else:
            self.take_in()
            for record in records:
                self._take(record)

    @property
    def has_to_take_in(self) -> bool:
        return any(p.ring or p.lost or p.waiting or p.ended or p.has_waited for p in self.programs.values())

    def take_in(self) -> None:
        """All rings, oldest record first, then what came over sockets."""
        if not self.has_to_take_in:
            return
        self.take_rings()
        self.take_waiting()
        ended = [pid for pid, program in self.programs.items() if program.ended]
        if ended:
            self.released = [name for pid in ended for name in self.programs.pop(pid).release()]
            self.forget_unused()

    def take_waiting(self) -> None:
        for program in self.programs.values():
            for r in program.waiting:
                self._take(r)
            program.waiting = []

    def take_rings(self) -> None:
        found = []
        for i in self.instances.values():
            i.went_off = False
        for program in self.programs.values():
            taken = program.take()
            self.is_late |= program.has_waited and bool(taken)
            program.has_waited = program.adopted and bool(program.ring)
            found += taken
        for r in sorted(found, key=lambda r: r.time):
            if self.programs[r.pid].known[r.index : r.index + 1] == [r.name]:
                self._take(r)
        for pid, program in self.programs.items():
            if program.adopted:
                self.count_lost(pid)

    def count_lost(self, pid: int, *, is_early: bool = True) -> None:
        """The daemon reads how many records its ring had no room for: behind the records that it has, or when
        it gets the ring. Those of an early ring wait until all of their events are registered."""
        program = self.programs[pid]
        known = program.known
        if (
            is_early
            and program.early
            and not program.waits_no_more
            and max(program.lost, default=0) >= len(known)
        ):
            return
        for index, n in program.lost.items():
            name = known[index] if index < len(known) else ""
            if not self.status(name):
                continue
            self.emitted[name] += n
            self.lost_in_rings[name] += n
            for at, i in self.instances.items():
                if i.attaches(name):
                    is_off = name in i.enable and not i.on
                    self.counts[name, consumer_of(at), FILTERED if is_off else LOST] += n
                    self.either[name, consumer_of(at)] += n * i.went_off
            for reader in self._readers_of(name):
                self.counts[name, reader.consumer, LOST] += n
                reader.due_lost += n * (reader.kind == "stream")
                reader.by_process[pid, LOST] += n
        program.lost.clear()

    def _readers_of(self, name: str) -> list[Reader]:
        return [reader for reader in self.readers.values() if reader.name == name]

    def _take(self, r: Record) -> None:
        if SETTINGS in self.loose:
            self.unsure.add(r.n)  # older settings decide who keeps it
            self._blur(r.name)
        if not self.status(r.name) or r.name not in self.fields or (not r.valid and self._refuses(r.name)):
            return
        self.emitted[r.name] += 1
        made = list[Record]()
        for at, i in self.instances.items():
            if r.name in i.hist:
                i.hist[r.name][r.k] += 1
            is_kept = r.name in i.enable and i.on and not (r.name in i.filters and r.k <= i.filters[r.name])
            if i.attaches(r.name):
                self.counts[r.name, consumer_of(at), RECORDED if is_kept else FILTERED] += 1
            if is_kept:
                i.kept.append(r)
                for reader in self.readers.values() if i.has_pages else ():
                    if reader.instance == at:
                        reader.due.append(r.n)
            if r.name in i.traceoff and r.k == 3:
                i.went_off |= i.on
                i.on = False
            if r.name in i.actions:
                made += self._made_by(i, r)
        for reader in self._readers_of(r.name):
            self.counts[r.name, reader.consumer, RECORDED] += 1
            reader.due.append(r.n)
            reader.count += 1
            reader.by_process[r.pid, RECORDED] += 1
            reader.by_process[r.pid, "bytes"] += r.size
        for one in made:
            self._take(one)

    def _made_by(self, i: Instance, r: Record) -> list[Record]:
        """The synthetic record, which comes when all consumers have r."""
        action = i.actions[r.name]
        n = action.number(r, i.actions.get(action.matched))
        if action.target and (i.is_vague(r.name) or self.loose & {HISTS, SETTINGS}):
            self.unsure.add(n)
            self._blur(action.target)
        if not n:
            return []
        made = Record(
            n, action.target, r.k, r.cpu, r.time, r.pid, valid=True, in_ring=r.in_ring, index=-1, size=16
        )
        return [self.known.setdefault(n, made)]

    # Synthetic events

    def _blur(self, name: str) -> None:
        """Which records it has is not known, until the next look."""
        self.vague.add(name)
        for i in self.instances.values():
            if name in i.enable:
                i.exact, i.disturbed = False, True
            if name in i.actions:
                action = i.actions[name]
                action.is_vague = action.has_forgotten = True
                if action.target:
                    self._blur(action.target)
        for reader in self._readers_of(name):
            reader.is_vague = True

    def drop_records(self) -> None:
        """A histogram has no memory for its first record: any that has not counted one yet."""
        for i in self.instances.values():
            for action in i.actions.values():
                if not action.hits.total():
                    action.is_vague = action.has_forgotten = True

    def compose(self, name: str) -> bool:
        """False: there is one."""
        if name in self.fields:
            return False
        self.fields[name] = self.latest[name] = SYNTHETIC_FIELDS
        self.owners[name] = 0
        return True

    def is_used(self, name: str) -> bool:
        """By a consumer, or by an action."""
        actions = itertools.chain.from_iterable(i.actions.values() for i in self.instances.values())
        return self.status(name) > 0 or any(action.target == name for action in actions)

    def dissolve(self, names: Sequence[str]) -> bool:
        """Remove all of them, or none, because one is in use. Buffers that may have records of removed events
        are cleared; after a kill the events may still be there."""
        gone = [] if any(map(self.is_used, names)) else names
        for i in self.instances.values():
            if i.is_marked or any(name in i.attached for name in gone):
                i.snapshot(2)
                i.clear()
        if not self.only_makes_room:
            for name in gone:
                self._remove(name)
                for i in self.instances.values():
                    i.is_marked = False
        return gone == names

    def with_marks(self, names: Sequence[str]) -> list[Model]:
        """The worlds in which it is known which buffers a removal of these events clears."""
        found = [self]
        for at, i in self.instances.items():
            doubtful = [name for name in names if i.attached.get(name) is False]
            if i.is_marked is None or (doubtful and not i.is_marked):
                others = [one.copy() for one in found]
                for one in others:
                    for name in doubtful:
                        del one.instances[at].attached[name]
                    one.instances[at].is_marked = False
                for one in found:
                    one.instances[at].is_marked = True
                found += others
        return found

    def _refuses(self, name: str) -> bool:
        """A consumer looks at an invalid record: EFAULT. One that is off filters it unseen;
        `event_counts` counts it unseen."""
        return any(
            name == reader.name and reader.kind != "counts" for reader in self.readers.values()
        ) or any(
            (name in i.enable and (i.on or name in i.filters))
            or name in i.hist
            or name in i.traceoff
            or name in i.snapper
            or name in i.actions
            for i in self.instances.values()
        )

    def gone(self, pid: int, *, waits: bool = False) -> None:
        """It has ended; a daemon that reads its ring takes in the rest, as soon as all rings are back."""
        program = self.programs[pid]
        program.early, program.ended = False, True
        if not waits:
            self.take_in()
            return
        self.released = program.release()
        if program.ring is None or not program.adopted:
            del self.programs[pid]
            self.forget_unused()

    def disconnected(self, pid: int) -> None:
        self.take_in()
        self.released = self.programs[pid].release()
        self.programs[pid].connected = False
        self.forget_unused()

    def left(self, pid: int) -> None:
        """Its connection has ended, and it lives: the daemon waits for a record that a thread may write."""
        self.take_in()
        program = self.programs[pid]
        program.adopted = bool(program.ring)
        program.orphan = list(program.events) if program.ring else None
        self.disconnected(pid)

    def let_go(self, pid: int) -> None:
        """The record that `left` waits for has come, or comes too late."""
        self.take_in()
        program = self.programs[pid]
        self.released, program.orphan, program.adopted = list(program.known), None, False
        self.forget_unused()

    def attach(self, key: int, reader: Reader) -> None:
        self.readers[key] = reader
        if reader.instance is not None:
            i = self.instances[reader.instance]
            i.has_pages = i.disturbed = True
            i.exact = False

    def detach(self, key: int) -> None:
        if (reader := self.readers.pop(key, None)) is not None and reader.instance is not None:
            self.instances[reader.instance].has_pages = False

    # Daemons

    def with_older_tables(self, stored: list[int]) -> list[Model]:
        """Without room for settings a daemon may know fewer events of a stored ring: the others wait."""
        found = [self]
        older = stored if SETTINGS in self.loose | self.in_memory else ()
        for pid in [pid for pid in older if pid in self.programs]:
            if self.programs[pid].ring or self.programs[pid].lost:
                for n in range(len(self.programs[pid].known)):
                    other = self.copy()
                    program = other.programs[pid]
                    program.events, program.orphan, program.early = program.known[:n], None, True
                    found.append(other)
        return found

    def restart(self, living: set[int], stored: list[int]) -> None:
        """living: programs. stored: those whose rings the next daemon has from the store, in that order."""
        for counts in (self.emitted, self.lost_in_rings, self.counts, self.either):
            counts.clear()
        for key in list(self.readers):
            self.detach(key)
        self.idle, self.released = [], []
        self.loose |= self.in_memory
        for i in self.instances.values() if SETTINGS not in self.loose else ():
            i.removed_hist.clear()
        if not self.record_tgid:
            self.tgids.clear()
        self.awaited = self.fields.keys() - SYNTHETIC
        self.refused.clear()
        left = [*stored, *(pid for pid in self.programs if pid in living)]
        self.programs = {pid: self.programs[pid] for pid in left if pid in self.programs}
        for pid, program in self.programs.items():
            waits = pid in living or program.is_stranger
            program.connected, program.early = False, program.early and waits and pid in stored
            program.waiting, program.tokens, program.words = [], {}, {}
            program.has_waited = bool(program.stopped) or (program.has_waited and bool(program.ring))
            program.waits_no_more = False
            program.adopted = pid in stored
            program.orphan = list(program.known) if pid in stored else None
            program.ended = not waits
            if pid in stored:
                self.count_lost(pid, is_early=False)
        self._without_program()  # those of stored rings are idle later, when their programs have ended

    def grace_over(self) -> None:
        self.awaited.clear()
        for program in self.programs.values():
            if program.orphan is not None:  # it has not come back
                if program.is_stranger:
                    program.early, program.ended = False, True
                else:
                    program.orphan, program.adopted = None, False
        self.take_in()
        self.forget_unused()

    # Looks

    def check(self, texts: Texts) -> None:
        """Raises Wrong where the contents of the tree contradict this model. Instances without texts are not
        looked at."""
        if SETTINGS in self.loose:
            self._believe(texts)
        names = listed_events(texts)
        if set(names) != set(self.fields):
            raise Wrong(f"events {sorted(names)}, must be {sorted(self.fields)}")
        is_all = True
        if (found := set(texts["instances"].decode().split())) != set(self.instances) - {""}:
            raise Wrong(f"instances {sorted(found)}, must be {sorted(self.instances)}")
        for name, instance in self.instances.items():
            at = f"instances/{name}/" if name else ""
            if self.loose or at + "trace" in texts:
                self._check_instance(at, instance, texts)
            else:
                is_all = False
        expect("options/record-tgid", texts["options/record-tgid"], b"%d\n" % self.record_tgid)
        tgids = set(texts["saved_tgids"].splitlines())
        if self.tgids - tgids:
            raise Wrong(f"saved_tgids lacks {sorted(self.tgids - tgids)}")
        self.tgids = tgids
        refused = re.findall(
            r" declares .(.*?)., but .*\((\w+)\)$", texts["refused_events"].decode(), re.MULTILINE
        )
        expect("refused_events", refused, [(one, errno.errorcode[n]) for one, n in self.refused.items()])
        synthetic = [name for name in self.fields if name in SYNTHETIC]
        lines = "".join(f"{name}\t{SYNTHETIC_FIELDS}\n" for name in synthetic)
        expect("synthetic_events", texts["synthetic_events"].decode(), lines)
        ids = {event: int(texts[place_of(event) + "id"]) for event in self.fields}
        if min(ids.values(), default=FIRST_ID) < FIRST_ID or len(set(ids.values())) < len(ids):
            raise Wrong(f"ids are {ids}")
        expect("ids of events that were seen before", ids | self.ids, ids)
        self.ids = ids
        for event in self.fields:
            self._check_conservation(event, texts[place_of(event) + "stats"].decode())
        if is_all:
            self.loose.clear()
            self.is_late = False
            self.vague.clear()
            for i in self.instances.values():
                for name in i.actions:
                    if i.is_vague(name) and i.actions[name].target:
                        self._blur(i.actions[name].target)

    def may_have_hist(self, instance: str, name: str) -> bool:
        """Without settings the trigger tells, which is not read yet."""
        found = self.instances.get(instance)
        return SETTINGS in self.loose or (found is not None and (name in found.hist or name in found.actions))

    def _believe(self, texts: Texts) -> None:
        """The settings are older ones; which, only the daemon knows."""
        names = listed_events(texts)
        self.fields = {name: self.latest[name] for name in names}
        self.awaited = set(names).difference(SYNTHETIC)
        self.idle = [name for name in names if name not in self.released]
        self._without_program()
        self.ids.clear()
        self.record_tgid = texts["options/record-tgid"] == b"1\n"
        self.tgids = set()
        for name in names:  # stored rings were taken in under these settings
            self._believe_stats(name, texts[place_of(name) + "stats"].decode())
        found = {"", *texts["instances"].decode().split()}
        self.instances = {name: self.instances.get(name) or Instance() for name in sorted(found)}
        for at, i in self.instances.items():
            place = f"instances/{at}/" if at else ""
            i.exact, i.spare_exact, i.size = False, False, None
            i.on = texts[place + "tracing_on"] == b"1\n"
            i.plain = {file: texts[place + file] for file in PLAIN}
            i.subbuf_kb = int(texts[place + "buffer_subbuf_size_kb"])
            files = {name: place + place_of(name) for name in names}
            i.enable = {name for name in names if texts[files[name] + "enable"].startswith(b"1")}
            filters = {name: texts[files[name] + "filter"] for name in names}
            i.filters = {name: int(text[4:]) for name, text in filters.items() if text != b"none\n"}
            triggers = {name: texts[files[name] + "trigger"] for name in names}
            hists = [name for name in names if re.search(_PLAIN_HIST, triggers[name])]
            i.actions = {name: action for name in names if (action := action_of(triggers[name]))}
            i.attached = dict.fromkeys({**i.attached, **dict.fromkeys(names)}, False)
            i.is_marked = None
            none: Counter[int] = Counter()
            i.hist = {name: i.hist.get(name, none) | i.removed_hist.get(name, none) for name in hists}
            i.traceoff = {name for name in names if b"traceoff:" in triggers[name]}
            i.snapper = {name for name in names if b"snapshot:" in triggers[name]}
            if b"is freed" in texts[place + "snapshot"]:
                i.spare = None
            elif i.spare is None:
                i.spare = []
            for name in self.latest.keys() - names:
                self.unsure.update(r.n for r in self.known.values() if r.name == name)

    def _believe_stats(self, name: str, stats: str) -> None:
        self.emitted[name], self.lost_in_rings[name], rows = _numbers_of(stats)
        for known in [known for known in self.counts if known[0] == name]:
            del self.counts[known]
        for consumer, numbers in rows.items():
            for kind, n in zip(KINDS, numbers, strict=True):
                self.counts[name, consumer, kind] = n

    def _check_instance(self, at: str, i: Instance, texts: Texts) -> None:
        expect(at + "tracing_on", texts[at + "tracing_on"], b"%d\n" % i.on)
        for file, text in i.plain.items():
            expect(at + file, texts[at + file], text)
        # (One whose size was lost grows with the first event that is enabled.)
        if i.size is not None and b"expanded" not in i.size and BUFFERS not in self.loose:
            expect(at + "buffer_size_kb", texts[at + "buffer_size_kb"], i.size)
        i.size = texts[at + "buffer_size_kb"]
        expect(at + "sub-buffer", texts[at + "buffer_subbuf_size_kb"], b"%d\n" % i.subbuf_kb)
        for name in self.fields:
            file = at + place_of(name)
            on = b"1" if name in i.enable else b"0"
            expect(file + "enable", texts[file + "enable"].strip(b"*\n"), on)
            wanted = b"k > %d\n" % i.filters[name] if name in i.filters else b"none\n"
            expect(file + "filter", texts[file + "filter"], wanted)
            triggers = [line for line in texts[file + "trigger"].splitlines() if not line.startswith(b"#")]
            found = sorted(line.partition(b":")[0] for line in triggers)
            expect(
                file + "trigger",
                found,
                [b"hist"] * ((name in i.hist) + (name in i.actions))
                + [b"snapshot"] * (name in i.snapper)
                + [b"traceoff"] * (name in i.traceoff),
            )
            if name in i.hist or name in i.actions:
                plain, acting = _hists_of(texts[file + "hist"])
            if name in i.actions:
                self._check_action(file, i, name, texts[file + "trigger"], acting)
            if name in i.hist:
                table, dropped = _table_of(plain)
                if name in self.vague:
                    i.hist[name] = Counter(table) + Counter({DROPPED: dropped})
                if self.loose & {HISTS, SETTINGS}:  # counts may be gone, not that of dropped records
                    i.hist[name] &= Counter(table)
                    i.hist[name][DROPPED] = dropped
                expect(f"{file}hist: too many", Counter(table) - i.hist[name], Counter())
                expect(f"{file}hist: too few", sum((i.hist[name] - Counter(table)).values()), dropped)
        if BUFFERS in self.loose:
            i.exact = i.spare_exact = False
            for kept, file in ((i.kept, "trace"), (i.spare or [], "snapshot")):
                shown = {n for *_, n, _ in _lines_of(texts[at + file])[1]}
                kept[:] = [r for r in kept if r.n in shown or r.n in self.unsure]
        stats = [texts[f"{at}per_cpu/cpu{cpu}/stats"] for cpu in (0, 1)]
        counts = [
            int(one)
            for text in stats
            for one in re.findall(rb"^(?:entries|overrun): (\d+)", text, re.MULTILINE)
        ]
        self._check_records(at + "trace", texts[at + "trace"], i.kept, i.exact, counts[0::2])
        late = sum(int(n) for text in stats for n in re.findall(rb"^late events: (\d+)", text, re.MULTILINE))
        if late > i.late and not self.is_late:
            raise Wrong(f"{at}: {late} records are late, though all rings were back")
        i.late = late
        if self.is_late and i.spare:
            i.spare_late = MANY
        if i.exact:
            expect(f"{at}: recorded", sum(counts), len(i.kept))
        expect(f"{at}snapshot is freed", b"is freed" in texts[at + "snapshot"], i.spare is None)
        if i.spare is not None:
            self._check_records(at + "snapshot", texts[at + "snapshot"], i.spare, i.spare_exact, None)

    def _check_action(self, file: str, i: Instance, name: str, triggers: bytes, hist: bytes) -> None:
        """If its table is not known, the text shows it, but for the variable that another action reads."""
        found, action = action_of(triggers), i.actions[name]
        expect(file + "trigger", found and found.command(), action.command())
        table, dropped = _table_of(hist)
        if i.is_vague(name) or self.loose & {HISTS, SETTINGS}:
            largest = re.findall(rb"k: +(\d+) \} [^{]*max: +(\d+)", hist)
            action.unread = {k: n for k, n in action.unread.items() if k in table}
            action.largest = {int(k): int(n) - action.apart for k, n in largest}
            action.hits = Counter(table)
            action.is_vague = dropped > 0
        expect(file + "hist", Counter(table), action.hits)

    def _check_records(
        self, at: str, text: bytes, kept: list[Record], exact: bool, entries: list[int] | None
    ) -> None:
        """Each cpu shows the latest records of each program, each once and in order."""
        lines, found = _lines_of(text)
        shown: dict[tuple[int, int], list[int]] = {}
        for pid, cpu, us, name, n, k in found:
            r = self.known.get(n)
            if r is None and (name in self.vague or n in self.unsure):
                self.unsure.add(n)
                continue
            if r is None or (r.pid, r.cpu, r.name, r.k) != (pid, cpu, name, k):
                raise Wrong(f"{at} shows {name}#{n} k={k} of {pid} on cpu {cpu}, emitted was {r}")
            if r.in_ring and not self._may_be_late() and us != r.time // 1000:
                raise Wrong(f"{at} shows {r} at {us} us, emitted at {r.time}")
            shown.setdefault((r.pid, r.cpu), []).append(n)
        due: dict[tuple[int, int], list[int]] = {}
        for r in kept:
            due.setdefault((r.pid, r.cpu), []).append(r.n)
        for source, numbers in shown.items():
            all_of_them = [n for n in due.get(source, []) if n not in self.unsure]
            numbers = [n for n in numbers if n not in self.unsure]
            if not _is_end(all_of_them, numbers, has_gap=not exact):
                raise Wrong(f"{at}: of (pid, cpu) {source} {numbers}, must be the end of {all_of_them}")
        if entries is not None:
            expect(f"{at}: lines", lines, sum(entries))
            if exact:
                for cpu in (0, 1):
                    of_cpu = [r.n for r in kept if r.cpu == cpu]
                    visible = [n for _, c, _, _, n, _ in found if c == cpu]
                    missing = set(of_cpu[len(of_cpu) - entries[cpu] :]) - set(visible) - self.unsure
                    if missing and not self._late(kept):
                        raise Wrong(f"{at}: cpu {cpu} lacks {sorted(missing)}")

    def _may_be_late(self) -> bool:
        """Late records are shown with the time of the one before."""
        return self.is_late or any(i.late or i.spare_late for i in self.instances.values())

    def _late(self, kept: list[Record]) -> bool:
        """Records came in another order than that of their times."""
        return any(a.time > b.time for a, b in itertools.pairwise(kept))

    def _check_conservation(self, name: str, text: str) -> None:
        if name in self.vague:
            self._believe_stats(name, text)
            return
        emitted, lost, found = _numbers_of(text)
        expect(f"{name}: emitted", emitted, self.emitted[name])
        expect(f"{name}: lost in data rings", lost, self.lost_in_rings[name])
        counted = {consumer for (of, consumer, _), n in self.counts.items() if n and of == name}
        if "earlier consumers:" not in text and counted - found.keys():
            raise Wrong(f"{name}: no numbers of {sorted(counted - found.keys())}")
        for consumer, numbers in found.items():
            wanted = [self.counts[name, consumer, kind] for kind in KINDS]
            expect(f"{name}: all of {consumer}", sum(numbers), sum(wanted))
            unsure = self.either[name, consumer] if consumer.startswith("ftrace") else numbers[2] - wanted[2]
            if consumer.startswith("ftrace"):
                expect(f"{name}: recorded by {consumer}", numbers[0], wanted[0])
            if abs(numbers[2] - wanted[2]) > unsure:
                raise Wrong(f"{name}: {consumer} lost {numbers[2]}, must be {wanted[2]}")


def _numbers_of(stats: str) -> tuple[int, int, dict[str, list[int]]]:
    """The numbers in `stats`: emitted, lost in data rings, and by consumer recorded, filtered and lost."""
    lost = re.search(r"^lost in data rings: (\d+)$", stats, re.MULTILINE)
    rows = re.findall(r"^(\S+): recorded (\d+) filtered (\d+) lost (\d+)$", stats, re.MULTILINE)
    return (
        int(stats.partition("emitted: ")[2].split()[0]),
        int(lost[1]) if lost else 0,
        {consumer: list(map(int, numbers)) for consumer, *numbers in rows},
    )


_PLAIN_HIST = re.compile(rb"^hist:keys=k:vals=hitcount:sort", re.MULTILINE)
_ACTION = re.compile(rb"y=(?:\$t|n)\+.*:(\w+)\((?:\w+\.)?(\S+)\)\.trace\((\w+),")


def action_of(triggers: bytes) -> Action | None:
    """The one in the text of a file `trigger`; nothing is known about its table."""
    found, action = _ACTION.search(triggers), None
    if found is not None:
        handler, subject, target = map(bytes.decode, found.groups())
        action = Action(handler, target, subject if handler == "onmatch" else "")
    elif b":t=n:" in triggers:
        action = Action("", "")
    if action is not None:
        action.is_vague = action.has_forgotten = True
    return action


def _hists_of(text: bytes) -> tuple[bytes, bytes]:
    """The parts of a file `hist` that have the histogram without an action, and the other."""
    found = {b"": b""}
    for part in text.split(b"# event histogram")[1:]:
        found[b"action" if b",kk=k" in part or b":t=n:" in part else b""] = part
    return found[b""], found.get(b"action", b"")


def _table_of(hist: bytes) -> tuple[dict[int, int], int]:
    """Hits by k, and how many records were dropped."""
    table = {int(k): int(hits) for k, hits in re.findall(rb"k: +(\d+) \} hitcount: +(\d+)", hist)}
    return table, int((re.search(rb"Dropped: (\d+)", hist) or [0, 0])[1])


@functools.lru_cache(16)
def _lines_of(text: bytes) -> tuple[int, list[tuple[int, int, int, str, int, int]]]:
    """Lines of a trace, once for all models: how many have records; (pid, cpu, us, event, n, k) of each."""
    found = [
        (int(pid), int(cpu), int(s) * 10**6 + int(us), name.decode(), int(n), int(k))
        for pid, cpu, s, us, name, n, k in LINE.findall(text)
    ]
    return len(ANY_LINE.findall(text)), found


def consumer_of(instance: str) -> str:
    """Its name in `stats`."""
    return f"ftrace:{instance}" if instance else "ftrace"


def _counted(fields: str) -> int:
    """In the limit of its user."""
    return max(0, fields.count(";") + 1 - FREE_FIELDS)


def listed_events(texts: Texts) -> list[str]:
    """The existing events, oldest first."""
    lines = reversed(texts["available_events"].splitlines())
    return [line.partition(b":")[2].decode() for line in lines]


def _is_end(all_of_them: list[int], numbers: list[int], *, has_gap: bool) -> bool:
    """has_gap: a reader has a page, whose rest is older than what was overwritten since."""
    if numbers == all_of_them[len(all_of_them) - len(numbers) :]:
        return True
    if not has_gap or numbers[0] not in all_of_them:
        return False
    at = all_of_them.index(numbers[0])
    page = 0
    while numbers[page : page + 1] == all_of_them[at + page : at + page + 1] != []:
        page += 1
    return numbers[page:] == all_of_them[len(all_of_them) - len(numbers) + page :]
