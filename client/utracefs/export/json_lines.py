"""JSON lines: one object a line, for jq, DuckDB, pandas and the like.

    {"time_ns":100000000351,"cpu":0,"pid":12,"tid":12,"comm":"beta task","system":"user_events","name":"rpc",
     "fields":{"method":"Get","latency_ns":1500,"status":-2}}
    {"lost":42}

The names are those of Record. Integers are numbers, u64 above 2^53 too, which JSON allows and JavaScript
rounds. Text is escaped down to ASCII, with U+FFFD for what is not UTF-8; bytes are lower-case hex. `instance`
is only there for records of an instance. `lost` says how many records were lost in front of the next line,
null: not counted.
"""

from typing import BinaryIO

from utracefs.export._json_text import JsonText
from utracefs.export.common import Exported, Progress, write_pieces
from utracefs.recordings.recording import Recording

__all__ = ["write_json_lines"]


def write_json_lines(recording: Recording, out: BinaryIO, *, progress: Progress | None = None) -> Exported:
    """Write all records. OSError from `out`; TraceError at what is broken, after all before it is written."""
    reading = recording.reading()
    full = write_pieces(reading, JsonText(reading.records), out.write, progress)
    return Exported.of(reading).without(*full)
