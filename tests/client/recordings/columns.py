"""Rows that a table must have, and a file whose records lack some of them."""

from pathlib import Path
from typing import Any

from tests.client.export.example import shown
from tests.client.recordings.events import Events
from tests.client.recordings.trace_dat import example
from utracefs import Recording
from utracefs.recordings._columns import COMMON_COLUMNS

SHORT = Events(7, b"ev u64 big; s8 small; __rel_loc char[] text; struct s s 3")


def expected(recording: Recording, event: str, *, text: Any = shown) -> list[dict[str, Any]]:
    """The rows of a table, made from the records."""
    found = []
    for r in recording:
        if r.name != event:
            continue
        own = {
            f"field_{name}" if name in COMMON_COLUMNS else name: text(value)
            if isinstance(value, str)
            else value
            for name, value in r.fields.items()
        }
        lost = None if r.lost < 0 else r.lost
        common = (r.time_ns, r.cpu, r.pid, r.tid, shown(r.comm), r.instance, lost)
        found.append(dict(zip(COMMON_COLUMNS, common, strict=True)) | own)
    return found


def short_file(path: Path) -> Path:
    """The second of three records is shorter than its event says, and has no time that fits int64."""
    whole = SHORT.entry(7, 1, 2**64 - 1, -1, "é", b"abc")
    late = [(2**63, whole[:12]), (2**63 + 1, whole)]
    formats = {b"user_events": SHORT.formats()}
    return example.write(path, [example.pages([(1, whole)], lost=-1), example.pages(late)], formats=formats)
