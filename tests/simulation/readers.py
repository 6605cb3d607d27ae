"""Steps of readers: streams, perf events, the plug-in and readers of pages are attached, read and closed."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.simulation.base import NAMES, USERS
from tests.simulation.doubts import and_forget
from tests.simulation.parts import MOST_EVENTS, SYNTHETIC, Reader, expect, system_of
from tests.simulation.programs import NO_EVENT, Consumer
from tests.simulation.rings import STREAM_RING
from tests.simulation.trouble import Trouble

PLUG_EVENTS = "consumers/plug/set_event"
MOST_CONSUMERS = 3
KINDS = ("stream", "perf", "count", "freq", "plugin", "pages", "counts")
"""Kinds of consumers."""


class Readers(Trouble):
    """Readers, and records for them."""

    def _attach(self, event: int, kind: int, which: int, where: int | str = 0) -> None:
        """A stream or a perf event of one event, or a stream of an instance's pages, by a program of its
        own."""
        name, program = self._event_in(event), self._pick(which)
        if program is not None and (command := program.command(event)):  # more often one with records to come
            name = command.split()[0]
        if name is None or len(self.consumers) == MOST_CONSUMERS:
            return
        self._gather()
        if name in SYNTHETIC and any(name in m.vague or m.loose for m in self.models):
            return  # which records it gets is not known
        self.numbers += 1
        answers = self._connect(self._root, to_tree=True)
        made = Consumer(KINDS[kind % len(KINDS)], self.numbers, answers)
        full_name = f"{system_of(name)}:{name}"
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
        elif made.kind == "counts":
            _, made.handle = self._ask(answers, "open", "event_counts", os.O_RDWR)
            self._opened_counts += 1
            asked = "write", made.handle, full_name.encode()
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
        if made.kind == "counts":
            for m in self.models:
                m.readers[made.key].consumer = f"counts:{self._opened_counts}"
        elif made.kind != "plugin":
            made.handle = result[b"handle"]
            made.map_ring()
            for m in self.models:
                m.readers[
                    made.key
                ].consumer = f"{'stream' if made.kind == 'stream' else 'perf'}:{made.handle}"
        if made.kind == "pages":
            self._check_consumer(made)  # older records

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
        """One of these kinds, if there is one, or a new one."""
        if not any(one.kind in kinds for one in self.consumers):
            self._attach(event, kind, which)
        found = [one for one in self.consumers if one.kind in kinds] or self.consumers
        return found[which % len(found)] if found else None

    def _emit_to(self, consumer: Consumer, of: int, number: int, how: int, text: bytes) -> None:
        """Records of its event, by any program that has it, or registers it now."""
        name = consumer.name
        programs = [program for program in self.programs if program.connected and not program.is_unknown]
        found = [p for p in programs if any(c.split()[0] == name for c in p.commands)]
        if not found and programs and name not in SYNTHETIC:
            found = [programs[of % len(programs)]]
            if not self._do_register(found[0], name, self.models[-1].latest[name]):
                return
        if found:
            program = found[of % len(found)]
            if how % 2:
                self._give_ring(program)
            index = [command.split()[0] for command in program.commands].index(name)
            self._emit_some(program, index, number, how, pump=True, text=text)

    def _detach(self, which: int, how: int, *_: int) -> None:
        """It closes its handle, or ends."""
        if not self.consumers:
            return
        consumer = self.consumers[which % len(self.consumers)]
        self._pump()  # its end is no operation, before which rings are read

        after = partial(and_forget, lambda m: m.detach(consumer.key))
        self._may_do(after)
        if consumer.kind == "plugin":
            self._ask(
                consumer.answers,
                "write_file",
                PLUG_EVENTS,
                f"!{system_of(consumer.name)}:{consumer.name}".encode(),
                False,
            )
            self._check_consumer(consumer)
        elif how % 2:
            self._ask(consumer.answers, "close", consumer.handle)
        instance = self.models[-1].readers[consumer.key].instance
        self._drop(consumer)
        self._pump_to(after)
        if instance is not None:  # its pages are free
            self._attach(0, KINDS.index("pages"), 0, instance)

    def _tally(self, which: int, event: int, number: int, how: int) -> None:
        """Records are counted by event and process; the event may make room for others, and come back."""
        consumer = self._some_consumer(which, event, KINDS.index("counts"), kinds=("counts",))
        if consumer is None or consumer.kind != "counts":
            return
        self._emit_to(consumer, event, number, how, b"ab")
        uid = self.models[-1].owners[consumer.name]
        if how % 2 == 0 and uid and consumer in self.consumers:
            for program in list(self.programs):
                if program.uid == uid:
                    self._end_program(program)
            self._turn("", consumer.name, "enable", on=False)
            self._program(USERS.index(uid))
            for i in [i for i, name in enumerate(NAMES) if name not in self.models[-1].fields][:MOST_EVENTS]:
                self._register(-1, i, 1, 1)
            self._emit_to(consumer, event, number, how, b"ab")
        self._pump()
        if consumer in self.consumers:
            self._check_consumer(consumer)
            if how % 3 == 0:
                self._detach(self.consumers.index(consumer), how)

    def _flood(self, which: int, of: int, number: int, how: int) -> None:
        """More than the ring of a consumer holds."""
        consumer = self._some_consumer(which, of, number % 2, kinds=("stream", "perf"))
        if consumer is None:
            return
        for i in range(12):
            self._emit_to(consumer, of, number | 7, 3 + 8 * (i % 2), b"x" * 3500)
        if how % 4 and consumer in self.consumers:
            self._check_consumer(consumer)
