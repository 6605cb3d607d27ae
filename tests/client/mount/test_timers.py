"""Calls at a later time."""

from __future__ import annotations

from utracefs.mount.operation import Operation, Steps
from utracefs.mount.timers import Pause, Timers


class Clock:
    now = 10.0

    def __call__(self) -> float:
        return self.now


def test_in_their_order() -> None:
    clock = Clock()
    timers = Timers(clock)
    seen: list[str] = []
    assert timers.next_deadline() is None
    timers.later(2, lambda: seen.append("second"))
    timers.later(1, lambda: seen.append("first"))
    timers.later(1, lambda: seen.append("first, too"))
    assert timers.next_deadline() == 11
    timers.run()
    assert seen == []
    clock.now = 11
    timers.run()
    assert seen == ["first", "first, too"]
    clock.now = 13
    timers.run()
    assert seen == ["first", "first, too", "second"]
    assert timers.next_deadline() is None


def test_what_is_put_in_meanwhile_comes_next_time() -> None:
    timers = Timers(Clock())
    seen: list[int] = []

    def again() -> None:
        seen.append(1)
        timers.later(0, again)

    timers.later(0, again)
    timers.run()
    timers.run()
    assert seen == [1, 1]


def test_a_pause() -> None:
    clock = Clock()
    timers = Timers(clock)
    ended: list[tuple[bytes, int]] = []

    def steps() -> Steps:
        yield Pause(timers, 0.5)
        return b"later"

    operation = Operation(steps(), lambda reply, error: ended.append((reply, error)))
    operation.start()
    operation.interrupt()
    timers.run()
    assert ended == []
    clock.now += 0.5
    timers.run()
    assert ended == [(b"later", 0)]
