"""CSV by RFC 4180, in UTF-8, with a row of names: for spreadsheets and data frames.

    time_ns,cpu,pid,tid,comm,system,name,method,latency_ns,status
    100000000351,0,12,12,beta task,user_events,rpc,Get,1500,-2

A column for each field of the events with records, in the order of occurrence; fields of one name share a
column, and a cell is empty if the event has no such field. A field with the name of a common column gets the
prefix `field_`. Bytes are lower-case hex; U+FFFD stands for bytes that are not UTF-8. The file is read twice,
first for the events. A table has no lost records: see Exported.
"""

from typing import BinaryIO, Final

from utracefs.export.common import Exported, Progress, write_pieces
from utracefs.export.tables._csv_text import CsvText
from utracefs.recordings._columns import PLACE_COLUMNS
from utracefs.recordings.columns import column_names
from utracefs.recordings.recording import Recording

_COLUMNS: Final = ("time_ns", "cpu", "pid", "tid", "comm", "system", "name")


def write_csv(recording: Recording, out: BinaryIO, *, progress: Progress | None = None) -> Exported:
    """Write all records. OSError from `out`; TraceError at invalid data, after all before it is written."""
    fields = dict.fromkeys(name for event in recording.events_with_records() for name in event.names)
    header = [*_COLUMNS, *(PLACE_COLUMNS if recording.is_merged else ())]
    header += column_names(fields, header).values()
    reading = recording.reading()
    full = write_pieces(reading, CsvText(reading.records, header, fields), out.write, progress)
    return Exported.of(reading).without(*full)
