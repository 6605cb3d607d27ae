"""The line of an attached trigger, and its entry in the state."""

import pytest

from tests.daemon.consumers.ftrace.trigger.desk import Desk
from utracefsd.consumers.ftrace.event.attached_trigger import count_text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, b":count=0"),
        (1, b":count=1"),
        ((1 << 63) - 1, b":count=9223372036854775807"),
        (1 << 63, b":count=-9223372036854775808"),
        ((1 << 64) - 2, b":count=-2"),
        ((1 << 64) - 1, b":unlimited"),
    ],
)
def test_counts(count: int, text: bytes) -> None:
    assert count_text(count) == text


def test_what_a_successor_gets(desk: Desk) -> None:
    desk.write(desk.a, b"traceoff:3")
    desk.write(desk.a, b"disable_event:user_events:b")
    cells = desk.instance.sink.cells
    switch, off = desk.instance.events.triggers(desk.a)
    assert switch.saved().command == b"disable_event:user_events:b:18446744073709551615"
    assert off.saved().command == b"traceoff:3"
    desk.emit(desk.a)
    assert off.saved().command == b"traceoff:2"
    for one in (switch.saved(), off.saved()):
        assert [cells.key(index) for index, _ in one.cells] == [key for _, key in one.cells]
        assert len(one.cells) == 2
    file = desk.instance.events.get(desk.a)
    assert file is not None
    assert file.saved().triggers == (switch.saved(), off.saved())
