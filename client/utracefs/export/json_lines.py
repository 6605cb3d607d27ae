"""JSON lines: one object per line, for jq, DuckDB, pandas and others.

    {"time_ns":100000000351,"cpu":0,"pid":12,"tid":12,"comm":"beta task","system":"user_events","name":"rpc",
     "fields":{"method":"Get","latency_ns":1500,"status":-2}}
    {"lost":42}

The names are those of Record. Integers are numbers, also u64 above 2^53, which JSON allows and JavaScript
rounds. Text is ASCII with escapes, with U+FFFD for bytes that are not UTF-8; bytes are lower-case hex.
`instance` is present only for records of an instance. `lost` is the number of records lost before the next
line, null: unknown.
"""

from typing import BinaryIO

from utracefs.export._json_text import JsonText
from utracefs.export.common import Exported, Progress, write_pieces
from utracefs.recordings.recording import Recording


def write_json_lines(recording: Recording, out: BinaryIO, *, progress: Progress | None = None) -> Exported:
    """Write all records. OSError from `out`; TraceError at invalid data, after all before it is written."""
    reading = recording.reading()
    full = write_pieces(reading, JsonText(reading.records), out.write, progress)
    return Exported.of(reading).without(*full)
