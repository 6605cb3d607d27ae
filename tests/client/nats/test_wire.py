"""Bytes of a server to messages: whole, byte by byte, invalid, too large."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utracefs.nats.errors import WireError
from utracefs.nats.wire import (
    MAX_LINE,
    MAX_MESSAGE,
    MAX_SERVER_INFO,
    Error,
    Info,
    Message,
    Parser,
    Ping,
    Pong,
    Received,
    checked_subject,
    connect_line,
    publish_lines,
)

HEAD = b"NATS/1.0 100 Idle Heartbeat\r\nA: 1\r\nA: 2\r\nB:3\r\n\r\n"
SESSION = (
    b'INFO {"max_payload": 10, "nonce": "x"}\r\n+OK\r\nPING\r\npong\r\n'
    b"MSG a.b 7 5\r\nhe\r\nl\r\nMSG a 8 reply 0\r\n\r\n"
    + b"HMSG a 9 %d %d\r\n%sxy\r\n" % (len(HEAD), len(HEAD) + 2, HEAD)
    + b"-ERR 'Authorization Violation'\r\n"
)
PARTS = [
    Info({"max_payload": 10, "nonce": "x"}),
    Ping,
    Pong,
    Message("a.b", 7, b"he\r\nl", {}, 0),
    Message("a", 8, b"", {}, 0),
    Message("a", 9, b"xy", {"A": "1", "B": "3"}, 100),
    Error("Authorization Violation"),
]


def parsed(*data: bytes) -> list[Received | type]:
    parser = Parser()
    found: list[Received | type] = []
    for one in data:
        parser.feed(one)
        found += [type(part) if isinstance(part, Ping | Pong) else part for part in parser]
    return found


def test_a_session() -> None:
    assert parsed(SESSION) == PARTS
    assert parsed(*(bytes([byte]) for byte in SESSION)) == PARTS


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\n",
        b"\r\n",
        b"\x16\x03\x01\x02\x00\r\n",
        b"INFO\r\n",
        b"INFO []\r\n",
        b"INFO {\r\n",
        b"INFO " + b"[" * 100_000 + b"\r\n",
        b"MSG a 1\r\n",
        b"MSG a x 1\r\n",
        b"MSG a 1 r 1 1\r\n",
        b"MSG a 1 -1\r\n",
        b"MSG \xff 1 1\r\n",
        b"MSG a 1 %d\r\n" % (MAX_MESSAGE + 1),
        b"MSG a 1 " + b"9" * 5000 + b"\r\n",
        b"HMSG a 1 1\r\n",
        b"HMSG a 1 5 4\r\n",
        b"HMSG a 1 -5 4\r\n",
        b"HMSG a 1 4 4\r\nNATS\r\n",
        b"HMSG a 1 10 10\r\nNATS/1.0 x\r\n",
        b"HMSG a 1 11 11\r\nNATS/1.0 \xd9\xa3\r\n",
        b"MSG a 1 1\r\nabc",
        b"x" * (MAX_LINE + 1),
        b"INFO " + b"x" * MAX_SERVER_INFO,
        b"INFO " + b"x" * MAX_SERVER_INFO + b"\r\n",
    ],
)
def test_invalid(data: bytes) -> None:
    with pytest.raises(WireError):
        parsed(data)


@given(st.lists(st.binary(max_size=30)))
def test_nothing_else_than_a_wire_error(data: list[bytes]) -> None:
    with contextlib.suppress(WireError):
        parsed(*data, b"\r\n", SESSION)


def test_payload_limit() -> None:
    assert Info({}).max_payload == Info({"max_payload": "no"}).max_payload == 1 << 20
    assert Info({"max_payload": 1 << 50}).max_payload == MAX_MESSAGE
    assert Info({"max_payload": 77}).max_payload == 77


def test_publish() -> None:
    assert publish_lines("a.b", "r", {}, 5) == (b"PUB a.b r 5\r\n", b"")
    line, head = publish_lines("a", "r", {"K": "v"}, 5)
    assert line == b"HPUB a r %d %d\r\n" % (len(head), len(head) + 5)
    assert head == b"NATS/1.0\r\nK: v\r\n\r\n"
    for name, value in (("", "x"), ("a:", "x"), ("a b", "x"), ("ä", "x"), ("a", "x\r\ny"), ("a", "\n")):
        with pytest.raises(ValueError, match="no header"):
            publish_lines("a", "", {name: value}, 0)


def test_subjects() -> None:
    for subject in ("a", "a.b", "$JS.API.>", "_INBOX.x.*"):
        assert checked_subject(subject) == subject
    for subject in ("", ".", "a.", ".a", "a..b", "a b", "a\r\nPUB", "a\tb", "x" * MAX_LINE):
        with pytest.raises(ValueError, match="is no subject"):
            checked_subject(subject)


def test_connect() -> None:
    assert connect_line({"user": 'a"\r\n'}) == b'CONNECT {"user": "a\\"\\r\\n"}\r\n'
