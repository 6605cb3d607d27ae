"""Records in pieces, of any length, and what is broken; shown with JSON lines."""

import json

import pytest

from tests.client.export.one_page import TEXT, records_of
from utracefs.export._json_text import JsonText
from utracefs_protocol.events.declaration import Field, FieldKind


def test_whole_records_in_pieces() -> None:
    text = JsonText(records_of([b"%04d" % n for n in range(1000)], [TEXT]))
    pieces = []
    while piece := text.read(500):
        assert piece.endswith(b"\n") and len(piece) < 800
        pieces.append(piece)
    assert [json.loads(line)["fields"]["t"] for line in b"".join(pieces).splitlines()] == [
        f"{n:04}" for n in range(1000)
    ]
    assert text.read(500) == b""


def test_a_long_record_makes_room_for_itself() -> None:
    (line,) = JsonText(records_of([b"\x01" * 60000], [TEXT])).read(1).splitlines()
    assert json.loads(line)["fields"]["t"] == "\x01" * 60000


def test_a_record_that_is_much_too_long_has_no_fields() -> None:
    fields = [Field(b"char[]", b"t%d" % n, 8, 0, True, FieldKind.CHAR_ARRAY) for n in range(300)]
    (line,) = JsonText(records_of([b"\x01" * 60000], fields)).read(1).splitlines()
    assert json.loads(line)["fields"] == {}


def test_a_name_may_be_longer_than_that() -> None:
    (line,) = JsonText(records_of([b"1234"], [TEXT], event="x" * (40 << 20))).read(1).splitlines()
    assert len(json.loads(line)["name"]) == 40 << 20


def test_a_record_that_is_too_short_has_no_fields() -> None:
    fields = [Field(b"u64", b"n", 8, 8, False, FieldKind.INTEGER)]
    (line,) = JsonText(records_of([b"1234"], fields)).read(1).splitlines()
    assert json.loads(line)["fields"] == {}


def test_what_is_broken_comes_after_all_before_it() -> None:
    text = JsonText(records_of([b"good"], [TEXT], broken=True))
    assert text.read(1 << 20).count(b"\n") == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="page at 0"):
            text.read(1 << 20)
    with pytest.raises(ValueError, match="page at 0"):
        JsonText(records_of([], [TEXT], broken=True)).read(1)
