"""Shared memory and files of pages.

| module | |
|---|---|
| status_page | one byte per event: the kinds of attached consumers |
| data_ring, record | include/: a producer's records on their way to the daemon; the header of a record |
| subbuf, _subbuf | pages of the ring buffer, in the format of `trace_pipe_raw` and trace.dat |
| perf_ring | the perf ring: one metadata page, then records |
| stream_ring, _stream_ring | include/: the ring of a stream; its reader |
"""
