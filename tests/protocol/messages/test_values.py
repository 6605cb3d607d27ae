"""One value at a time: there and back, and every wrong type with EINVAL."""

import errno
from typing import Any

import pytest

from utracefs_protocol.connection import Connection, Request, encode_request
from utracefs_protocol.errors import TraceError
from utracefs_protocol.messages.values import (
    params_of,
    refuse_unknown,
    text_bytes,
    wire_bool,
    wire_bytes,
    wire_int,
    wire_map,
    wire_text,
)


def over_the_wire(params: list[Any]) -> list[Any]:
    (message,) = Connection(max_object=None).receive(encode_request(1, "m", params))
    assert isinstance(message, Request)
    return message.params


def test_names() -> None:
    assert (wire_text(b"a\xc3\xa4"), wire_text(b"\xff")) == ("aä", b"\xff")
    assert text_bytes("\udcff", "name") == b"\xff"
    with pytest.raises(TraceError, match="name must be str or bin, not nil"):
        text_bytes(None, "name")


@pytest.mark.parametrize(
    ("function", "good", "bad"),
    [
        (wire_int, [0, 2**64 - 1], [-1, 2**64, True, 1.0, "1", None, b"1", [], {}]),
        (wire_bool, [True, False, 0, 1], [2, "x", None, 1.0]),
        (wire_bytes, [b"", b"x"], ["x", None, 1]),
        (wire_map, [{}, {1: 2}], [[], None, "x"]),
    ],
)
def test_single_values(function: Any, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert function(value, "x") == value
    for value in bad:
        with pytest.raises(TraceError, match=r"^x ") as caught:
            function(value, "x")
        assert caught.value.errno == errno.EINVAL


def test_number_of_params() -> None:
    assert params_of("read", [1, 2], "handle", "size") == [1, 2]
    with pytest.raises(TraceError, match=r"read takes \[handle, size\], not 1 params"):
        params_of("read", [1], "handle", "size")


def test_unknown_members() -> None:
    refuse_unknown({"known": 5, "later": 0, "other": None, "third": False, 7: b""}, ("known",), "reg")
    for members in ({"later": 1}, {"later": "x"}, {7: True}):
        with pytest.raises(TraceError, match=r"reg has the unknown member .*upgrade utracefsd") as caught:
            refuse_unknown(members, ("known",), "reg")
        assert caught.value.errno == errno.E2BIG
