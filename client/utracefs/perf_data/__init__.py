"""perf.data: the file that `perf script` and `perf report` read.

| module | holds |
|---|---|
| format | the layout: header, attributes, records, features |
| writer | PerfDataWriter: what perf rings held, and texts, become a file |
| reader | PerfDataReader: such a file becomes samples in the order of time |
| _records | what is done once per record (compiled) |
"""

from utracefs.perf_data.reader import PerfDataReader
from utracefs.perf_data.writer import Contents, PerfDataEvent, PerfDataWriter

__all__ = ["Contents", "PerfDataEvent", "PerfDataReader", "PerfDataWriter"]
