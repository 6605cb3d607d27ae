"""EventHeader records of programs that do harm, by mistake or not: contents, and amounts."""

import struct
from typing import Any

import pytest

from tests.client.recordings.event_header.event_headers import (
    FIELDS,
    NAME,
    TRACEPOINT,
    VARIABLE,
    entry,
    field,
    payload,
)
from tests.client.recordings.test_event_header import values
from tests.client.recordings.test_records import merge
from utracefs.recordings._event_header import EventHeaders
from utracefs.recordings._records import MergedPages, Records
from utracefs.recordings.event_header import HeaderEvents
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import EventFormat


@pytest.mark.parametrize("encoding", [10, 11, 12])
@pytest.mark.parametrize(
    ("text", "expected"), [("a\0b", "a\ufffdb"), ("\0\0a\0", "\ufffd\ufffda"), ("\0", ""), ("a\0\0", "a")]
)
def test_a_zero_does_not_end_a_counted_text(encoding: int, text: str, expected: str) -> None:
    encoded = text.encode({10: "utf-8", 11: "utf-16-le", 12: "utf-32-le"}[encoding])
    data = struct.pack("<H", len(text)) + encoded
    fields = [field(b"a", encoding), field(b"b", encoding | VARIABLE)]
    assert values(*fields, data=data + b"\1\0" + data) == {"a": expected, "b": [text]}


def test_kept_metadata_are_limited() -> None:
    plans: dict[bytes, Any] = {}
    events = HeaderEvents()
    events.add("user_events", EventFormat(NAME, TRACEPOINT, parse(NAME + b" " + FIELDS).fields, b""))
    pages = [[(n, entry(payload(b"ev;n=%d" % n + b"x" * 60_000)))] for n in range(40)]
    merged = MergedPages(merge(*pages))
    source = EventHeaders(merged, events.tracepoints, plans, events._plan, events._rest)
    found = Records(source, lambda number: events.events[number].decoder())
    assert [record.name for record in found] == ["ev"] * 40
    assert 0 < sum(map(len, plans)) <= 1 << 20
