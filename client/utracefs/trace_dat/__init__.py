"""trace.dat: the file that trace-cmd and KernelShark read.

| module | holds |
|---|---|
| format | the layout: sections, options, and what they consist of |
| writer | TraceDatWriter: pages and texts become a file, version 7 |
| reader | TraceDatReader: a file, version 6 or 7, becomes records in the order of time |
"""

from utracefs.trace_dat.format import CLOCKS_IN_NS, Buffer, Extent, clock_in_use
from utracefs.trace_dat.reader import BufferRecord, TraceDatReader
from utracefs.trace_dat.writer import Contents, TraceDatWriter

__all__ = [
    "CLOCKS_IN_NS",
    "Buffer",
    "BufferRecord",
    "Contents",
    "Extent",
    "TraceDatReader",
    "TraceDatWriter",
    "clock_in_use",
]
