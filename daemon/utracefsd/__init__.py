"""The daemon: event table, probes, consumers, the virtual tree, and the server around them.

A record walks through the modules in this order: `server` (sockets; the only one that knows trio) hands bytes to
`data_connection`, which finds the event in its write_index table; `_probes` runs what is attached to that event;
`consumers` keep the record; `tree` shows it. `daemon` composes all of these without a loop, `server.serve` runs the
composition inside any trio program, `python -m utracefsd` does it as a process.

Nothing is imported here: parts that need no loop stay usable, and testable, without trio.
"""

__all__: list[str] = []
