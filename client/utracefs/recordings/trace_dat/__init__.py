"""trace.dat: the file that trace-cmd and KernelShark read.

| module | holds |
|---|---|
| format | the layout: sections, options, and what they consist of |
| writer | TraceDatWriter: pages and texts become a file, version 7 |
| part | Part: NAME.part, which has what a recorder wrote until it ends |
| texts | TraceTexts: what describes the records, which perf.data has, too |
| reader | TraceDatReader: a file, version 6 or 7, becomes records in the order of time |
"""

from utracefs.recordings.trace_dat.format import CLOCKS_IN_NS, Buffer, Extent, clock_in_use
from utracefs.recordings.trace_dat.reader import BufferRecord, TraceDatReader, contents_of
from utracefs.recordings.trace_dat.texts import Cursor, TraceTexts
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter

__all__ = [
    "CLOCKS_IN_NS",
    "Buffer",
    "BufferRecord",
    "Contents",
    "Cursor",
    "Extent",
    "TraceDatReader",
    "TraceDatWriter",
    "TraceTexts",
    "clock_in_use",
    "contents_of",
]
