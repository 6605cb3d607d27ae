"""The part chaos: daemons and producers end at the wrong moment, and every record is accounted for.

An epoch is a daemon, honest producers and restless readers for some seconds. Its events follow from
SEED/chaos/EPOCH:

    kills       the daemon is killed, also while it starts, ended and started again, stopped and continued;
                producers are killed, stopped and continued; /dev/shm is full; descriptors are scarce. ftrace
                stays on, so every record of a producer that ends well is in `trace`, once, or reported lost.
    switches    the daemon lives; events and recording are switched on and off, consumers attach and detach,
                producers are killed. Records are judged by the counts in `stats`.

`--round N` runs only one epoch.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from tests.soak.attacks.attack import Setting, attacking
from tests.soak.crew import Crew, Job, Member, Notes
from tests.soak.honest import (
    EMITTED,
    FIELDS,
    FINISHED,
    LOST,
    OVER_SOCKET,
    PENDING,
    PROGRESS,
    REFUSED,
    c_producer,
    closing_records,
    compile_numbered,
    python_producer,
)
from tests.soak.house import House
from tests.soak.judging import (
    Told,
    judge_losses,
    judge_order,
    judge_records,
    late_events,
    lines_of,
    reported_lost,
    stats_of,
)
from tests.soak.plain import PlainConnection
from tests.soak.report import Found, Report
from utracefs.tree.tracefs import PerfAttr, Tracefs
from utracefsd.server.runtime import SHARED_MEMORY

_BUFFER_KB = 8192
_THREADS = 2
_FEW_DESCRIPTORS = 320
_STARTS_IN_FULL = 4
"""Half of the reserved ones of a daemon; a producer that maps each status file forever uses one up."""


def chaos(setting: Setting, report: Report, folder: Path, *, may_fill: bool) -> None:
    """Epochs until the time is over, at least one."""
    deadline = time.monotonic() + setting.seconds if setting.round is None else math.inf
    number = setting.round or 0
    while True:
        with contextlib.suppress(Found):
            epoch = _Epoch(setting, report, folder / f"epoch{number}", number, may_fill=may_fill)
            epoch.run(setting, deadline)
        number += 1
        if setting.round is not None or time.monotonic() >= deadline - 2:
            return


@attrs.define
class _Producer:
    """One epoch, with the data for its judges."""

    event: str
    member: Member
    always_over_socket: bool = False
    killed: bool = False
    may_miss: bool = False

    @property
    def over_socket(self) -> bool:
        """Some of its records went over the socket."""
        return self.always_over_socket or bool(self.member.notes.numbers[OVER_SOCKET])

    def told(self) -> Told:
        numbers = self.member.notes.numbers
        return Told(
            self.event,
            dict(enumerate(numbers[PROGRESS : PROGRESS + _THREADS])),
            exact=bool(numbers[FINISHED]),
            emitted=numbers[EMITTED],
            lost=numbers[LOST],
            refused=numbers[REFUSED],
            pending=numbers[PENDING],
            may_miss=self.may_miss,
        )


class _Epoch:
    def __init__(
        self, setting: Setting, report: Report, folder: Path, number: int, *, may_fill: bool
    ) -> None:
        self.seed = f"{setting.seed}/chaos/{number}"
        self.rng = random.Random(self.seed)
        self.kills = number % 2 == 0
        self.report = report
        kind = "kills" if self.kills else "switches"
        label = f"{kind}: {setting.options('chaos')} --round {number}"
        self.house = House(
            folder,
            report,
            label,
            open_to_all=True,
            options=("--buffer-size-kb", str(_BUFFER_KB), "--keep-state"),
        )
        self.label = label
        self.crew = Crew()
        self.others = Crew()
        self.producers: list[_Producer] = []
        self.instances = [""]
        self.done: list[str] = []
        self.restarts = 0
        self.abrupt = 0
        self.may_fill = may_fill
        self.filler: str | None = None
        self.starts_in_full = 0
        self.library = compile_numbered(folder)

    def run(self, setting: Setting, deadline: float) -> None:
        """The whole epoch; Found ends it early."""
        try:
            self.house.start()
            with self.house.tree() as tree:
                tree.write_file("standing_events", b"user_events:p*\n")
                self._second_instance(tree)
                counters = {} if self.kills else self._counters(tree)
                for _ in range(5):
                    self._new_producer()
                for i in range(3):
                    job = _reading(
                        self.house.directory, f"{self.seed}/reader {i}", destructive=not self.kills
                    )
                    self.others.add(f"reader {i}", job)
                if self.kills:  # the next daemon finds their records in rings and journal
                    calm = attrs.evolve(setting, round=None, without=setting.without | {"flood", "hang"})
                    for number, part in ((1, "memory"), (2, "memory"), (1, "data")):
                        job = attacking(part, number, calm, self.house.directory, None)
                        self.others.add(f"{part} attacker {number}", job, self.others.next_uid())
                self.house.note_start()
                self._do_things(deadline)
                self._settle()
                if self.kills:
                    for instance in self.instances:
                        self._judge_trace(instance)
                else:
                    self._judge_stats(tree, counters)
            context = self._context()
            self.house.probe(context)
            self.house.judge_rest(context)
            self.house.end(context)
            self.report.counts["epochs of chaos"] += 1
        finally:
            self._free()
            self.others.close()
            self.crew.close()
            self.house.clear()

    # Events

    def _do_things(self, until: float) -> None:
        """As many as were drawn, unless the time is over; a single epoch takes the time that it needs."""
        things: dict[Callable[[], None], int] = {
            self._stop_daemon: 2,
            self._stop_producer: 3,
            self._kill_producer: 2,
            self._hoard: 2,
            self._probe: 4,
        }
        if self.kills:
            things |= {self._kill_daemon: 5, self._end_daemon: 3, self._kill_starting: 2}
            if self.may_fill:
                things[self._fill] = 2
        names, weights = list(things), list(things.values())
        for _ in range(self.rng.randrange(10, 30)):
            if time.monotonic() > until:
                break
            self._pause(0.6)
            (thing,) = self.rng.choices(names, weights)
            self.done.append(f"{thing.__name__}")
            self.report.counts["actions of chaos"] += 1
            thing()
            self.crew.must_be_well()
            self.house.must_be_alive(self._context())

    def _pause(self, most_s: float) -> None:
        time.sleep(self.rng.random() ** 2 * most_s)

    def _probe(self) -> None:
        self.house.probe(self._context())

    def _kill_daemon(self) -> None:
        self.house.kill()
        self.report.counts["kills of the daemon"] += 1
        self.abrupt += 1
        self._start_again()

    def _end_daemon(self) -> None:
        """SIGTERM with --keep-state: the state is taken over."""
        assert self.house.process is not None
        self.house.process.terminate()
        self.house.wait_for_end(self._context())
        self._start_again()

    def _kill_starting(self) -> None:
        self.house.kill()
        self.abrupt += 1
        for _ in range(self.rng.randrange(1, 4)):
            self.house.start_and_kill(self.rng.random() * 0.4)
            self.report.counts["kills of the daemon"] += 1
        self._start_again()

    def _start_again(self) -> None:
        self._pause(0.5)
        self.starts_in_full += self.filler is not None
        if self.starts_in_full > _STARTS_IN_FULL or self.rng.random() < 0.5:
            self._free()
        self.restarts += 1
        self.house.descriptors = self.rng.choice([None, None, None, _FEW_DESCRIPTORS])
        self.house.start()

    def _stop_daemon(self) -> None:
        self.house.signal(signal.SIGSTOP)
        self._pause(1.5)
        self.house.signal(signal.SIGCONT)

    def _living(self) -> _Producer | None:
        living = [producer for producer in self.producers if not producer.killed]
        return self.rng.choice(living) if living else None

    def _stop_producer(self) -> None:
        if producer := self._living():
            producer.member.signal(signal.SIGSTOP)
            self._pause(0.5)
            producer.member.signal(signal.SIGCONT)

    def _kill_producer(self) -> None:
        """Once the daemon has taken in its records, those are safe from all later events."""
        producer = self._living()
        if producer is None or len(self.producers) > 12:
            return
        producer.member.kill()
        producer.killed = True
        # records that were in flight when a daemon was killed, or waited in a ring for one that had just
        # started, may be lost
        producer.may_miss = producer.over_socket or self.restarts > 0
        self.house.probe(self._context())
        self.report.counts["kills of producers"] += 1
        self._new_producer()

    def _new_producer(self) -> None:
        number = len(self.producers)
        event = f"p{number}"
        kind = number if number < 4 else self.rng.randrange(4)
        seed = f"{self.seed}/{event}"
        over_socket = kind == 1
        if kind in (0, 2):  # the small ring is full whenever the daemon is away
            ring_kb = 1024 if kind else 16
            job = python_producer(self.house.directory, event, seed, 2500, ring_kb=ring_kb, threads=_THREADS)
        elif over_socket:
            job = python_producer(self.house.directory, event, seed, 500, ring_kb=0, threads=_THREADS)
        else:
            job = c_producer(self.house.directory, event, seed, 4000, self.library, threads=_THREADS)
        member = self.crew.add(f"{event} (kind {kind})", job, self.crew.next_uid())
        self.producers.append(_Producer(event, member, over_socket))

    def _hoard(self) -> None:
        """A client takes all connections that it can get, for a while."""
        if len(self.others.members) < 9:
            self.others.add("hoarder", _hoarding(self.house.directory, self.seed), self.others.next_uid())

    def _fill(self) -> None:
        """No space in /dev/shm, or little, until the daemon is started again."""
        if self.filler is not None:
            self._free()
            return
        self.filler = os.fspath(SHARED_MEMORY / "soak-filler")
        free = os.statvfs(SHARED_MEMORY)
        left_free = self.rng.choice([0, 0, 4096, 65536, 256 << 10, 2 << 20])
        size = free.f_bavail * free.f_frsize - left_free
        if size > 0:
            with open(self.filler, "wb") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, size)

    def _free(self) -> None:
        if self.filler is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.filler)
            self.filler = None

    # Judging

    def _settle(self) -> None:
        """The readers end; the producers' records are all taken in, and they end."""
        self._free()
        counts, bad = self.others.stop()
        self.report.counts.update(counts)
        if bad:
            raise RuntimeError(f"members of the crew failed: {bad}")
        context = self._context()
        counts, bad = self.crew.stop()
        self.report.counts.update(counts)
        for failed in bad:
            self.report.tell(
                "conservation", self.label, f"an honest program did not end: {failed}\n{context}"
            )
        if self.abrupt:
            for producer in self.producers:
                producer.may_miss |= producer.over_socket
        self.others.add("closing", closing_records(self.house.directory))
        _, bad = self.others.stop()
        if bad:
            raise RuntimeError(f"members of the crew failed: {bad}")

    def _second_instance(self, tree: Tracefs) -> None:
        """Another instance that keeps everything, where the daemon makes instances."""
        try:
            tree.mkdir("instances/second")
        except PermissionError:
            return
        self.instances.append("instances/second/")
        tree.write_file("instances/second/buffer_size_kb", b"%d" % _BUFFER_KB)
        tree.write_file("instances/second/standing_events", b"user_events:p*\n")

    def _judge_trace(self, instance: str) -> None:
        events = {producer.event: producer for producer in self.producers}
        with self.house.tree(60) as tree:
            cpus = [name for name, _ in tree.list_dir(f"{instance}per_cpu")]
            stats = {int(name[3:]): tree.read_file(f"{instance}per_cpu/{name}/stats") for name in cpus}
            text = b"".join(_whole(tree, f"{instance}trace"))
        context = f"{instance or 'the top instance'}\n{self._context()}\n{self.house.log_tail()}"
        lines, unreadable = lines_of(text, events)
        self.report.check("conservation", self.label, not unreadable, "\n".join(unreadable[:5]))
        lost = [
            line
            for line in b"".join(stats.values()).split(b"\n")
            if line.startswith((b"overrun", b"dropped"))
        ]
        if any(not line.endswith(b": 0") for line in lost):
            self.report.tell("conservation", self.label, f"the buffer was large enough: {lost}\n{context}")
        came: dict[str, dict[int, list[int]]] = {event: defaultdict(list) for event in events}
        for line in lines:
            came[line.event][line.who].append(line.n)
        self.report.counts["records judged"] += len(lines)
        shown = reported_lost(text)
        self.report.counts["records that trace calls lost"] += shown
        if wrong := judge_losses([producer.told() for producer in self.producers], shown):
            self.report.tell("conservation", self.label, f"{wrong}\n{context}")
        for event, producer in events.items():
            self.report.counts["judgements"] += 1
            self.report.counts["records that producers lost"] += producer.told().lost
            for fault in judge_records(came[event], producer.told()):
                self.report.tell("conservation", self.label, f"{producer.member.name}: {fault}\n{context}")
        late = Counter({cpu: late_events(text) for cpu, text in stats.items()})
        told_late = late.total()
        if faults := judge_order(lines, late):
            self.report.tell("order", self.label, "\n".join([*faults, context]))
        self.report.counts["records that came late"] += told_late
        self.report.counts["honest records behind later ones"] += told_late - late.total()

    def _counters(self, tree: Tracefs) -> dict[str, int]:
        """A consumer that counts all records, of every present and future event."""
        handles = {}
        for number in range(16):
            tree.write_file("dynamic_events", f"u:p{number} {FIELDS}\n".encode(), truncate=False)
            attr = PerfAttr(name=f"user_events:p{number}".encode(), sample_period=0)
            handles[f"p{number}"], _ = tree.perf_event_open(attr)
        return handles

    def _judge_stats(self, tree: Tracefs, counters: dict[str, int]) -> None:
        context = self._context()
        for producer in self.producers:
            emitted, consumers = stats_of(tree.read_file(f"events/user_events/{producer.event}/stats"))
            counted = sum(consumers[f"perf:{counters[producer.event]}"])
            told = producer.told()
            self.report.counts["records judged"] += emitted
            numbers = f"{producer.member.name}: stats {emitted}, counter {counted}, told {told}\n{consumers}"
            exact = counted == emitted and (not told.exact or emitted == told.emitted - told.refused)
            exact = exact and all(sum(each) <= emitted for each in consumers.values())
            self.report.check("conservation", self.label, exact, f"{numbers}\n{context}")

    def _context(self) -> str:
        return f"it did: {' '.join(self.done)}"


def _whole(tree: Tracefs, path: str) -> Iterator[bytes]:
    handle = tree.open(path)
    while piece := tree.read(handle, 1 << 20):
        yield piece


def _reading(directory: str, seed: str, *, destructive: bool) -> Job:
    """An administrator who reads and attaches; `destructive`: also consumes records and switches."""

    def job(notes: Notes) -> Counter[str]:
        rng = random.Random(seed)
        done = 0
        while not notes.stopped:
            with contextlib.suppress(OSError), Tracefs(directory, timeout_s=5) as tree:
                for _ in range(rng.randrange(1, 20)):
                    if notes.stopped:
                        break
                    with contextlib.suppress(OSError):
                        _read_something(tree, rng, destructive)
                    done += 1
            time.sleep(0.02)
        return Counter({"operations of administrators": done})

    return job


def _read_something(tree: Tracefs, rng: random.Random, destructive: bool) -> None:
    event = f"p{rng.randrange(8)}"
    kind = rng.randrange(12 if destructive else 7)
    if kind == 0:
        handle = tree.open(rng.choice(["trace", "per_cpu/cpu0/trace"]))
        tree.read(handle, 1 << 18)
        tree.close_handle(handle)
    elif kind == 1:
        tree.read_files([f"events/user_events/{event}/stats", "per_cpu/cpu0/stats", "user_events_status"])
    elif kind == 2:
        attr = PerfAttr(name=f"user_events:{event}".encode(), sample_period=1, data_pages=8)
        handle, fd = tree.perf_event_open(attr)
        if fd is not None:
            os.close(fd)
        time.sleep(rng.random() * 0.05)
        tree.close_handle(handle)
    elif kind == 3:
        tree.write_file("consumers/count/set_event", f"user_events:{event}\n".encode(), truncate=False)
    elif kind == 4:
        tree.write_file("consumers/count/set_event", b"\n", truncate=True)
    elif kind == 5:
        tree.read_file("consumers/count/report")
    elif kind == 6:
        tree.write_file("buffer_percent", rng.choice([b"0", b"50", b"100"]))
    elif kind in (7, 8):
        handle = tree.open(rng.choice(["trace_pipe", "per_cpu/cpu1/trace_pipe_raw"]), os.O_NONBLOCK)
        for _ in range(rng.randrange(8)):
            tree.read(handle, 1 << 16)
        tree.close_handle(handle)
    elif kind == 9:
        tree.write_file("tracing_on", b"0")
        time.sleep(rng.random() * 0.05)
        tree.write_file("tracing_on", b"1")
    elif kind == 10 and rng.random() < 0.5:
        name = f"instances/i{rng.randrange(4)}"
        tree.mkdir(name)
        tree.write_file(f"{name}/events/user_events/{event}/enable", b"1")
        tree.read_file(f"{name}/trace")
        tree.rmdir(name)
    elif kind == 10:
        tree.write_file(f"events/user_events/{event}/enable", rng.choice([b"0", b"1"]))
        # Filters that pass every record: the judges need all of them.
        text = rng.choice([b"0", b"common_pid > 0 && CPU >= 0", b'comm ~ "*" || comm != ""'])
        tree.write_file(f"events/user_events/{event}/filter", text)
    else:
        path = rng.choice(["trace", "set_event_pid", "options/overwrite", "tracing_cpumask"])
        text = {"set_event_pid": b"1", "options/overwrite": b"0", "tracing_cpumask": b"1"}.get(path, b"")
        tree.write_file(path, text)
        if path == "set_event_pid":
            tree.write_file(path, b"", truncate=True)


def _hoarding(directory: str, seed: str) -> Job:
    """Repeatedly takes connections, each with a registration and half a message, and closes them."""

    def job(notes: Notes) -> Counter[str]:
        rng = random.Random(seed)
        taken = 0
        while not notes.stopped:
            mine: list[PlainConnection] = []
            for _ in range(rng.choice([20, 400])):
                with contextlib.suppress(OSError):
                    mine.append(PlainConnection(directory, 0.2))
                    mine[-1].sock.send(b"\x94\x00\x01\xacDIAG_IOCSREG\x91\x81\xa9name_args\xa5other\x94")
            taken += len(mine)
            time.sleep(rng.random() * 0.2)
            for connection in mine:
                connection.close()
            time.sleep(0.2)
        return Counter({"connections of attackers": taken})

    return job
