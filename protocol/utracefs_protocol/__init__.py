"""What client and daemon must agree on, and nothing else: no sockets, no files, no loop.

| module | |
|---|---|
| errors, limits | what can go wrong, and how much is too much |
| places | where the sockets are |
| text | bytes <-> str |
| frozen | data without attrs, for what every program that emits imports |
| event_names | which events a word means |
| declaration | command string <-> fields |
| event_format | fields <-> `format` |
| print_fmt, _event_printer | a record -> the text that its `format` describes |
| _fields, _line | where a field's bytes are, and printing them: for compiled readers of records |
| layout | values <-> payload |
| connection, _framing | bytes <-> messages |
| messages | what the params and results of every method mean |
| status_page | one byte per event: who wants it |
| subbuf, _subbuf | the ring buffer's pages, as `trace_pipe_raw` and trace.dat hold them |
| perf_ring | the perf ring: one metadata page, then records |
| include/ | in C: the data ring, a producer, the header of a record |
"""
