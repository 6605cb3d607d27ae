"""Requests of the tracefs socket over a tree of fakes: shapes, errors, handles, reads that wait."""

import errno
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

from tests.daemon.connections.talking import (
    PEER,
    Talk,
)
from utracefs_protocol.connection import encode_request, encode_response
from utracefs_protocol.limits import MAX_EVENT_ID, MAX_TRACEFS_OBJECT, MAX_UNANSWERED
from utracefs_protocol.messages.tracefs import PerfAttr
from utracefsd.connections import tracefs_connection
from utracefsd.connections.tracefs_connection import MAX_HANDLES, MAX_READ
from utracefsd.consumers.perf.events import PerfEvent
from utracefsd.machine.procfs import read_task


@pytest.fixture
def talk() -> Iterator[Talk]:
    one = Talk()
    yield one
    one.connection.close(0)


class TestWholeFiles:
    def test_a_large_file_is_sent_in_pieces(self, talk: Talk) -> None:
        replies = talk.replies(encode_request(5, "read_file", ["large"]))
        assert len(replies) == 3
        sent = b"".join(reply.data for reply in replies)
        assert sent == encode_response(5, b"x" * 40_000 + b"y" * 40_000)

    def test_others_have_their_turn_while_a_file_is_made(self, talk: Talk) -> None:
        answers = iter(talk.connection.receive(encode_request(5, "read_file", ["large"]), (), 0))
        assert next(answers) is None
        sent = [reply.data for reply in answers if reply is not None]
        assert b"".join(sent) == encode_response(5, b"x" * 40_000 + b"y" * 40_000)
        assert None not in talk.connection.receive(encode_request(6, "read_file", ["trace"]), (), 0)

    def test_requests_that_arrived_together_take_in_once(self, talk: Talk) -> None:
        talk.replies(b"".join(encode_request(number, "read_file", ["trace"]) for number in range(3)))
        assert talk.services.steps == ["take in", *["begin", "take"] * 3]
        talk.replies(encode_request(3, "read_file", ["trace"]))
        assert talk.services.steps[7:] == ["take in", "begin", "take"]

    def test_an_error_behind_the_first_pieces(self, talk: Talk) -> None:
        assert talk.fails(errno.EFBIG, "read_file", "endless") == "too much"

    def test_paths_may_be_bin_and_need_not_be_utf8(self, talk: Talk) -> None:
        talk.call("read_file", b"a/\xff")
        talk.call("stat", "b/\udcff")
        assert [call[1] for call in talk.tree.calls] == [b"a/\xff", b"b/\xff"]

    def test_list_dir_names_are_str_where_they_can_be(self, talk: Talk) -> None:
        assert talk.call("list_dir", "") == [["events", "d"], [b"odd\xff", "f"]]

    def test_list_dir_with_modes(self, talk: Talk) -> None:
        assert talk.call("list_dir", "", True) == [["events", "d", 0o755], [b"odd\xff", "f", 0o640]]
        assert talk.call("list_dir", "", False) == [["events", "d"], [b"odd\xff", "f"]]
        talk.fails(errno.EINVAL, "list_dir", "", 2)

    @pytest.mark.parametrize("method", ["read_file", "list_dir", "stat", "mkdir", "rmdir"])
    def test_the_trees_errors_are_passed_on(self, talk: Talk, method: str) -> None:
        assert "no such file" in talk.fails(errno.ENOENT, method, "gone")

    def test_everything_first_takes_in(self, talk: Talk) -> None:
        talk.call("stat", "trace")
        talk.fails(errno.ENOENT, "stat", "gone")
        handle = talk.call("open", "trace", 0)
        talk.call("close", handle)
        assert talk.services.steps.count("take in") == 4


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("read_file", []),
        ("open", ["a", -1]),
        ("perf_ioctl", ["1", "ENABLE", 0]),
    ],
)
def test_params_of_the_wrong_shape(talk: Talk, method: str, params: list[Any]) -> None:
    talk.call("open", "a", 0)
    assert talk.fails(errno.EINVAL, method, *params)
    assert talk.call("stat", "trace")  # the connection continues


def test_an_unknown_method(talk: Talk) -> None:
    assert "'chmod'" in talk.fails(errno.ENOSYS, "chmod", "trace", 0)
    assert talk.call("stat", "trace")


def test_an_unexpected_exception_costs_one_request(talk: Talk, caplog: pytest.LogCaptureFixture) -> None:
    talk.tree.broken = True
    with caplog.at_level(logging.ERROR):
        talk.fails(errno.EIO, "read_file", "trace")
    [record] = caplog.records
    assert record.exc_info is not None
    assert "read_file" in record.message
    talk.tree.broken = False
    assert talk.call("read_file", "trace") == b"content"


def test_no_descriptor_is_left(
    talk: Talk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon's limit is not a mistake of its own."""

    def stat(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(talk.tree, "stat", stat)
    assert talk.fails(errno.EMFILE, "stat", "trace") == "the daemon has no descriptor left"
    assert not caplog.records


class TestHandles:
    @pytest.mark.parametrize("params", [("read", 10), ("write", b"x"), ("close",)])
    def test_not_open(self, talk: Talk, params: tuple[Any, ...]) -> None:
        method, *rest = params
        assert "handle 7" in talk.fails(errno.EBADF, method, 7, *rest)
        handle = talk.call("open", "a", 0)
        talk.call("close", handle)
        talk.fails(errno.EBADF, method, handle, *rest)

    def test_a_large_size_is_a_short_read(self, talk: Talk) -> None:
        handle = talk.call("open", "trace", 0)
        talk.tree.content = [b"x"]
        talk.call("read", handle, 1 << 40)
        assert talk.tree.files[0].sizes == [MAX_READ]

    def test_too_many(self, talk: Talk) -> None:
        for _ in range(MAX_HANDLES):
            talk.call("open", "a", 0)
        assert str(MAX_HANDLES) in talk.fails(errno.EMFILE, "open", "a", 0)
        assert len(talk.tree.files) == MAX_HANDLES, "as in the kernel it is not opened: nothing is truncated"

    def test_too_many_perf_events(self, talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many as there are events, independent of open files."""
        assert tracefs_connection.MAX_PERF_HANDLES > MAX_EVENT_ID
        monkeypatch.setitem(tracefs_connection._MOST, PerfEvent, (MAX_HANDLES + 1, "open handles"))
        for _ in range(MAX_HANDLES + 1):
            talk.call("perf_event_open", {"config": 1})
        talk.fails(errno.EMFILE, "perf_event_open", {"config": 1})
        talk.call("open", "a", 0)

    def test_all_close_with_the_connection(self, talk: Talk) -> None:
        talk.call("open", "a", 0)
        talk.call("perf_event_open", {"config": 1})
        talk.connection.close(0)
        assert talk.tree.files[0].closed
        assert talk.perf.events[0].closed


class TestReadsThatWait:
    def test_not_with_o_nonblock(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        talk.fails(errno.EAGAIN, "read", handle, 10)
        assert not talk.connection.waiting

    def test_of_one_handle_the_first_comes_first(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", os.O_RDONLY)
        other = talk.call("open", "trace_pipe", os.O_RDONLY)
        for msgid, which in ((501, handle), (502, other), (503, handle)):
            assert talk.send(encode_request(msgid, "read", [which, 10])) == []
        talk.tree.content = [b"1", b"2"]
        # data is there again: a new read comes after the waiting ones
        assert talk.send(encode_request(504, "read", [handle, 10])) == []
        assert [reply.data for reply in talk.connection.speak(0)] == [
            encode_response(501, b"1"),
            encode_response(502, b"2"),
        ]
        talk.tree.content = [b"3", b"4"]
        assert [reply.data for reply in talk.connection.speak(0)] == [
            encode_response(503, b"3"),
            encode_response(504, b"4"),
        ]

    def test_closing_the_handle_ends_it(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", os.O_RDONLY)
        other = talk.call("open", "trace_pipe", os.O_RDONLY)
        talk.send(encode_request(501, "read", [handle, 10]))
        talk.send(encode_request(502, "read", [other, 10]))
        closed, ended = talk.send(encode_request(503, "close", [handle]))
        assert closed == [1, 503, None, None]
        assert ended[:2] == [1, 501]
        assert ended[2][0] == errno.EBADF
        talk.tree.content = [b"x"]
        assert [reply.data for reply in talk.connection.speak(0)] == [encode_response(502, b"x")]

    def test_closing_the_connection_forgets_them(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", os.O_RDONLY)
        talk.ask("read", handle, 10)
        talk.connection.close(0)
        assert not talk.connection.waiting
        assert list(talk.connection.speak(0)) == []

    def test_too_many_end_the_connection(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", os.O_RDONLY)
        for _ in range(MAX_UNANSWERED):
            assert talk.ask("read", handle, 10) == []
        [[kind, method, [number, text]]] = talk.ask("read", handle, 10)
        assert (kind, method, number) == (2, "error", errno.EMSGSIZE)
        assert str(MAX_UNANSWERED) in text
        assert talk.connection.closing

    def test_an_unexpected_exception_ends_only_the_read(
        self, talk: Talk, caplog: pytest.LogCaptureFixture
    ) -> None:
        handle = talk.call("open", "trace_pipe", os.O_RDONLY)
        talk.ask("read", handle, 10)
        talk.tree.broken = True
        with caplog.at_level(logging.ERROR):
            [reply] = talk.connection.speak(0)
        assert msgpack.unpackb(reply.data)[2][0] == errno.EIO
        assert len(caplog.records) == 1


class TestPoll:
    def test_what_is_ready_is_answered_at_once(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        talk.tree.content = [b"text"]
        assert talk.call("poll", handle) is None
        assert talk.tree.files[0].sizes == []
        talk.fails(errno.EBADF, "poll", 4711)
        talk.fails(errno.EINVAL, "poll")

    def test_it_is_answered_before_the_read_that_takes_what_there_is(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        assert talk.ask("read", handle, 100) == []
        assert talk.ask("poll", handle) == []
        talk.tree.content = [b"text"]
        assert [answer[3] for answer in talk.spoken()] == [None, b"text"]

    def test_a_read_does_not_wait_behind_it(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        assert talk.ask("poll", handle) == []
        talk.tree.content = [b"text"]
        assert talk.call("read", handle, 100) == b"text"

    def test_it_ends_with_its_handle(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        assert talk.ask("poll", handle) == []
        closed, dropped = talk.ask("close", handle)
        assert closed[2:] == [None, None]
        assert dropped[2][0] == errno.EBADF

    def test_it_waits_for_a_perf_event(self, talk: Talk) -> None:
        handle = talk.call("perf_event_open", {"config": 1, "data_pages": 8})["handle"]
        assert talk.ask("poll", handle) == []
        talk.perf.events[0].filled = True
        assert [answer[2:] for answer in talk.spoken()] == [[None, None]]
        counting = talk.call("perf_event_open", {"config": 1})["handle"]
        talk.fails(errno.EINVAL, "poll", counting)


class TestReady:
    def test_it_says_what_poll_waits_for(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        assert talk.call("ready", handle) is False
        talk.tree.content = [b"text"]
        assert talk.call("ready", handle) is True
        talk.fails(errno.EBADF, "ready", 4711)


class TestCancel:
    def test_a_read_that_waits(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        assert talk.send(encode_request(500, "read", [handle, 10])) == []
        done, cancelled = talk.ask("cancel", 500)
        assert done[2:] == [None, True]
        assert cancelled[1] == 500 and cancelled[2][0] == errno.EINTR
        talk.tree.content = [b"text"]
        assert talk.spoken() == []
        assert talk.call("read", handle, 10) == b"text"

    def test_of_several_only_that_one(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        for msgid in (500, 501):
            assert talk.send(encode_request(msgid, "read", [handle, 10])) == []
        assert len(talk.ask("cancel", 500)) == 2
        talk.tree.content = [b"text"]
        assert [answer[1:] for answer in talk.spoken()] == [[501, None, b"text"]]

    def test_what_does_not_wait(self, talk: Talk) -> None:
        handle = talk.call("open", "trace", 0)
        talk.tree.content = [b"text"]
        assert talk.send(encode_request(500, "read", [handle, 10]))
        assert talk.call("cancel", 500) is False
        talk.fails(errno.EINVAL, "cancel", -1)


class TestFlagsOfARead:
    def test_they_are_those_of_the_open_file(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        talk.fails(errno.EAGAIN, "read", handle, 10, os.O_NONBLOCK)
        talk.fails(errno.EAGAIN, "read", handle, 10)
        assert talk.ask("read", handle, 10, 0) == []

    def test_a_read_that_does_not_wait_is_first(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_pipe", 0)
        assert talk.ask("read", handle, 10) == []
        talk.tree.content = [b"text"]
        assert talk.call("read", handle, 10, os.O_NONBLOCK) == b"text"


class TestSeek:
    def test_seek(self, talk: Talk) -> None:
        handle = talk.call("open", "trace", 0)
        assert talk.call("seek", handle, 7) == 7
        assert talk.tree.calls[-1] == ("seek", 7)
        talk.fails(errno.EBADF, "seek", 4711, 0)
        talk.fails(errno.EINVAL, "seek", handle, -1)
        counting = talk.call("perf_event_open", {"config": 1})["handle"]
        talk.fails(errno.ESPIPE, "seek", counting, 0)


def _ourselves() -> dict[str, int]:
    task = read_task(os.getpid())
    assert task is not None
    return {"pid": os.getpid(), "start_time": task.start_time}


class TestOnBehalf:
    def test_of_a_thread_that_lives(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_marker", os.O_WRONLY)
        talk.call("write", handle, b"mine")
        talk.call("write", handle, b"theirs", _ourselves())
        talk.call("write", handle, b"mine again")
        assert talk.tree.files[0].pids == [PEER.pid, os.getpid(), PEER.pid]
        assert talk.tree.files[0].cpus == [None, 3, None]

    def test_of_one_that_is_gone_or_another(self, talk: Talk) -> None:
        handle = talk.call("open", "trace_marker", os.O_WRONLY)
        ourselves = _ourselves()
        talk.fails(errno.ESRCH, "write", handle, b"", ourselves | {"start_time": ourselves["start_time"] + 1})
        talk.fails(errno.ESRCH, "write", handle, b"", {"pid": 2**31 - 1, "start_time": 1})
        assert talk.tree.files[0].pids == []

    @pytest.mark.parametrize(
        ("number", "writer"),
        [
            (errno.EINVAL, 5),
            (errno.EINVAL, {"pid": 0, "start_time": 1}),
            (errno.EINVAL, {"pid": 1}),
            (errno.EINVAL, {"pid": "1", "start_time": 1}),
            (errno.E2BIG, {"pid": 1, "start_time": 1, "uid": 5}),
        ],
    )
    def test_wrong_shapes(self, talk: Talk, number: int, writer: Any) -> None:
        handle = talk.call("open", "trace_marker", os.O_WRONLY)
        talk.fails(number, "write", handle, b"", writer)
        assert talk.tree.files[0].pids == []

    def test_others_may_not(self) -> None:
        talk = Talk(speaks_for_others=False)
        handle = talk.call("open", "trace_marker", os.O_WRONLY)
        talk.fails(errno.EPERM, "write", handle, b"theirs", _ourselves())
        assert talk.tree.files[0].written == b""
        assert talk.call("write", handle, b"mine") == 3


class TestPerf:
    def test_with_a_ring(self, talk: Talk) -> None:
        request = encode_request(9, "perf_event_open", [{"name": "user_events:a", b"data_pages": 8}])
        [reply] = talk.replies(request)
        [fd] = reply.fds
        os.close(fd)
        [event] = talk.perf.events
        assert msgpack.unpackb(reply.data) == [1, 9, None, {"handle": event.handle}]
        assert event.attr == PerfAttr(name=b"user_events:a", data_pages=8)
        assert talk.call("read", event.handle, 8) == (5).to_bytes(8, "little")
        assert talk.call("perf_ioctl", event.handle, "ID", 0) == 99
        talk.fails(errno.ENOTTY, "perf_ioctl", event.handle, "NO", 0)
        talk.fails(errno.EINVAL, "write", event.handle, b"x")
        talk.call("close", event.handle)
        assert event.closed
        talk.fails(errno.EBADF, "read", event.handle, 8)

    def test_counting_only_has_no_descriptor(self, talk: Talk) -> None:
        [reply] = talk.replies(encode_request(9, "perf_event_open", [{"config": 1}]))
        assert reply.fds == ()

    def test_ioctl_on_a_file(self, talk: Talk) -> None:
        handle = talk.call("open", "trace", 0)
        talk.fails(errno.ENOTTY, "perf_ioctl", handle, "ENABLE", 0)
        talk.fails(errno.EBADF, "perf_ioctl", 4711, "ENABLE", 0)


@pytest.mark.parametrize(
    ("data", "number"),
    [
        (b"\xc1", errno.EPROTO),
        (msgpack.packb(b"a record"), errno.EPROTO),
        (b"\xc6" + (MAX_TRACEFS_OBJECT + 1).to_bytes(4, "big"), errno.EPROTO),
        (b"\x94\x00\x01\xa5write\x92\x01\xc6" + MAX_TRACEFS_OBJECT.to_bytes(4, "big"), errno.EMSGSIZE),
    ],
)
def test_broken_framing_ends_the_connection_after_what_came_before(
    talk: Talk, data: bytes, number: int
) -> None:
    before = encode_request(1, "stat", ["trace"])
    answered, ended = talk.send(before + data)
    assert answered[1] == 1
    assert ended[:2] == [2, "error"]
    assert ended[2][0] == number, ended
    assert talk.connection.closing


def test_others_may_have_their_turn_between_two_requests(talk: Talk) -> None:
    requests = b"".join(encode_request(msgid, "stat", ["trace"]) for msgid in (1, 2))
    answers = talk.connection.receive(requests, (), 0)
    assert next(answers) is not None
    assert len(talk.tree.calls) == 1
    assert next(answers) is None
    assert len(talk.tree.calls) == 1
    assert len(list(answers)) == 1, "there is no third request to wait for"
    assert len(talk.tree.calls) == 2


def test_descriptors_that_no_request_takes_are_closed(talk: Talk) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    assert list(talk.connection.receive(b"", [fd], 0)) == []
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/self/fd/{fd}"):
        assert time.monotonic() < deadline


class FakeChange:
    """A change elsewhere, for which the response of its operation waits."""

    deadline_ns = 100
    done = forgotten = False

    def give_up(self, now_ns: int) -> None:
        self.done = True

    def forget(self) -> None:
        self.forgotten = True


class TestDelayed:
    @pytest.mark.parametrize("number", [300, 2000])
    def test_a_tool_may_send_as_many_as_it_likes(self, talk: Talk, number: int) -> None:
        """Unlike reads that wait for data, these have an end: no connection is closed for them."""
        talk.services.next_changes += [FakeChange() for _ in range(number)]
        for _ in range(number):
            assert talk.ask("write_file", "enable", b"1", True) == []
        replies = [msgpack.unpackb(reply.data) for reply in talk.connection.speak(100)]
        assert [msgid for _, msgid, *_ in replies] == list(range(1, number + 1))
        assert not talk.connection.closing

    def test_what_was_no_operation_changes_nothing(self, talk: Talk) -> None:
        """Otherwise it would wait for changes of others."""
        talk.services.next_changes.append(FakeChange())
        talk.fails(errno.ENOSYS, "nonsense")
        assert "take" not in talk.services.steps

    def test_the_end_of_the_connection_leaves_nothing(self, talk: Talk) -> None:
        before = set(os.listdir("/proc/self/fd"))
        changes = [FakeChange(), FakeChange()]
        talk.services.next_changes += changes
        talk.ask("write_file", "enable", b"1", True)
        talk.ask("perf_event_open", {"name": "x", "data_pages": 1, "sample_period": 1})
        talk.connection.close(0)
        assert all(change.forgotten for change in changes)
        assert set(os.listdir("/proc/self/fd")) == before
        assert talk.connection.next_timer_ns() is None
