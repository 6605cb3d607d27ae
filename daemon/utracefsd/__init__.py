"""The daemon, room by room; each imports only what stands below it.

    main          the command: log, signals, systemd
    server        sockets are listened on, clocks read; with `main` the only room that knows trio
    daemon        the composition of all below, without a loop
    connections   one open file of `user_events_data`, one client of the tree: bytes in, bytes out
    tree          the virtual tracefs: a file is a row, its text is made from state
    state         what a successor finds
    intake        data rings of producers, merged by time
    consumers     ftrace instances, perf events, plug-ins: what keeps records
    events        declarations, references, status bytes, tracepoints
    machine       names of threads, /proc, peers, limits per user

A record walks up to `consumers` from two sides: a producer commits it to its data ring, `intake` finds it
there and hands it to the event's tracepoint; or it comes as a MessagePack object over the socket through
`connections`. `tree` shows what the consumers keep. docs/architecture.md has the walk with the names of the
functions.

`serve` runs a daemon inside a trio program. It is imported when it is first asked for, so that the rooms
below it, the compiled ones that plug-ins use among them, do not bring a loop with them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from utracefsd.server.serve import serve as serve

__all__ = ["serve"]


def __getattr__(name: str) -> Any:
    if name == "serve":
        from utracefsd.server.serve import serve

        return serve
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
