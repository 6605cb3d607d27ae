"""The agreement between client and daemon. It uses no sockets, no files and no event loop.

| module | |
|---|---|
| errors, limits | exceptions with an errno; limits with their reasons |
| places | where the sockets are |
| text | bytes <-> str |
| frozen | immutable data without attrs, for modules that every emitting program imports |
| event_names | matching events by name and glob |
| declaration | command string <-> fields |
| event_format | fields <-> `format` |
| print_fmt, _event_printer | a record -> text by the print fmt of its `format` |
| _fields, _line | locating and printing the bytes of a field, for compiled readers |
| layout | values <-> payload |
| connection, _framing | bytes <-> messages |
| messages | params and results of every method |
| status_page | one byte per event: the kinds of attached consumers |
| subbuf, _subbuf | pages of the ring buffer, in the format of `trace_pipe_raw` and trace.dat |
| perf_ring | the perf ring: one metadata page, then records |
| include/ | in C: the data ring, a producer, the header of a record |
"""
