"""Recordings in the formats of other tools, a module each. All write while they read: memory does not grow
with the recording.

    with utracefs.open("trace.dat") as recording, open("trace.jsonl", "wb") as out:
        utracefs.export.write_json_lines(recording, out)
"""

from utracefs.export.common import Exported
from utracefs.export.ctf import write_ctf
from utracefs.export.json_lines import write_json_lines
from utracefs.export.perf_data import write_perf_data
from utracefs.export.tables.csv_table import write_csv
from utracefs.export.tables.parquet import write_parquet, write_parquet_file
from utracefs.export.timelines.chrome import write_chrome
from utracefs.export.timelines.perfetto import write_perfetto
from utracefs.export.timelines.tracks import Counter, Duration, Slice, Tracks
from utracefs.export.trace_file import write_trace_dat

__all__ = [
    "Counter",
    "Duration",
    "Exported",
    "Slice",
    "Tracks",
    "write_chrome",
    "write_csv",
    "write_ctf",
    "write_json_lines",
    "write_parquet",
    "write_parquet_file",
    "write_perf_data",
    "write_perfetto",
    "write_trace_dat",
]
