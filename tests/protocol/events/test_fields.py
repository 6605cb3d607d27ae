"""The place of a field's bytes, and fields outside the entry."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.protocol.events.plain_fields import plain_bytes
from utracefs_protocol.events._event_printer import EventPrinter
from utracefs_protocol.events.declaration import Field, FieldKind
from utracefs_protocol.events.event_format import EventFormat

ENTRY = bytes(range(8)) + struct.pack("<HH", 16, 3) + struct.pack("<HH", 2, 3) + b"abcdef"

KINDS = [FieldKind.STRUCT, FieldKind.DATA_LOC, FieldKind.REL_LOC]


def field(offset: int, size: int, kind: FieldKind) -> Field:
    return Field(b"type", b"name", offset, size, False, kind)


def field_bytes(field: Field, entry: bytes) -> bytes | None:
    """As it is printed, in hex; None: it reaches past the entry."""
    text = EventPrinter(EventFormat(b"e", 9, (field,), b"?")).text(entry)
    return None if text == "<OVERFLOW>" else bytes.fromhex(text.removeprefix("name="))


def test_at_their_place() -> None:
    kind = FieldKind.STRUCT
    assert field_bytes(field(2, 4, kind), ENTRY) == b"\2\3\4\5"
    assert field_bytes(field(20, 2, kind), ENTRY) == b"ef"
    assert field_bytes(field(19, 0, kind), ENTRY) == b"def", "size 0: to the end"
    assert field_bytes(field(22, 0, kind), ENTRY) == b""


def test_where_a_location_word_points() -> None:
    assert field_bytes(field(8, 4, FieldKind.DATA_LOC), ENTRY) == b"abc"
    assert field_bytes(field(12, 4, FieldKind.REL_LOC), ENTRY) == b"cde"
    common = struct.pack("<HH", 0, 8)
    assert field_bytes(field(8, 4, FieldKind.DATA_LOC), ENTRY[:8] + common) == bytes(range(8))


@pytest.mark.parametrize("size", [0, 1, 4, 10**30])
def test_a_location_word_has_4_bytes_whatever_a_format_says(size: int) -> None:
    assert field_bytes(field(8, size, FieldKind.DATA_LOC), ENTRY) == b"abc"
    assert field_bytes(field(8, size, FieldKind.DATA_LOC), ENTRY[:11]) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("offset", "size"),
    [(19, 4), (22, 1), (23, 0), (2**32, 4), (2**64 - 4, 4), (2**64, 4), (10**30, 10**30), (0, 2**64 - 1)],
)
def test_outside(kind: FieldKind, offset: int, size: int) -> None:
    if kind in (FieldKind.DATA_LOC, FieldKind.REL_LOC) and offset == 0:
        size = offset = 22
    assert field_bytes(field(offset, size, kind), ENTRY) is None


def test_nothing_at_all() -> None:
    assert field_bytes(field(0, 1, FieldKind.STRUCT), b"") is None
    assert field_bytes(field(0, 0, FieldKind.STRUCT), b"") == b""


@given(st.binary(max_size=40), st.integers(0, 40), st.integers(0, 9), st.sampled_from(KINDS))
def test_never_anything_but_bytes_of_the_entry(entry: bytes, offset: int, size: int, kind: FieldKind) -> None:
    one = field(offset, size, kind)
    assert field_bytes(one, entry) == plain_bytes(one, entry)
