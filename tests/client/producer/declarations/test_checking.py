"""Checks of declarations without a daemon."""

from __future__ import annotations

import pytest

from utracefs.producer.declarations.checking import check_declaration, command_bytes


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
