"""Events that are made of declarations, and what is registered of them."""

from __future__ import annotations

import pytest

from utracefs.producer.declarations.checking import check_declaration, command_bytes
from utracefs.producer.declarations.declaring import make_event
from utracefs_protocol.events.declaration import REG_PERSIST


def test_an_event_is_off_and_unknown() -> None:
    event = make_event(None, check_declaration(b"one u32 a; __rel_loc char[] b"), REG_PERSIST)
    assert not event
    assert not event.registered
    assert (event.name, event.fields, event.flags, event.index) == ("one", ("a", "b"), 1, -1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"test long a", "'test long a': field 'a': unknown type 'long'; use s64 or u64"),
        (b"", "'': the event name is empty"),
        (b"one u32  number", "only single spaces may separate the words"),
        (b"x" * 512, "command string of 512 bytes; at most 511 are possible"),
        (b"\xff u32", r"'\\xff u32': field 'u32': has no name"),
    ],
)
def test_a_wrong_declaration_is_an_error_with_the_daemons_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError) as caught:
        check_declaration(text)
    assert reason in str(caught.value)


def test_text_and_bytes() -> None:
    assert command_bytes("caf\udce9") == command_bytes(b"caf\xe9") == b"caf\xe9"
    with pytest.raises(TypeError, match="str or bytes, not int"):
        command_bytes(1)  # type: ignore[arg-type]
