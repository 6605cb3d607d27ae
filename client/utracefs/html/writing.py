"""Writes the page: style and scripts, a JSON head, and the columns.

    <script id="head" type="application/json">{"records":36152,"columns":{"time":{"id":0,...}},...}</script>
    <script id="data0" type="text/plain">base64 of deflated bytes</script>
    ...

A column in the head is {"id", "count", "base", "width"}: the value of a row is `base`, a decimal in a string,
plus its number of `width` bytes in the data (`Integers.packed`); with width 0 there is no data. `time` has
steps from the first time and then from row to row. Texts are a column of numbers and `pools`: data that are
each a JSON array of texts. The first records have rows; those beyond the browser's limit are in the columns
`rest_*`: counts by event and task in the times with the same `time >> shift`. All text of a recording is in
base64, or JSON without `<`.

The page has a Content-Security-Policy that allows its style and scripts by their hashes and forbids all else,
also the network.
"""

import base64
import hashlib
import html
import os
import re
import zlib
from collections.abc import Iterator
from importlib import resources
from typing import Any, BinaryIO, Final

import attrs

from utracefs.export.common import Exported, Progress, json_text
from utracefs.html._columns import Columns, EventColumns, Integers, Texts
from utracefs.recordings.recording import Reading, Recording
from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import clean

MAX_RECORDS: Final = 5_000_000
"""Limit of rows: a browser needs about 200 bytes of memory for each."""

MAX_TEXT_BYTES: Final = 256 << 20
"""Limit of distinct values of text fields: a browser's limit for a page, with room for the rest."""

MAX_COUNTS: Final = 1 << 18
"""Limit of counts of further records: 7,000 bins for 12 threads of three events."""

SCRIPTS: Final = ("data", "text", "search", "statistics", "spans", "timeline", "table", "panels", "main")

_BATCH: Final = 1 << 16
_POOL_TEXTS: Final = 1 << 13
_POOL_CHARACTERS: Final = 1 << 18
"""Bytes of texts that are parsed at once: some milliseconds."""

_LEVEL: Final = 6
_READING: Final = 0.25
"""Reading's part of the time; the rest is packing."""


def write_html(recording: Recording, out: BinaryIO, *, progress: Progress | None = None) -> Exported:
    """Write the page. Its content is held in memory until then: MAX_RECORDS records, or those with
    MAX_TEXT_BYTES of text, and counts of the others.

    OSError from `out`. TraceError(EINVAL) at invalid data, after a page with all before it, and a notice, is
    written.
    """
    reading = recording.reading(apart=True)
    columns = Columns(
        reading.records, max_records=MAX_RECORDS, max_text_bytes=MAX_TEXT_BYTES, max_counts=MAX_COUNTS
    )
    broken = _read(reading, columns, progress)
    columns.sort()
    data = _Data(columns, progress)
    head = data.head(recording, reading, columns)
    head["broken"] = "" if broken is None else str(broken)
    before, after = _page(_name(recording))
    out.write(before)
    out.write(b'<script id="head" type="application/json">%s</script>\n' % _json(head))
    out.writelines(
        b'<script id="data%d" type="text/plain">%s</script>\n' % (number, piece)
        for number, piece in enumerate(data.pieces)
    )
    out.write(after)
    if broken is not None:
        raise broken
    return attrs.evolve(Exported.of(reading), only_counted=0 if columns.rest is None else columns.rest.total)


def _read(reading: Reading, columns: Columns, progress: Progress | None) -> TraceError | None:
    """The error in the recording, if any."""
    try:
        while columns.read(_BATCH):
            if progress is not None:
                progress(_READING * reading.done)
    except ValueError as error:
        return reading.broken(error)
    return None


def _name(recording: Recording) -> str:
    return recording.path if recording.is_merged else os.path.basename(recording.path)


class _Data:
    """The columns in the format of the page."""

    def __init__(self, columns: Columns, progress: Progress | None) -> None:
        self.pieces: list[bytes] = []
        self._progress = progress
        self._values = 0
        self._whole = 5 * columns.count + 2 * columns.lost.count
        self._whole += sum(event.count * len(event.names) for event in columns.event_columns)

    def head(self, recording: Recording, reading: Reading, columns: Columns) -> dict[str, Any]:
        rest: dict[str, Integers] = {}
        if columns.rest is not None:
            names = ("rest_bin", "rest_event", "rest_task", "rest_count")
            rest = dict(zip(names, columns.rest.columns(), strict=True))
        return {
            "name": _name(recording),
            "path": recording.path,
            "format": recording.format,
            "clock": recording.clock,
            "in_ns": recording.clock_in_ns,
            "unix_offset": None if recording.unix_offset_ns is None else str(recording.unix_offset_ns),
            "host": "; ".join(recording.notes) or recording.host,
            "moved": recording.origin.moved,
            "selection": recording.selection,
            "records": columns.count,
            "first": str(columns.first),
            "last": str(columns.last),
            "rest": columns.rest and {"total": columns.rest.total, "shift": columns.rest.shift},
            "columns": {
                "time": self._column(columns.times.steps(columns.first)),
                "event": self._column(columns.events),
                "task": self._column(columns.tasks),
                "cpu": self._column(columns.cpus),
                "instance": self._column(columns.instances),
                "lost_at": self._column(columns.lost_at),
                "lost": self._column(columns.lost),
                **{name: self._column(column) for name, column in rest.items()},
            },
            "tasks": columns.task_list,
            "instances": columns.instance_list,
            "events": [self._event(event) for event in columns.event_columns],
            "lost": str(reading.records.lost),
            "lost_uncounted": reading.records.lost_uncounted,
            "stats": recording.cpu_stats,
        }

    def _event(self, event: EventColumns) -> dict[str, Any]:
        fields = []
        for name, values in zip(event.names, event.values, strict=True):
            if isinstance(values, Texts):
                pools = list(self._pools(values.values))
                fields.append({"name": name, "column": self._column(values.numbers), "pools": pools})
            else:
                fields.append({"name": name, "column": self._column(values)})
        return {
            "system": event.system,
            "name": event.name,
            "short": event.is_short,
            "count": event.count,
            "total": event.total,
            "fields": fields,
        }

    def _column(self, values: Integers) -> dict[str, Any]:
        base, width, data = values.packed()
        column = {"count": values.count, "base": str(base), "width": width}
        if width:
            column["id"] = self._add(data)
        self._values += values.count
        if self._progress is not None:
            self._progress(_READING + (1 - _READING) * min(self._values / max(self._whole, 1), 1.0))
        return column

    def _pools(self, texts: list[str]) -> Iterator[int]:
        """Numbers of the data."""
        begin = characters = 0
        for end, text in enumerate(texts, 1):
            characters += len(text)
            if end - begin == _POOL_TEXTS or characters > _POOL_CHARACTERS or end == len(texts):
                yield self._add(_json(texts[begin:end]))
                begin, characters = end, 0

    def _add(self, data: bytes) -> int:
        packer = zlib.compressobj(_LEVEL, wbits=-zlib.MAX_WBITS)
        self.pieces.append(base64.b64encode(packer.compress(data) + packer.flush()))
        return len(self.pieces) - 1


def _page(name: str) -> tuple[bytes, bytes]:
    """The parts before and after the data."""
    folder = resources.files("utracefs.html") / "page"

    def text(file: str) -> str:
        return (folder / file).read_text(encoding="utf-8")

    style = text("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(text(f"{name}.js") for name in SCRIPTS) + "\n})();\n"
    template = text("page.html")
    values = {
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "title": html.escape(clean(name)),
        "style": style,
        "script": script,
    }
    # In one pass: a value, such as the file's name, may contain another placeholder.
    before, after = (
        re.sub(r"\{\{(\w+)\}\}", lambda place: values[place[1]], part) for part in template.split("{{data}}")
    )
    return before.encode(), after.encode()


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(value: Any) -> bytes:
    """Bytes that are not UTF-8 stay surrogates."""
    return json_text(value).encode("ascii")
