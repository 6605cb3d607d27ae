"""perf.data: the file that `perf script` and `perf report` read.

| module | holds |
|---|---|
| format | the layout: header, attributes, records, features |
| writer | PerfDataWriter: writes the content of perf rings, and texts, to a file |
| reader | PerfDataReader: reads such files and perf's own |
| _samples | Samples: finds and sorts the samples by time (compiled) |
| _records | Tally: work per record of a ring (compiled) |

Nothing is imported here: who reads needs no writer.
"""
