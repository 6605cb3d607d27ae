"""Names and fields of tracepoints of EventHeader."""

from __future__ import annotations

import pytest

from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_header import HEADER_SIZE, header_name

HEADER = b"u8 eventheader_flags; u8 version; u16 id; u16 tag; u8 opcode; u8 level"


@pytest.mark.parametrize(
    ("name", "provider"),
    [
        (b"Shop_L4K1f", b"Shop"),
        (b"Shop_L4K1_L5K0", b"Shop_L4K1"),
        (b"a_L0Kffffffffffffffff", b"a"),
        (b"Shop_L4K1Gmine", b"Shop"),
        (b"Shop_L4K1GmineX2.3a", b"Shop"),
        (b"Shop_L4K", None),
        (b"Shop_LgK1", None),
        (b"Shop_L4K1g", None),
        (b"Shop_L4K11111111111111111", None),
        (b"_L4K1", None),
        (b"Shop", None),
    ],
)
def test_names(name: bytes, provider: bytes | None) -> None:
    found = header_name(name, parse(name + b" " + HEADER).fields)
    assert (found and found["provider"]) == provider


@pytest.mark.parametrize(
    "fields", [b"", HEADER[:-10], HEADER + b"; u8 more", HEADER.replace(b"u16 tag", b"u32 tag"), b"u64 all"]
)
def test_other_fields(fields: bytes) -> None:
    declaration = parse(b"Shop_L4K1 " + fields)
    assert header_name(declaration.name, declaration.fields) is None


def test_the_size_is_that_of_the_fields() -> None:
    assert sum(field.size for field in parse(b"Shop_L4K1 " + HEADER).fields) == HEADER_SIZE
