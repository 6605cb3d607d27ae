"""Perfetto's own format, a TrackEvent for each record: for ui.perfetto.dev and the trace processor.

The file is a sequence of packets; times are those of the recording.

    clock snapshot              the clock, and the time of day if the recording has it
    track descriptor            of each process, thread, lane and counter, in front of its first record
    interned data               of each name, in front of its first use
    track event                 of each record: time, track, name, category, annotations

| record | track event |
|---|---|
| any | an instant on its thread's track, with an annotation for each field, `cpu` and `instance` |
| begin or end of one of `Tracks.slices` | begin, end on a lane; the fields of the end are in `end` |
| one of `Tracks.durations` | begin and end on its thread's track, or on a lane if they would overlap |
| one of `Tracks.counters` | besides, a value of a counter of its process |
| lost records before it | an instant on a track of all processes, with their `number` |

Integers are signed or unsigned as declared, and text from 2^63 on, since the readers' integers are signed 64
bit; in a counter these are doubles. Bytes are lower-case hex; U+FFFD stands for bytes that are not UTF-8. A
process gets the name of its first thread; readers keep the first name of a process and the last one of a
thread.
"""

from typing import BinaryIO, Final

from utracefs.export.common import Exported, Progress, write_timeline
from utracefs.export.timelines._perfetto_packets import PerfettoPackets
from utracefs.export.timelines.tracks import Tracks
from utracefs.recordings.recording import Recording

_CLOCKS: Final = {"realtime": 1, "mono": 3, "mono_raw": 5, "boot": 6}
"""BuiltinClock of Perfetto; for all others that of `mono`, which readers show unchanged."""


def write_perfetto(
    recording: Recording, out: BinaryIO, *, tracks: Tracks | None = None, progress: Progress | None = None
) -> Exported:
    """Write all records. OSError from `out`; TraceError at invalid data, after all before it is written; for
    `tracks` see Tracks.check."""
    tracks = (tracks or Tracks()).with_spans(recording)
    tracks.check(recording)
    reading = recording.reading(apart=True)
    clock = _CLOCKS.get(recording.clock, _CLOCKS["mono"])
    packets = PerfettoPackets(reading.records, tracks, clock, recording.unix_offset_ns)
    return write_timeline(reading, packets, out, packets.head, progress)
