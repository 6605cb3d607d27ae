"""The daemon. Each package imports only packages below it:

    main          the command: log, signals, systemd
    server        sockets and clocks; with `main` the only package that knows trio
    daemon        composes all packages below, without a loop
    connections   one open file of `user_events_data`, one client of the tree: bytes in, bytes out
    tree          the virtual tracefs: a file is a row, its text is made from state
    state         the state that the next daemon takes over
    intake        data rings of producers, merged by time
    consumers     ftrace instances, perf events, streams, counts, plug-ins: they take the records
    events        declarations, references, status bytes, tracepoints
    machine       names of threads, /proc, peers, limits per user

A record reaches `consumers` in one of two ways: a producer commits it to its data ring, and `intake` finds it
there and hands it to the event's tracepoint; or it comes as a MessagePack object over the socket through
`connections`. `tree` shows the consumers' records. docs/architecture.md names the functions on the way.

`serve` runs a daemon inside a trio program. It is imported at first use, so that importing the packages below
it, such as the compiled ones that plug-ins use, does not import trio.
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
