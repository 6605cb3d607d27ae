"""Events that are made of declarations, and what is registered of them."""

from __future__ import annotations

import pytest

from utracefs.producer.declarations.checking import check_declaration, command_bytes
from utracefs.producer.declarations.declaring import make_event, name_args
from utracefs_protocol.events.declaration import REG_PERSIST


def test_what_is_registered_is_the_spelling_that_always_matches() -> None:
    def registered(text: bytes) -> bytes:
        return name_args(check_declaration(text).canonical())

    assert registered(b"odd   u32 a;;u32 b; ") == b"odd u32 a; u32 b"
    assert registered(b"caf\xe9 u32 a\xe9") == b"caf\xe9 u32 a\xe9"
    glued = b"long " + b";".join(b"u8 a%02d" % i for i in range(72))
    assert len(glued) <= 511 < len(glued.replace(b";", b"; "))
    assert registered(glued) == glued


def test_an_event_is_off_and_unknown() -> None:
    event = make_event(None, check_declaration(b"one u32 a; __rel_loc char[] b"), REG_PERSIST)
    assert not event
    assert not event.registered
    assert (event.name, event.fields, event.flags, event.index) == ("one", ("a", "b"), 1, -1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"test long a", "'test long a': field 'a': unknown type 'long'; use s64 or u64"),
        (b"test u32", "'test u32': field 'u32': has no name; write 'type name'"),
        (b"test struct s a", "field 'a': a struct needs its size in bytes: 'struct s a 8'"),
        (b"test:F u32 a", "event name 'test:F' has a ':'"),
        (b"a/b u32 a", "event name 'a/b' has a '/'"),
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
