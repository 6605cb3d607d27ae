"""Responses that are delayed until the changes of the operation elsewhere are acknowledged."""

from __future__ import annotations

import errno
import itertools
import os
from typing import Any

import msgpack
import pytest

from tests.daemon.connections.talking import PEER, FakePerf, FakeServices, FakeTree
from utracefs_protocol.connection import encode_request
from utracefsd.connections.tracefs_connection import Reply, TracefsConnection


class FakeChange:
    deadline_ns = 100

    def __init__(self) -> None:
        self.done = False
        self.gave_up: list[int] = []
        self.forgotten = False

    def give_up(self, now_ns: int) -> None:
        self.gave_up.append(now_ns)
        self.done = True

    def forget(self) -> None:
        self.forgotten = True


class Talk:
    """A client; `next_changes` are the changes of its next operations."""

    def __init__(self) -> None:
        self.tree = FakeTree()
        self.services = FakeServices(self.tree, FakePerf())
        self.next_changes, self.steps = self.services.next_changes, self.services.steps
        self.msgid = itertools.count(1)
        self.connection = TracefsConnection(self.services, PEER)

    def changing(self) -> FakeChange:
        change = FakeChange()
        self.next_changes.append(change)
        return change

    def ask(self, method: str, *params: Any) -> list[Any]:
        data = encode_request(next(self.msgid), method, list(params))
        return messages_of([one for one in self.connection.receive(data, (), 0) if one is not None])

    def write(self, path: str = "enable") -> list[Any]:
        return self.ask("write_file", path, b"1", True)

    def spoken(self, now_ns: int = 0) -> list[Any]:
        return messages_of(list(self.connection.speak(now_ns)))


def messages_of(replies: list[Reply]) -> list[Any]:
    for reply in replies:
        for fd in reply.fds:
            os.close(fd)
    return [msgpack.unpackb(reply.data)[1:] for reply in replies]


def test_what_others_change_while_a_file_is_read_is_not_waited_for() -> None:
    talk = Talk()
    steps = []
    for one in talk.connection.receive(encode_request(1, "read_file", ["large"]), (), 0):
        steps += [*talk.steps, "others" if one is None else "reply"]
        talk.steps.clear()
    assert steps[:3] == ["take in", "begin", "others"]
    assert steps[3:6] == ["begin", "take", "reply"]


def test_other_requests_are_answered_meanwhile() -> None:
    talk = Talk()
    change = talk.changing()
    assert talk.write() == []
    assert talk.ask("stat", "enable")[0][0] == 2
    assert talk.write("other") == [[3, None, 1]]
    change.done = True
    assert talk.spoken() == [[1, None, 1]]


def test_several_are_answered_in_their_order() -> None:
    talk = Talk()
    changes = [talk.changing() for _ in range(3)]
    for _ in changes:
        assert talk.write() == []
    changes[1].done = True
    assert not talk.connection.waiting
    assert talk.spoken() == []
    changes[0].done = True
    assert talk.spoken() == [[1, None, 1], [2, None, 1]]
    assert talk.connection.next_timer_ns() == 100
    changes[2].done = True
    assert talk.spoken() == [[3, None, 1]]


def test_errors_and_descriptors_are_withheld_as_well() -> None:
    talk = Talk()
    failed, opened = talk.changing(), talk.changing()
    assert talk.write("gone") == []
    assert talk.ask("perf_event_open", {"name": "x", "data_pages": 1, "sample_period": 1}) == []
    failed.done = opened.done = True
    [[first, error, _], [second, none, result]] = talk.spoken()
    assert (first, error[0], second, none) == (1, errno.ENOENT, 2, None)
    assert result["handle"] == 1


def test_what_is_not_taken_is_said_the_next_time() -> None:
    talk = Talk()
    for _ in range(3):
        talk.changing().done = True
        talk.write()
    saying = talk.connection.speak(0)
    assert messages_of([next(saying)]) == [[1, None, 1]]
    saying.close()  # type: ignore[attr-defined]
    assert talk.connection.waiting
    assert talk.spoken() == [[2, None, 1], [3, None, 1]]


def test_what_was_no_operation_changes_nothing() -> None:
    """Otherwise it would wait for changes of others."""
    talk = Talk()
    talk.changing()
    assert talk.ask("nonsense")[0][1][0] == errno.ENOSYS
    assert "take" not in talk.steps


def test_the_end_of_the_connection_leaves_nothing() -> None:
    before = set(os.listdir("/proc/self/fd"))
    talk = Talk()
    changes = [talk.changing(), talk.changing()]
    talk.write()
    talk.ask("perf_event_open", {"name": "x", "data_pages": 1, "sample_period": 1})
    talk.connection.close(0)
    assert all(change.forgotten for change in changes)
    assert set(os.listdir("/proc/self/fd")) == before
    assert talk.connection.next_timer_ns() is None


@pytest.mark.parametrize("number", [300, 2000])
def test_a_tool_may_send_as_many_as_it_likes(number: int) -> None:
    """Unlike reads that wait for data, these have an end: no connection is closed for them."""
    talk = Talk()
    changes = [talk.changing() for _ in range(number)]
    for _ in changes:
        assert talk.write() == []
    assert [msgid for msgid, *_ in talk.spoken(100)] == list(range(1, number + 1))
    assert not talk.connection.closing
