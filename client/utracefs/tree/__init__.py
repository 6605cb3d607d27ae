"""The daemon's tree: the socket, its calls, the names of events, histograms.

| module | |
|---|---|
| runtime_dir | the directory of the daemon's sockets |
| rpc | one call and its answer |
| tracefs | `Tracefs`: files and directories of the tree |
| event_names | `SYSTEM:EVENT`, and patterns of it |
| histogram | parsing a hist file |
"""
