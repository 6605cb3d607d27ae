"""perf.data: the file that `perf record` writes.

| module | holds |
|---|---|
| reader | PerfDataReader: what a file says of itself, and its samples in the order of time |
| _samples | compiled: Samples, which finds and sorts them |
"""

from utracefs.perf_samples.reader import PerfDataReader

__all__ = ["PerfDataReader"]
