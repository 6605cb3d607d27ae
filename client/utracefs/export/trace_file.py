"""trace.dat, for trace-cmd, KernelShark and `utracefs report`: a part of another one, or the records of a
perf.data.

If all records of a trace.dat are selected, or all of some cpus, its pages are copied; else new pages are
written. All instances become one buffer. A trace.dat has threads without their processes.
"""

import errno
import os
from collections.abc import Callable
from typing import Final

import attrs

from utracefs.export._trace_pages import RecordPages, WholePages, extent_of
from utracefs.export.common import Exported, Progress, of_one_file
from utracefs.recordings.recording import Recording
from utracefs.recordings.trace_dat.format import MAX_CPUS
from utracefs.recordings.trace_dat.texts import with_small_signs
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.errors import TraceError
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.limits import SUBBUF_SIZE
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text
from utracefs_protocol.text import bytes_of

_LARGE_PAGE: Final = 64 << 10
"""Holds the largest record of any page or sample."""

_PAGES_A_REPORT: Final = 256


def write_trace_dat(
    recording: Recording, path: str | os.PathLike[str], *, progress: Progress | None = None
) -> Exported:
    """Write all records into the file `path`, which gets its name when it is complete. Reads the recording
    twice: first for its cpus and its largest record, or to check its pages.

    OSError from the file. TraceError at invalid data, after all before it is written and the file is
    complete.
    """
    of_one_file(recording, path, "trace.dat")
    found = recording.whole_pages()
    if found is not None:
        source, done = found
        whole = WholePages(source)
        if whole.sound:
            _, writer = _write(recording, path, whole, whole.nr_cpus, whole.page_size, done, progress)
            return Exported(whole.records, whole.lost, whole.lost_uncounted).without(
                writer.given_up, writer.error
            )
    nr_cpus, largest = extent_of(recording.reading().records)
    page_size = SUBBUF_SIZE if largest <= SUBBUF_SIZE - 24 else 2 * _LARGE_PAGE
    reading = recording.reading()
    pages = RecordPages(reading.records, page_size=page_size)
    broken, writer = _write(
        recording, path, pages, max(nr_cpus, 1), page_size, lambda: reading.done, progress
    )
    if broken is not None:
        raise reading.broken(broken)
    return Exported.of(reading).without(writer.given_up, writer.error)


def _write(
    recording: Recording,
    path: str | os.PathLike[str],
    pages: RecordPages | WholePages,
    nr_cpus: int,
    page_size: int,
    done: Callable[[], float],
    progress: Progress | None,
) -> tuple[ValueError | None, TraceDatWriter]:
    """Write the whole file, of the pages up to an error; returns that, and the finished writer."""
    if nr_cpus > MAX_CPUS:
        raise TraceError(errno.EINVAL, f"{recording.path}: cpu {nr_cpus - 1}; a trace.dat has {MAX_CPUS}")
    broken: ValueError | None = None
    formats: dict[bytes, list[bytes]] = {}
    for system, event in recording.selected_tracepoints:
        text = with_small_signs(format_text(event.name, event.id, event.fields, event.print_fmt))
        formats.setdefault(bytes_of(system), []).append(text)
    contents = Contents(
        header_page=header_page_text(page_size),
        header_event=HEADER_EVENT_TEXT,
        formats=formats,
        trace_clock=b"[%s]" % bytes_of(recording.clock),
        origin=recording.origin,
        version="utracefs export",
    )
    with TraceDatWriter(path, nr_cpus=nr_cpus, page_size=page_size) as writer:
        writer.add_texts(contents)
        try:
            for number, (cpu, page) in enumerate(pages):
                writer.add_page(cpu, page)
                if progress is not None and not number % _PAGES_A_REPORT:
                    progress(done())
        except ValueError as error:
            broken = error
        cmdlines = b"".join(b"%d %s\n" % (tid, bytes_of(comm)) for tid, comm in pages.comms.items())
        writer.finish(attrs.evolve(contents, cmdlines=cmdlines))
    return broken, writer
