"""EventHeader records of programs that do harm, by mistake or not: contents, and amounts."""

import struct
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import utracefs
from tests.client.recordings.event_header.event_headers import (
    FIELDS,
    NAME,
    TRACEPOINT,
    VARIABLE,
    entry,
    field,
    payload,
    write,
)
from tests.client.recordings.test_event_header import values
from tests.client.recordings.test_records import merge
from utracefs.export import write_parquet
from utracefs.recordings import columns
from utracefs.recordings._event_header import EventHeaders
from utracefs.recordings._records import Records
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
    merged = merge(*pages)
    source = EventHeaders(merged, events.tracepoints, plans, events.plan, events.rest)
    found = Records(source, lambda number: events.events[number].decoder())
    assert [record.name for record in found] == ["ev"] * 40
    assert 0 < sum(map(len, plans)) <= 1 << 20


def test_thousands_of_layouts_are_joined_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one they took 20 s for 1,000."""
    pytest.importorskip("pyarrow")
    joined = Mock(side_effect=columns.joined)
    monkeypatch.setattr(columns, "joined", joined)
    many = [payload(b"ev", [field(b"f%d" % (n // 2), 2 + n % 2)], bytes([n % 256, 0])) for n in range(300)]
    with utracefs.open(write(tmp_path / "trace.dat", many)) as recording:
        table = recording.to_arrow("ev")
    joined.assert_called_once()
    assert (table.num_rows, table.num_columns) == (300, 150 + 9)
    assert table["time_ns"].to_pylist() == [n * 1_000_000 for n in range(1, 301)]
    assert table["f100"].to_pylist() == [None] * 200 + ["200", "201"] + [None] * 98


def test_names_that_are_not_utf_8_in_data_frames(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    bad = payload(b"\xff\x1b", [field(b"\xfe", 2), field(b"t", 10)], b"\7\1\0\xff")
    with utracefs.open(write(tmp_path / "trace.dat", [bad])) as recording:
        frames = [recording.to_pandas(), recording.to_polars(), recording.to_arrow()]
        write_parquet(recording, tmp_path / "parquet")
    assert [len(frame) for frame in frames] == [2, 2, 2]
    files = (tmp_path / "parquet").glob("event=Shop*/**/*.parquet")
    assert [polars.read_parquet(file)["\ufffd"].to_list() for file in files] == [[7]]
