"""The daemon, room by room; each imports only what stands below it.

    server        sockets are listened on, signals and clocks read; the only room that knows trio
    daemon        the composition of all below, without a loop
    connections   one open file of `user_events_data`, one client of the tree: bytes in, bytes out
    tree          the virtual tracefs: a file is a row, its text is made from state
    state         what a successor finds
    intake        data rings of producers, merged by time
    consumers     ftrace instances, perf events, plug-ins: what keeps records
    events        declarations, references, status bytes, tracepoints
    machine       names of threads, /proc, peers

A record walks up to `consumers` from two sides: a producer commits it to its data ring, `intake` finds it there and
hands it to the event's tracepoint; or it comes as a MessagePack object over the socket through `connections`. `tree`
shows what the consumers keep. docs/architecture.md has the walk with the names of the functions.
"""

__all__: list[str] = []
