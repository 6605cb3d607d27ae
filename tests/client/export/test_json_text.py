"""Any text and name; the json module as judge."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tests.client.export.one_page import TEXT, records_of
from utracefs.export._json_text import JsonText


@given(st.binary(max_size=60), st.text(max_size=15))
def test_any_text(data: bytes, comm: str) -> None:
    data += bytes(-len(data) % 4)
    comm = comm.encode("utf-8", "replace").decode()
    line = JsonText(records_of([data], [TEXT], comms={7: comm})).read(1)
    assert line.isascii() and b"<" not in line and line.count(b"\n") == 1
    assert json.loads(line) == {
        "time_ns": 1,
        "cpu": 3,
        "pid": 7,
        "tid": 7,
        "comm": comm or "<...>",
        "system": "s",
        "name": "ev",
        "fields": {"t": data.split(b"\0")[0].decode("utf-8", "replace")},
        "instance": "box",
    }
