"""Chrome JSON ("Trace Event Format"), for ui.perfetto.dev, chrome://tracing and speedscope.

    {"displayTimeUnit":"ns","traceEvents":[
    {"ph":"M","name":"thread_name","pid":11,"tid":12,"args":{"name":"beta task"}},
    {"ph":"i","s":"t","cat":"user_events","name":"rpc","pid":11,"tid":12,"ts":100000000.351,"args":{...}}
    ]}

| ph | item | source |
|---|---|---|
| i | a point on its thread's track | all other records |
| b, e | a slice on a lane | `Tracks.slices`; the fields of the end are in `end` |
| X | a slice on its thread's track | `Tracks.durations` |
| b, e | one that would overlap there, on a lane | |
| C | a counter track of its process, besides the above | `Tracks.counters` |
| M | the name of a process or thread, before its first record and at changes | |

Times are microseconds with three decimals, made from integers without rounding. Readers have signed 64 bit at
most, so integers from 2^63 on are strings, and doubles in a counter. Bytes are lower-case hex; U+FFFD stands
for bytes that are not UTF-8. Text is UTF-8 with the fewest escapes that JSON allows: Perfetto's reader leaves
those of newlines and control characters undecoded in most values (as of v52). Members besides the fields
(`cpu`, `instance`, on a lane `tid`) get a leading underscore if a field has that name.
"""

from typing import BinaryIO, Final

from utracefs.export.common import Exported, Progress, write_timeline
from utracefs.export.timelines._chrome_text import ChromeText
from utracefs.export.timelines.tracks import Tracks
from utracefs.recordings.recording import Recording

# A name for no process, so that all further objects may begin with a comma.
_HEAD: Final = b'{"displayTimeUnit":"ns","traceEvents":[\n{"ph":"M","name":"utracefs","pid":0,"args":{}}'
_TAIL: Final = b"\n]}\n"


def write_chrome(
    recording: Recording, out: BinaryIO, *, tracks: Tracks | None = None, progress: Progress | None = None
) -> Exported:
    """Write all records. OSError from `out`; TraceError at invalid data, after all before it is written and
    the file is complete; for `tracks` see Tracks.check."""
    tracks = (tracks or Tracks()).with_spans(recording)
    tracks.check(recording)
    reading = recording.reading(apart=True)
    text = ChromeText(reading.records, tracks)
    out.write(_HEAD)
    return write_timeline(reading, text, out, lambda: _TAIL, progress)
