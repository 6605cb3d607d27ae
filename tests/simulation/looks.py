"""Looks: status bytes after each step; the tree, the files and the descriptors from time to time."""

from __future__ import annotations

import functools
import gc
import os
from collections import Counter

from tests.simulation.base import GRAVE
from tests.simulation.doubts import different
from tests.simulation.machine import CPUS
from tests.simulation.model import Model, listed_events
from tests.simulation.parts import PLAIN, Texts, Wrong, expect, place_of
from tests.simulation.programs import descriptors
from tests.simulation.synthetic import Synthetic
from utracefsd.state.folder import SET_ASIDE

MOST_MODELS = 32


class Looks(Synthetic):
    """Compares what the daemon shows with the possible worlds."""

    def _look_at_status(self) -> None:
        """A program's status byte is that of the attached consumers, as soon as nothing is in doubt."""
        if len(self.models) > 1 or self._live.rings.gathering:
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
                tokens = program.tokens
                if program.connected and not tokens.unanswered:
                    bits = {token: int(status(tokens.wanted[token].split()[0]) > 0) for token in tokens.bits}
                    expect("bits of tokens", tokens.bits, bits)
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
        wanted: list[str] = []
        there = {name.decode() for name, _ in self._tree("list_dir", "instances")}
        texts["instances"] = " ".join(sorted(there)).encode()
        texts["available_events"] = self._tree("read_file", "available_events")
        events = listed_events(texts)
        wanted += ["saved_tgids", "options/record-tgid", "refused_events", "synthetic_events"]
        wanted += [place_of(event) + file for event in events for file in ("id", "stats")]
        names = sorted(there | {""})
        for name in names if is_all else [names[which % len(names)]]:
            at = f"instances/{name}/" if name else ""
            paths = ["tracing_on", *PLAIN, "buffer_size_kb", "buffer_subbuf_size_kb", "trace", "snapshot"]
            paths += [f"per_cpu/cpu{cpu}/stats" for cpu in range(CPUS)]
            for event in events:
                files = ["enable", "filter", "trigger"]
                if any(model.may_have_hist(name, event) for model in models):
                    files.append("hist")
                paths += [place_of(event) + file for file in files]
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
            right = different(right)[-MOST_MODELS:]
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
        if len(right) == 1 and not self.log_is_behind:
            self._look_at_files(right[0])
        self._note(f"  looked: {len(right)} possible worlds, events {list(right[-1].fields)}")

    def _look_at_files(self, model: Model) -> None:
        """No more than the instances and histograms need."""
        found = [one for one in os.walk(self.folder) if SET_ASIDE not in one[0]]
        names = [name for _, folders, files in found for name in (*folders, *files)]
        spares = sum(i.spare is not None for i in model.instances.values())
        hists = sum(len(i.hist) + len(i.actions) for i in model.instances.values())
        counts = [sum(name.startswith(kind) for name in names) for kind in ("buffer.", "cpu", "hist.")]
        most = [len(model.instances), CPUS * (len(model.instances) + spares), hists + self._refused_hists]
        if any(a > b for a, b in zip(counts, most, strict=True)):
            raise Wrong(f"buffers, their files, histograms: {counts}, at most {most} are needed: {names}")

    def _look_at_descriptors(self) -> None:
        """A process would end here: objects in cycles close what they own, and nothing is left."""
        gc.collect()
        paths = [os.readlink(f"/proc/self/fd/{fd}") for fd in descriptors() - self._kept()]
        if left := [path for path in paths if GRAVE not in path]:
            raise Wrong(f"descriptors left: {left}")
