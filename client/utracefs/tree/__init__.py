"""The daemon's tree: the socket, its calls, the names of events, histograms.

| module | |
|---|---|
| runtime_dir | in which directory the daemon listens |
| rpc | one call and its answer |
| tracefs | `Tracefs`: files and directories of the tree |
| event_names | `SYSTEM:EVENT`, and patterns of it |
| histogram | what a hist file says |
"""
