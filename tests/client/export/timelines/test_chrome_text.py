"""Any text, name and number; the json module as judge. The meaning: test_chrome."""

import json
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.client.export.one_page import TEXT, records_of
from utracefs.export import Counter, Duration, Slice, Tracks
from utracefs.export.timelines._chrome_text import ChromeText
from utracefs.recordings._records import Records
from utracefs_protocol.events.declaration import Field, FieldKind


def objects(records: Records, tracks: Tracks) -> list[dict[str, Any]]:
    text = ChromeText(records, tracks).read(1 << 20).decode()
    found = json.loads(f"[null{text}]")
    return [one for one in found[1:] if one["ph"] != "M"]


@given(st.binary(max_size=60), st.text(max_size=15))
def test_any_text(data: bytes, comm: str) -> None:
    data += bytes(-len(data) % 4)
    comm = comm.encode("utf-8", "replace").decode()
    text = ChromeText(records_of([data], [TEXT], comms={7: comm}), Tracks()).read(1).decode()
    process, thread, point = json.loads(f"[null{text}]")[1:]
    assert process["args"] == thread["args"] == {"name": comm or "<...>"}
    assert point == {
        "ph": "i",
        "s": "t",
        "cat": "s",
        "name": "ev",
        "pid": 7,
        "tid": 7,
        "ts": 0.001,
        "args": {"t": data.split(b"\0")[0].decode("utf-8", "replace"), "cpu": 3, "instance": "box"},
    }


@given(st.integers(0, 2**64 - 1))
def test_any_number(number: int) -> None:
    fields = [Field(b"u64", b"n", 8, 8, False, FieldKind.INTEGER)]
    tracks = Tracks(durations=(Duration("ev", "n"),), counters=(Counter("ev", "n"),))
    span, counter = objects(records_of([struct.pack("<Q", number)], fields), tracks)
    assert span["args"]["n"] == (number if number < 2**63 else str(number))
    assert (span["ph"], round(1000 * span["dur"])) == ("X", min(number, 1))
    assert counter["args"]["value"] == (number if number < 2**63 else float(number))


def test_arguments_do_not_hide_fields() -> None:
    names = (b"cpu", b"tid", b"instance", b"end", b"_cpu", b"n\xff", b"n\xfe")
    fields = [Field(b"u32", n, 8 + 4 * i, 4, False, FieldKind.INTEGER) for i, n in enumerate(names)]
    begin, *_ = objects(records_of([bytes(28)], fields), Tracks(slices=(Slice("ev", ("nosuch",)),)))
    assert list(begin["args"]) == [
        *("cpu", "tid", "instance", "end", "_cpu", "n\ufffd", "_n\ufffd", "__cpu", "_tid", "_instance")
    ]


def test_a_record_that_is_too_short_is_a_point_without_fields() -> None:
    fields = [Field(b"u64", b"n", 8, 8, False, FieldKind.INTEGER)]
    tracks = Tracks(
        slices=(Slice("ev", ("ev",), ("n",)),),
        durations=(Duration("ev", "n"),),
        counters=(Counter("ev", "n"),),
    )
    (point,) = objects(records_of([b"1234"], fields), tracks)
    assert (point["ph"], point["args"]) == ("i", {"cpu": 3, "instance": "box"})
