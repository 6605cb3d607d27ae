"""Records of any length; shown with JSON lines."""

import json

from tests.client.export.one_page import TEXT, records_of
from utracefs.export._json_text import JsonText
from utracefs_protocol.events.declaration import Field, FieldKind


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
