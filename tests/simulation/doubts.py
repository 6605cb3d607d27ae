"""The possible worlds: what a killed daemon had begun has happened, or not.

A change is applied to each world. An answer, or a look at the tree, removes the wrong ones.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from tests.simulation.model import Model
from tests.simulation.parts import Wrong
from tests.simulation.programs import Program


def adopts(pid: int, early: bool, refused: Any, answer: Any, m: Model) -> bool:
    """refused: the answer that must come."""
    program, answer = m.programs[pid], answer or refused
    if early:
        program.connected, program.events, program.waits_no_more = True, [], False
    if answer is None or answer[0] is None:
        program.adopted, program.early = True, early
        program.orphan = None
        m.count_lost(pid)
    else:
        program.adopted = program.orphan is not None
    return True


def registers(pid: int, index: int, command: str, refused: Any, answer: Any, m: Model) -> bool:
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
    return refuses(pid, name, fields, answer[0][0], m)


def refuses(pid: int, name: str, fields: str, number: int | str, m: Model) -> bool:
    """Whether a registration has this error in that world."""
    uid = m.programs[pid].uid
    if number == errno.EADDRINUSE:
        return m.fields.get(name, fields) != fields
    if number == errno.EMFILE:
        return not m.make_room(uid, name, fields)
    if number == errno.ENOSPC:
        m.make_room(uid, name, fields)
    return True


def unless_refused(change: Callable[[Model], object], answer: Any, model: Model) -> object:
    """The change of a request, unless its answer is an error."""
    return None if answer is not None and answer[0] is not None else and_forget(change, model)


def and_forget(change: Callable[[Model], object], model: Model) -> object:
    """Events that nothing needs any more go with it."""
    result = change(model)
    model.forget_unused()
    return result


def changed(
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


def different(models: list[Model]) -> list[Model]:
    """Without equal ones, of which the last stays; few models have the same outline."""
    found: list[Model] = []
    by_outline: dict[object, list[Model]] = {}
    for model in reversed(models):
        alike = by_outline.setdefault(model.outline(), [])
        if model not in alike:
            alike.append(model)
            found.append(model)
    return found[::-1]


class Doubts:
    """Has the possible worlds."""

    def __init__(self) -> None:
        self.models = [Model()]

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
