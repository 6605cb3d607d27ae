"""Any value; the csv module as judge of the text."""

import csv
import io
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.client.export.one_page import records_of
from tests.client.recordings.events import Events
from utracefs.export.common import plain
from utracefs.export.tables._csv_text import CsvText
from utracefs_protocol.text import clean

EVENTS = Events(
    1,
    b"ev s64 a; u64 b; struct double d 8; struct float f 4; struct bool ok 1; unsigned char[3] raw;"
    b" struct double_2 many 16; char[8] short; __rel_loc char[] text",
)
FIELDS = EVENTS.declared[1].fields
CELLS = [field.name.decode() for field in FIELDS]
HEADER = ["time_ns", 'a "b', "c,d"]

texts = st.text(st.sampled_from("a,\"\r\n;=' \té\x01<"), max_size=6)
floats = st.sampled_from([0.1, -0.0, 1e16, math.inf, -math.inf, math.nan]) | st.floats(width=32)
rows = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
    floats,
    floats.filter(lambda x: not 3.4e38 < abs(x) < math.inf),
    st.booleans(),
    st.binary(min_size=3, max_size=3),
    st.lists(floats, min_size=2, max_size=2),
    st.binary(max_size=7) | texts.map(lambda text: text.encode()[:7]),
    st.binary(max_size=60) | texts.map(str.encode),
)


@given(st.lists(rows, min_size=1, max_size=3), texts, st.permutations([*CELLS, "other"]), st.booleans())
def test_any_value(values: list[tuple[Any, ...]], comm: str, columns: list[str], is_short: bool) -> None:
    entries = [EVENTS.entry(1, 7, *row)[8:] for row in values]
    if is_short:
        entries[0] = entries[0][:20]

    def made() -> Any:
        return records_of(entries, FIELDS, comms={7: comm}, event="x,y")

    expected = io.StringIO(newline="")
    writer = csv.writer(expected, lineterminator="\r\n")
    writer.writerow([*HEADER, *columns])
    for r in made():
        cells = [plain(r.fields.get(name, "")) for name in columns]
        writer.writerow([r.time_ns, r.cpu, r.pid, r.tid, clean(r.comm), r.system, r.name, *cells])
    found = CsvText(made(), [*HEADER, *columns], columns)
    assert b"".join(iter(lambda: found.read(64), b"")).decode() == expected.getvalue()
