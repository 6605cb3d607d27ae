"""Recordings in the formats of other tools, a module each. All write while they read: memory does not grow
with the recording.

| module | format |
|---|---|
| json_lines | one JSON object a line |
| tables.csv_table | CSV, a column per field |
| tables.parquet | Apache Parquet, for DuckDB and data frames; needs pyarrow |
| tables.sql | no format: the records as tables of DuckDB |
| timelines.chrome | Chrome JSON, for chrome://tracing and Perfetto: points, slices, counters |
| timelines.perfetto | Perfetto's TrackEvent, for ui.perfetto.dev and its trace processor: the same |
| timelines.tracks | selection of slices and counters |
| ctf | CTF 1.8, for babeltrace2 and Trace Compass |
| perf_data | perf.data, for perf script and perf report |
| trace_file | trace.dat, for trace-cmd and KernelShark: a part of another one, or of a perf.data |
| common | shared parts |

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
