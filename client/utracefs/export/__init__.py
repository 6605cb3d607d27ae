"""Recordings in the formats of other tools; one module each. All write as they read: memory does not grow
with the recording.

| module | format |
|---|---|
| json_lines | one JSON object a line |
| csv_table | CSV, a column per field |
| chrome | Chrome JSON, for Perfetto and chrome://tracing: points, slices, counters |
| ctf | CTF 1.8, for babeltrace2 and Trace Compass |
| perf_data | perf.data, for perf script and perf report |
| trace_file | trace.dat, for trace-cmd and KernelShark: a part of another one, or of a perf.data |
| common | what they share |

    with utracefs.open("trace.dat") as recording, open("trace.jsonl", "wb") as out:
        utracefs.export.write_json_lines(recording, out)
"""

from utracefs.export.chrome import Slice, Tracks, write_chrome
from utracefs.export.common import Exported
from utracefs.export.csv_table import write_csv
from utracefs.export.ctf import write_ctf
from utracefs.export.json_lines import write_json_lines
from utracefs.export.perf_data import write_perf_data
from utracefs.export.trace_file import write_trace_dat

__all__ = [
    "Exported",
    "Slice",
    "Tracks",
    "write_chrome",
    "write_csv",
    "write_ctf",
    "write_json_lines",
    "write_perf_data",
    "write_trace_dat",
]
