"""The agreement between client and daemon. It uses no sockets, no files and no event loop.

| module | |
|---|---|
| errors, limits | exceptions with an errno; limits with their reasons |
| places | where the sockets are |
| text | bytes <-> str |
| own_processes | the first steps of our processes, and how one starts another |
| frozen | immutable data without attrs, for modules that every emitting program imports |
| events/ | declarations, formats, names and values of events |
| connection, _framing | bytes <-> messages |
| messages | params and results of every method |
| pages/ | shared memory and files of pages: status page, rings, sub-buffers |
| filter/ | expressions that select records |
| include/ | in C: the data ring, a producer, the header of a record |
"""
