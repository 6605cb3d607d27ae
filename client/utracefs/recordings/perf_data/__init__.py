"""perf.data: the file that `perf script` and `perf report` read.

| module | holds |
|---|---|
| format | the layout: header, attributes, records, features |
| writer | PerfDataWriter: what perf rings held, and texts, become a file |
| reader | PerfDataReader: such a file, or one of perf's own, says what it is and gives its samples |
| _samples | Samples: finds them and puts them in the order of time (compiled) |
| _records | Tally: what is done once per record of a ring (compiled) |

Nothing is imported here: who reads needs no writer.
"""
