"""Streams over the tracefs socket: opened with two descriptors, waited for, closed with their connection."""

import errno
import os
from typing import Any

import msgpack
import pytest

from tests.daemon.connections.talking import Talk
from utracefs_protocol.connection import encode_request
from utracefs_protocol.messages.tracefs import Missed, StreamAttr, StreamMissed
from utracefsd.connections.tracefs_connection import MAX_STREAMS
from utracefsd.consumers.stream.streams import OpenStream


class FakeStream(OpenStream):
    def __init__(self, attr: StreamAttr, handle: int) -> None:
        self.attr = attr
        self.handle = handle
        self.closed = False
        self.filled = False

    def descriptors(self) -> tuple[int, int]:
        if self.attr.events == (b"no_descriptors",):
            raise OSError(errno.EMFILE, "Too many open files")
        return os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)

    def ready(self) -> bool:
        return self.filled

    def missed(self) -> StreamMissed:
        return StreamMissed(b"state", 0, (Missed(b"work", 7, 1),))

    def close(self) -> None:
        self.closed = True


class FakeStreams:
    def __init__(self) -> None:
        self.streams: list[FakeStream] = []

    def open(self, attr: StreamAttr, *, handle: int, uid: int) -> FakeStream:
        self.streams.append(FakeStream(attr, handle))
        return self.streams[-1]


@pytest.fixture
def streams() -> FakeStreams:
    return FakeStreams()


@pytest.fixture
def talk(streams: FakeStreams) -> Talk:
    return Talk(streams=streams)


ATTR: dict[str, Any] = {"events": ["user_events:*"]}
MISSED: dict[str, Any] = {"origin": "state", "events": [["work", 7, 1]]}


def test_the_ring_and_the_doorbell_come_with_the_answer(talk: Talk, streams: FakeStreams) -> None:
    attr = {"events": ["a", b"b*"], "instances": ["web"], "filter": "x > 1", "size": 1 << 20, "watermark": 9}
    (reply,) = talk.replies(encode_request(7, "stream_open", [attr]))
    assert msgpack.unpackb(reply.data) == [1, 7, None, {"handle": 1, **MISSED}]
    assert [os.readlink(f"/proc/self/fd/{fd}") for fd in reply.fds] == ["/dev/null", "/dev/zero"]
    for fd in reply.fds:
        os.close(fd)
    (stream,) = streams.streams
    assert stream.attr == StreamAttr((b"a", b"b*"), (b"web",), b"x > 1", 1 << 20, 9)
    assert talk.services.steps.count("take in") == 1


def test_what_is_refused_before_it_is_opened(talk: Talk, streams: FakeStreams) -> None:
    wrong: list[Any] = [{}, {"events": []}, {**ATTR, "size": 3 << 20}, [], None]
    for attr in wrong:
        talk.fails(errno.EINVAL, "stream_open", attr)
    talk.fails(errno.E2BIG, "stream_open", {**ATTR, "more": 1})
    talk.fails(errno.EINVAL, "stream_open")
    assert not streams.streams


def test_no_descriptors_no_stream(talk: Talk, streams: FakeStreams) -> None:
    talk.ask("stream_open", {"events": ["no_descriptors"]})
    assert streams.streams[0].closed
    talk.fails(errno.EBADF, "ready", 1)


def test_it_is_waited_for_and_closed(talk: Talk, streams: FakeStreams) -> None:
    handle = talk.call("stream_open", ATTR)["handle"]
    (stream,) = streams.streams
    assert talk.call("ready", handle) is False
    assert talk.ask("poll", handle) == []
    stream.filled = True
    assert [answer[2:] for answer in talk.spoken()] == [[None, None]]
    assert talk.call("ready", handle) is True
    assert talk.call("stream_missed", handle) == MISSED
    for method, *params in (("read", 8), ("write", b"x"), ("seek", 0)):
        assert "is a stream" in talk.fails(errno.EINVAL, method, handle, *params)
    talk.fails(errno.ENOTTY, "perf_ioctl", handle, "ENABLE", 0)
    talk.call("close", handle)
    assert stream.closed
    for method in ("ready", "stream_missed"):
        talk.fails(errno.EBADF, method, handle)


def test_it_ends_with_its_connection(talk: Talk, streams: FakeStreams) -> None:
    talk.call("stream_open", ATTR)
    talk.connection.close(0)
    assert streams.streams[0].closed


def test_how_many_a_connection_may_have(talk: Talk, streams: FakeStreams) -> None:
    talk.call("open", "trace", 0)
    handles = [talk.call("stream_open", ATTR)["handle"] for _ in range(MAX_STREAMS)]
    talk.fails(errno.EMFILE, "stream_open", ATTR)
    talk.call("close", handles[0])
    talk.call("stream_open", ATTR)
    assert len(streams.streams) == MAX_STREAMS + 1
