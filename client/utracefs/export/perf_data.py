"""perf.data, for perf script, perf report and perf data convert: a sample for each record, with a period of
1.

Lost records are a LOST record in front of the next sample, with the number 0 if unknown; so is a record that
is larger than a sample may be (64 KiB), or of an event without a format. Samples have times of
CLOCK_MONOTONIC, which the file declares.
"""

import errno
import os
from typing import Final

import attrs

from utracefs.export._raw import PerfSamples
from utracefs.export.common import Exported, Progress, of_one_file, write_pieces
from utracefs.recordings.perf_data.writer import Contents, PerfDataEvent, PerfDataWriter
from utracefs.recordings.recording import Recording
from utracefs.recordings.trace_dat.texts import with_small_signs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text
from utracefs_protocol.text import bytes_of

_MONOTONIC: Final = frozenset({"local", "global", "perf", "mono"})
"""The first three are CLOCK_MONOTONIC in this daemon, and perf_clock() is close to it in a kernel."""


def check_clock(path: str, clock: str) -> None:
    """TraceError(EINVAL) about the path: samples cannot have its times."""
    if clock not in _MONOTONIC:
        what = f"perf.data needs times of CLOCK_MONOTONIC; these are of the clock {clock}"
        raise TraceError(errno.EINVAL, f"{path}: {what}")


def write_perf_data(
    recording: Recording, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Exported:
    """Write all records into the file `path`; an existing one becomes NAME.old, as with perf.

    OSError from the file. TraceError: EINVAL for a recording with another clock; at invalid data, after all
    before it is written and the file is complete.
    """
    of_one_file(recording, path, "perf.data")
    check_clock(recording.path, recording.clock)
    reading = recording.reading()
    broken: TraceError | None = None
    events = [
        PerfDataEvent(
            bytes_of(system),
            event.name,
            event.id,
            event.id,
            with_small_signs(format_text(event.name, event.id, event.fields, event.print_fmt)),
        )
        for system, event in recording.selected_tracepoints
        if event.id
    ]
    samples = PerfSamples(reading.records, [event.id for event in events])
    contents = Contents(
        events=events,
        header_page=header_page_text(),
        header_event=HEADER_EVENT_TEXT,
        origin=recording.origin,
        command=(b"utracefs", b"export"),
    )
    with PerfDataWriter(path) as writer:
        writer.describe(contents)
        try:
            write_pieces(reading, samples, writer.add, progress)
        except TraceError as error:
            broken = error
        writer.finish(
            attrs.evolve(
                contents,
                comms={task: bytes_of(comm) for task, comm in samples.tasks.items() if min(task) >= 0},
                first_ns=samples.first_ns,
                last_ns=samples.last_ns,
            )
        )
    if broken is not None:
        raise broken
    done = Exported.of(reading)
    done = attrs.evolve(done, records=done.records - samples.left_out, lost=done.lost + samples.left_out)
    return done.without(writer.given_up, writer.error)
