"""Readers get each record once and in order, and know how many they lost."""

from __future__ import annotations

import struct
from collections import Counter

from tests.simulation.looks import Looks
from tests.simulation.model import Model
from tests.simulation.parts import LOST, RECORDED, Wrong
from tests.simulation.programs import Consumer
from tests.simulation.rings import PerfRing, StreamRing


class Reading(Looks):
    """Compares what readers get with what they must."""

    def _check_consumer(self, consumer: Consumer, *, ended: bool = False) -> None:
        is_full = False
        if any(m.readers[consumer.key].is_vague for m in self.models):
            return
        if consumer.kind == "pages":
            self._check_pages(consumer, ended=ended)
            return
        if consumer.kind == "counts":
            if not ended:
                self._check_counts(consumer)
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

    def _check_counts(self, consumer: Consumer) -> None:
        """The whole text, each time from the beginning."""
        self._ask(consumer.answers, "seek", consumer.handle, 0)
        _, text = self._ask(consumer.answers, "read", consumer.handle, 1 << 16)
        found: Counter[tuple[int, str]] = Counter()
        for line in text.decode().splitlines():
            _, pid, *numbers = line.split()[:5]
            found |= {
                (int(pid), kind): int(n) for kind, n in zip((RECORDED, "bytes", LOST), numbers, strict=True)
            }
        self.reached["counts read"] += bool(found)
        due = [m.readers[consumer.key].by_process for m in self.models]
        self._keep(
            lambda m: m.readers[consumer.key].by_process == found, f"counts are {found}, must be {due}"
        )

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
            is_stream = consumer.kind in ("stream", "pages")
            has_answer = not is_stream or consumer.ring is not None
            if has_answer and all(consumer.key in m.readers for m in self.models):
                self._check_consumer(consumer, ended=True)
                self.reached["the rest of a stream"] += is_stream
                if is_stream and not consumer.is_told_the_end():
                    raise Wrong("a stream is not told its end")
            consumer.end()
        self.consumers.clear()

    def _drop(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        consumer.end()
