"""trace.dat, which trace-cmd, KernelShark and `utracefs report` read: a part of another one, or the records
of a perf.data.

Pages are written anew, since records are selected. All instances are one buffer. A trace.dat knows threads
and not their processes.
"""

import errno
import os
from typing import Final

from utracefs.export._raw import Entries
from utracefs.export.common import Exported, Progress
from utracefs.recording import Recording
from utracefs.trace_dat import Contents, TraceDatWriter
from utracefs.trace_dat.format import MAX_CPUS
from utracefs.trace_dat.texts import with_small_signs
from utracefs_protocol.errors import TraceError
from utracefs_protocol.event_format import format_text
from utracefs_protocol.limits import SUBBUF_SIZE
from utracefs_protocol.subbuf import HEADER_EVENT_TEXT, PageWriter, header_page_text
from utracefs_protocol.text import bytes_of

__all__ = ["write_trace_dat"]

_LARGE_PAGE: Final = 64 << 10
"""Holds the largest record of any page or sample."""

_MOST_MORE: Final = 32
"""Bytes that a record takes besides its entry, a time stamp in front of it, and a lost count."""

_RECORDS_A_REPORT: Final = 4096


def write_trace_dat(
    recording: Recording, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Exported:
    """Write all records into the file `path`, which gets its name when it is complete. Reads the recording
    twice: first for its cpus and its largest record.

    OSError from the file. TraceError at what is broken, after all before it is written and the file is
    complete.
    """
    nr_cpus, largest = 1, 0
    try:
        for cpu, _, entry, _ in Entries(recording.reading().records):
            nr_cpus, largest = max(nr_cpus, cpu + 1), max(largest, len(entry))
    except ValueError:
        pass  # met again below
    if nr_cpus > MAX_CPUS:
        raise TraceError(errno.EINVAL, f"{recording.path}: cpu {nr_cpus - 1}; a trace.dat has {MAX_CPUS}")
    page_size = SUBBUF_SIZE if largest <= SUBBUF_SIZE - 24 else 2 * _LARGE_PAGE
    reading = recording.reading()
    entries = Entries(reading.records)
    broken: TraceError | None = None
    with TraceDatWriter(path, nr_cpus=nr_cpus, page_size=page_size) as writer:
        pages = [PageWriter(page_size) for _ in range(nr_cpus)]
        lost = [0] * nr_cpus

        def write(cpu: int) -> None:
            if pages[cpu].count:
                writer.add_page(cpu, pages[cpu].page(lost[cpu]))
            pages[cpu] = PageWriter(page_size)
            lost[cpu] = 0

        try:
            for number, (cpu, time_ns, entry, missing) in enumerate(entries):
                if missing:
                    write(cpu)
                    lost[cpu] = missing
                # A page has its lost count behind its records.
                is_full = lost[cpu] > 0 and pages[cpu].count and pages[cpu].room < len(entry) + _MOST_MORE
                if is_full or not pages[cpu].add(time_ns, entry):
                    write(cpu)
                    pages[cpu].add(time_ns, entry)
                if progress is not None and not number % _RECORDS_A_REPORT:
                    progress(reading.done)
        except ValueError as error:
            broken = reading.broken(error)
        for cpu in range(nr_cpus):
            write(cpu)
        formats: dict[bytes, list[bytes]] = {}
        for system, event in recording.formats:
            if recording.selects(event.id):
                text = with_small_signs(format_text(event.name, event.id, event.fields, event.print_fmt))
                formats.setdefault(bytes_of(system), []).append(text)
        writer.finish(
            Contents(
                header_page=header_page_text(page_size),
                header_event=HEADER_EVENT_TEXT,
                formats=formats,
                cmdlines=b"".join(b"%d %s\n" % (tid, bytes_of(comm)) for tid, comm in entries.comms.items()),
                trace_clock=b"[%s]" % bytes_of(recording.clock),
                version="utracefs export",
            )
        )
    if broken is not None:
        raise broken
    return Exported.of(reading)
