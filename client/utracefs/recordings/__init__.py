"""Recordings: trace.dat and perf.data, written and read, their records and columns.

`utracefs.open` is `recording.open`.

| module | |
|---|---|
| trace_dat/, perf_data/ | the two formats, each with a reader and a writer |
| partial_files | incomplete files |
| origin | host, boot and time of day of a recording |
| recording | `Recording`, of one file or several: its records, selected and decoded; their tables |
| recorded_file | one of its files |
| several/ | the merge by time |
| _records, event_filters | records, compiled; filters by event |
| columns, _columns | tables of records for Arrow, pandas and polars |
| report, _report_text | the text of `utracefs report` |
| _output_buffer | the buffer of text writers |
"""
