"""The id of an event, also when there are records of removed ones."""

import contextlib
import errno

from tests.daemon.events.helpers import refused, register
from utracefs_protocol.errors import TraceError
from utracefs_protocol.limits import MAX_EVENT_ID
from utracefsd.events.event import CommandString
from utracefsd.events.event_table import EventTable
from utracefsd.events.status_file import StatusFile
from utracefsd.machine.shares import Resource, Shares


class Buffer:
    """Records of these ids, all of removed events."""

    def __init__(self, *ids: int) -> None:
        self.ids = set(ids)
        self.walks = 0

    def of_removed(self) -> bool:
        return bool(self.ids)

    def event_ids(self) -> set[int]:
        self.walks += 1
        return self.ids


def gone(table: EventTable, command: bytes, *, uid: int = 0, recorded: bool = True) -> int:
    """The id of an event that was made and removed."""
    event = register(table, command, privileged=not uid, uid=uid)
    event.was_recorded |= recorded
    table.release(event)
    table.reap()
    return event.id


def test_ids_are_free_again_when_the_buffers_have_no_records_of_them(status: StatusFile) -> None:
    table = EventTable(status, first_id=MAX_EVENT_ID - 2)
    table.ids.records = buffer = Buffer(65533, 65534, 65535)
    assert [gone(table, b"e%d" % n) for n in range(3)] == [65533, 65534, 65535]
    for _ in range(5):
        with refused(errno.ENODEV) as caught:
            table.register(CommandString.parse(b"new"), privileged=True)
    assert "3 removed events" in caught.text
    assert buffer.walks == 1, "not for each that is refused"
    assert gone(table, b"e1") == 65534, "which has one"
    buffer.ids.remove(65533)
    for _ in range(20):
        with contextlib.suppress(TraceError):
            table.register(CommandString.parse(b"new"), privileged=True)
    (event,) = table.events()
    assert (event.id, buffer.walks) == (65533, 2)


def test_the_ids_of_one_users_records_are_a_share(status: StatusFile) -> None:
    shares = Shares({Resource.OLD_IDS: 2})
    table = EventTable(status, shares=shares)
    table.ids.records = buffer = Buffer(20, 21)
    for name in (b"a", b"b"):
        gone(table, name, uid=1000)
    with refused(errno.EMFILE) as caught:
        table.register(CommandString.parse(b"c"), privileged=False, owner_uid=1000)
    assert "2 removed events of user 1000" in caught.text
    assert gone(table, b"a", uid=1000) == 20
    assert gone(table, b"c", uid=1001) == 22
    buffer.ids.clear()
    register(table, b"d", privileged=False, uid=1000)
    assert shares.total(Resource.OLD_IDS) == 0
