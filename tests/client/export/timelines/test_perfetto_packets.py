"""Any text, name, number, records of any length, as Perfetto's trace processor reads them. The meaning:
test_perfetto."""

import random
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.client.export.one_page import TEXT, records_of
from tests.client.export.timelines.trace_processor import ask
from utracefs.export import Counter, Slice, Tracks
from utracefs.export.timelines._perfetto_packets import PerfettoPackets
from utracefs.recordings._records import Records
from utracefs_protocol.events.declaration import Field, FieldKind

MONO = 3
ARGUMENTS = """select s.id, substr(a.key, 7) as key, substr(a.display_value, 1, 99) as value from slice s
    left join args a on a.arg_set_id = s.arg_set_id and a.key glob 'debug.*' order by s.ts, s.id"""


def asked(path: Path, records: Records, *queries: str, tracks: Tracks | None = None) -> list[Any]:
    """The arguments of each record, as text, and the rows of further queries."""
    packets = PerfettoPackets(records, tracks or Tracks(), MONO)
    with (path / "out.pftrace").open("wb") as out:
        while piece := packets.read(500):
            out.write(piece)
        out.write(packets.head())
    rows, *more = ask(path / "out.pftrace", ARGUMENTS, *queries)
    arguments: dict[str, dict[str, str]] = defaultdict(dict)
    for row in rows:
        arguments[row["id"]][row["key"]] = row["value"]
    return [list(arguments.values()), *more]


def test_any_text(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = [rng.randbytes(4 * rng.randrange(15)) for _ in range(200)]
    texts += [
        "".join(rng.choices('aß漢\U0001f600\n"\\ ', k=4 * rng.randrange(4))).encode() for _ in range(100)
    ]
    texts = [text + bytes(-len(text) % 4) for text in texts]
    comms = {1 + n: text[:15].decode("utf-8", "replace") for n, text in enumerate(texts) if b"\0" not in text}
    tids = range(1, 1 + len(texts))
    found, threads = asked(
        tmp_path,
        records_of(texts, [TEXT], tids=tids, comms=comms),
        "select tid, name from thread where utid and tid > 0",
    )
    assert found == [
        {"t": text.split(b"\0")[0].decode("utf-8", "replace"), "cpu": "3", "instance": "box"}
        for text in texts
    ]
    assert {int(row["tid"]): row["name"] for row in threads} == {
        tid: comms.get(tid) or "<...>" for tid in tids
    }


@pytest.mark.parametrize("signed", [True, False])
def test_any_number(tmp_path: Path, signed: bool) -> None:
    rng = random.Random(1)
    low, high = (-(2**63), 2**63 - 1) if signed else (0, 2**64 - 1)
    edges = [sign * (1 << bit) + more for bit in range(64) for sign in (1, -1) for more in (-1, 0, 1)]
    numbers = [n for n in edges if low <= n <= high] + [rng.randint(low, high) for _ in range(200)]
    fields = [Field(b"s64" if signed else b"u64", b"n", 8, 8, signed, FieldKind.INTEGER)]
    found, counters = asked(
        tmp_path,
        records_of([n.to_bytes(8, "little", signed=signed) for n in numbers], fields),
        "select value from counter order by id",
        tracks=Tracks(counters=(Counter("ev", "n"),)),
    )
    assert [int(one["n"]) for one in found] == numbers
    assert [float(row["value"]) for row in counters] == [float(n) for n in numbers]


def test_records_of_any_length(tmp_path: Path) -> None:
    """Below and above where lengths take a byte more."""
    sizes = (4, 60, 124, 128, 1000, 16376, 60000)
    raw = Field(b"unsigned char[]", b"r", 8, 0, False, FieldKind.CHAR_ARRAY)
    _, lengths = asked(
        tmp_path,
        records_of([b"\x01" * size for size in sizes], [TEXT, raw] * 2),
        "select length(display_value) as length, trim(display_value, '01' || char(1)) as rest from args"
        " where key in ('debug.t', 'debug.r') order by arg_set_id, length",
    )
    assert [int(row["length"]) for row in lengths] == [n for size in sizes for n in (size, 2 * size)]
    assert not any(row["rest"] for row in lengths)


def test_a_record_that_is_much_too_long_has_no_fields(tmp_path: Path) -> None:
    fields = [Field(b"char[]", b"t%d" % n, 8, 0, True, FieldKind.CHAR_ARRAY) for n in range(900)]
    (found,) = asked(tmp_path, records_of([b"\x01" * 60000] * 2, fields))
    assert found == [{"cpu": "3", "instance": "box"}] * 2


def test_names_are_written_once() -> None:
    records = [struct.pack("<I", n % 3) for n in range(1000)]
    fields = [Field(b"u32", b"a_long_name_of_a_field", 8, 4, False, FieldKind.INTEGER)]
    tracks = Tracks(slices=(Slice("nosuch", ("ev",), ("a_long_name_of_a_field",)),))
    for drawn in (Tracks(), tracks):
        packets = PerfettoPackets(records_of(records, fields), drawn, MONO)
        data = packets.read(1 << 20)
        assert data.count(b"a_long_name_of_a_field") == 1 and len(data) < 60 * len(records)
        assert packets.ends_without_begin == (1000 if drawn else 0)


def test_without_records_there_is_a_clock(tmp_path: Path) -> None:
    found, clocks = asked(
        tmp_path, records_of([], [TEXT]), "select clock_id, clock_value from clock_snapshot"
    )
    assert found == []
    assert {(row["clock_id"], row["clock_value"]) for row in clocks} == {(str(MONO), "0")}
