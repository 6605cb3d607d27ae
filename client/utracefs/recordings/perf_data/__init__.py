"""perf.data: the file that `perf script` and `perf report` read.

| module | holds |
|---|---|
| format | the layout: header, attributes, records, features |
| writer | PerfDataWriter: what perf rings held, and texts, become a file |
| reader | PerfDataReader: such a file, or one of perf's own, says what it is and gives its samples |
| _samples | Samples: finds them and puts them in the order of time (compiled) |
| _records | Tally: what is done once per record of a ring (compiled) |
"""

from utracefs.recordings.perf_data.reader import PerfDataReader
from utracefs.recordings.perf_data.writer import Contents, PerfDataEvent, PerfDataWriter

__all__ = ["Contents", "PerfDataEvent", "PerfDataReader", "PerfDataWriter"]
