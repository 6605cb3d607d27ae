"""Steps of synthetic events: they are made, histograms' actions record them, and they are removed."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import Any

from tests.simulation.administrator import TRIGGERS, Administrator
from tests.simulation.doubts import different
from tests.simulation.model import Model
from tests.simulation.parts import SYNTHETIC, SYNTHETIC_FIELDS, Action, expect, place_of

HANDLERS = "onchange", "onmax", "onmatch"


class Synthetic(Administrator):
    """Makes, uses and removes them. An event has at most one action, in one instance: no two records of a
    synthetic event have the same number."""

    def _compose(self, which: int, how: int = 0, *_: int) -> None:
        """Make a synthetic event, which may be there."""
        name = SYNTHETIC[which % len(SYNTHETIC)]
        file, text = ("synthetic_events", name) if how % 2 else ("dynamic_events", f"s:{name}")
        error = self._write_or_fail(file, f"{text} {SYNTHETIC_FIELDS}", lambda m: m.compose(name))
        self.reached[f"compose errno {error}"] += error is not None
        self._keep(lambda m: (name in m.fields) == (error in (None, errno.EEXIST)), f"{name}: error {error}")

    def _dissolve(self, which: int, how: int, *_: int) -> None:
        """Remove one, or all by truncating the file. Whether or not that is possible, buffers which may have
        records of events that were removed are cleared."""
        is_all = how % 4 == 0
        if how >> 2 & 3:  # often in vain: actions, or those of the other one, stay
            of_all = is_all and how >> 2 & 3 == 1
            self._set_free(
                SYNTHETIC if of_all else [SYNTHETIC[which % len(SYNTHETIC)]],
                but_for_actions=how >> 2 & 3 == 2,
            )
        names = [SYNTHETIC[which % len(SYNTHETIC)]]
        if is_all:
            names = sorted(set().union(*(m.fields for m in self.models)).intersection(SYNTHETIC))
        if len(self.models) > 1 or self.disk.dead:
            return
        self._gather()
        self._pump()
        self.models = [one for m in self.models for one in m.with_marks(names)]
        name = names[0] if names else ""
        is_there = set(names) <= self.models[0].fields.keys()
        is_used = any(map(self.models[0].is_used, names)) and is_there
        wanted = errno.EBUSY if is_used else None if is_there else errno.ENOENT
        file, text = "synthetic_events", "" if is_all else f"!{name}"
        if how % 4 == 1:
            file, text = "dynamic_events", f"-:synthetic/{name}"

        def change(m: Model) -> None:
            if is_there and not (is_used and is_all):  # in use, all of them stay, and so do records
                m.dissolve(names)
            elif not is_all:
                m.dissolve([])

        error = self._write_or_fail(file, text, change, truncate=is_all, also_refused=not is_all)
        expect(f"removal of {names}", error, wanted)
        self.reached[f"dissolve errno {error}"] += 1
        self.models = different(self.models)

    def _set_free(self, names: Sequence[str], *, but_for_actions: bool = False) -> None:
        """Remove the actions and triggers that use them, and disable them; readers stay."""
        for inst in sorted(set.intersection(*(set(m.instances) for m in self.models))):
            for name in names:
                if not but_for_actions:
                    self._end_actions(inst, name)
                for kind in (*TRIGGERS, "enable"):
                    if all(name in m.fields and inst in m.instances for m in self.models):
                        self._turn(inst, name, kind, on=False)

    def _end_actions(self, inst: str, name: str) -> None:
        """Remove the action of an event, and actions that record it or read its variable."""
        actions = self.models[-1].instances[inst].actions
        for reader in sorted(actions, key=lambda one: actions[one].matched == ""):
            if len(self.models) > 1:
                return
            if reader in actions and name in (reader, actions[reader].matched, actions[reader].target):
                self._underive(inst, reader)
                actions = self.models[-1].instances[inst].actions

    def _write_or_fail(
        self, path: str, text: str, change: Any, truncate: bool = False, also_refused: bool = False
    ) -> int | None:
        """The errno. also_refused: the change comes with an error, too."""
        error, _ = self._ask_admin("write_file", path, text.encode(), truncate, after=change)
        if error is not None and also_refused:
            self.each(change)
        return None if error is None else int(error[0])

    def _derive(self, where: int | str, event: int, how: int, which: int) -> None:
        """A histogram with an action, on an event that programs or another action record; or remove it."""
        inst = self._place(where)[0]
        name, matched = self._event_in(event), self._event_in(event + 1 + how // 4)
        if name is None or matched is None or len(self.models) > 1:
            return
        places = [place for place, i in self.models[0].instances.items() if name in i.actions]
        if places:
            self._underive(places[0], name)
            return
        target = SYNTHETIC[which % len(SYNTHETIC)]
        action = Action(HANDLERS[how % 3], target, matched if how % 3 == 2 else "")
        if name in SYNTHETIC and SYNTHETIC.index(name) >= SYNTHETIC.index(target):
            return  # they would make each other
        if target not in self.models[0].fields:
            self._compose(which)
        if action.matched and (matched == name or not self._give_variable(inst, matched)):
            return
        if len(self.models) > 1 or target not in self.models[0].fields:
            return
        if self._write_action(inst, name, action):
            self.reached[f"derived by {action.handler}"] += 1

    def _give_variable(self, inst: str, name: str) -> bool:
        """The event with the variable that an action matches."""
        model = self.models[0]
        found = [at for at, i in model.instances.items() if name in i.actions]
        if found:
            return found == [inst] and not model.instances[inst].actions[name].matched
        return self._write_action(inst, name, Action("", ""))

    def _write_action(self, inst: str, name: str, action: Action) -> bool:
        after = partial(_act, inst, name, action)
        done = self._change_trigger(inst, name, action.command(), after) is None
        self._refused_hists += not done
        return done

    def _underive(self, inst: str, name: str) -> None:
        model = self.models[0]
        action = model.instances[inst].actions[name]
        is_read = model.instances[inst].is_read(name)
        error = self._change_trigger(inst, name, "!" + action.command(), partial(_act, inst, name, None))
        if is_read:
            expect(f"removal of a variable that is read, of {name}", error, errno.EBUSY)
            self.reached["a variable is read"] += 1
        else:
            self.reached["an action is removed"] += error is None

    def _change_trigger(self, inst: str, name: str, text: str, after: Any) -> int | None:
        path = self._place(inst)[1] + place_of(name) + "trigger"
        return self._write_or_fail(path, text, after)


def _act(inst: str, name: str, action: Action | None, m: Model) -> None:
    """The event gets this action, or loses its own."""
    if action is None:
        m.instances[inst].actions.pop(name, None)
    else:
        m.instances[inst].act(name, action.copy())
