"""CSV by RFC 4180, in UTF-8, with a row of names: for spreadsheets and data frames.

    time_ns,cpu,pid,tid,comm,system,name,method,latency_ns,status
    100000000351,0,12,12,beta task,user_events,rpc,Get,1500,-2

A column for each field of the events with records, in the order of occurrence; fields of one name share a
column, and a cell is empty if the event has no such field. A field with the name of a common column gets the
prefix `field_`. Bytes are lower-case hex; U+FFFD stands for bytes that are not UTF-8. The file is read twice,
first for the events. A table has no lost records: see Exported.
"""

import csv
import io
from typing import Any, BinaryIO, Final

from utracefs.export.common import Exported, Progress, plain, write_pieces
from utracefs.recordings._columns import PLACE_COLUMNS
from utracefs.recordings.any_recording import AnyRecording, Reading
from utracefs_protocol.text import clean

_COLUMNS: Final = ("time_ns", "cpu", "pid", "tid", "comm", "system", "name")


def write_csv(recording: AnyRecording, out: BinaryIO, *, progress: Progress | None = None) -> Exported:
    """Write all records. OSError from `out`; TraceError at invalid data, after all before it is written."""
    fields = dict.fromkeys(name for event in recording.events_with_records() for name in event.names)
    header = [*_COLUMNS, *(PLACE_COLUMNS if recording.is_merged else ())]
    taken = set(header)
    for field in fields:
        name = clean(field)
        while name in taken:
            name = f"field_{name}"
        taken.add(name)
        header.append(name)
    reading = recording.reading()
    full = write_pieces(reading, _Rows(reading, header, list(fields)), out.write, progress)
    return Exported.of(reading).without(*full)


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    """The members of structs as fields, `STRUCT.MEMBER`."""
    if dict not in map(type, fields.values()):
        return fields
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": one for inner, one in _flat(value).items()}
        else:
            found[name] = value
    return found


class _Rows:
    """The table in pieces of whole rows."""

    def __init__(self, reading: Reading, header: list[str], fields: list[str]) -> None:
        self._records = iter(reading.records)
        self._fields = fields
        self._with_place = reading.records.is_merged
        self._text = io.StringIO(newline="")
        # RFC 4180 ends lines by CR LF; then a cell with either is quoted.
        self._writer = csv.writer(self._text, lineterminator="\r\n")
        self._writer.writerow(header)
        self._error: ValueError | None = None

    def read(self, max_bytes: int) -> bytes:
        if self._error is not None:
            raise self._error
        try:
            for r in self._records:
                row = [r.time_ns, r.cpu, r.pid, r.tid, clean(r.comm), clean(r.system), clean(r.name)]
                get = _flat(r.fields).get
                row += [clean(r.host), clean(r.file)] if self._with_place else []
                self._writer.writerow(row + [plain(get(name, "")) for name in self._fields])
                if self._text.tell() >= max_bytes:
                    break
        except ValueError as error:
            self._error = error
        piece = self._text.getvalue().encode()
        self._text.seek(0)
        self._text.truncate()
        if self._error is not None and not piece:
            raise self._error
        return piece
