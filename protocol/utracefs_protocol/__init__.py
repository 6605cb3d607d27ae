"""What client and daemon must agree on, and nothing else: no sockets, no files, no loop.

| module | |
|---|---|
| errors, limits | what can go wrong, and how much is too much |
| declaration | command string <-> fields <-> `format` |
| layout | values <-> payload |
| connection, messages, _framing | bytes <-> messages <-> what they mean |
| status_page | one byte per event: who listens |
| subbuf | the ring buffer's pages, as `trace_pipe_raw` and trace.dat hold them |
| perf_ring | the perf ring: one metadata page, then records |
"""
