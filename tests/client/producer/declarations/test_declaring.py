"""Events that are made of declarations, and what is registered of them."""

from __future__ import annotations

from utracefs.producer.declarations.checking import check_declaration
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
