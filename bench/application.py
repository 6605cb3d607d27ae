"""The application's cost of an event: disabled, enabled through the data ring, through the socket."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import utracefs
from bench.measure import Row, daemon, in_turns, ratio_row, statement_ns, until_off
from utracefs.tree.tracefs import Tracefs

RECORD = bytes(20)
"""A write_index and two u64, as in one write."""

BURST = 10_000
"""Emits in one timed run: they fit the ring, so the daemon's work on a shared core is not measured."""


@contextlib.contextmanager
def drained(write_end: Callable[[], tuple[Any, int]]) -> Iterator[Any]:
    """The writing end of a pipe or socket that another process empties, like the daemon: a reader in this
    process would compete for the GIL."""
    writer, reader = write_end()
    child = os.fork()
    if not child:
        os.close(writer if isinstance(writer, int) else writer.detach())
        while os.read(reader, 1 << 20):
            pass
        os._exit(0)
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer) if isinstance(writer, int) else writer.close()
        os.waitpid(child, 0)


def a_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    return writer, reader


def a_socket() -> tuple[socket.socket, int]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return near, far.detach()


def disabled() -> Iterator[Row]:
    logger = logging.getLogger("bench")
    logger.setLevel(logging.WARNING)
    with daemon() as directory, utracefs.Session(directory) as session:
        event = session.event("bench_app u64 a; u64 b")
        until_off(event)
        names: dict[str, Any] = {"logger": logger, "DEBUG": logging.DEBUG, "event": event}
        many = 1_000_000
        best = in_turns(
            {
                "isEnabledFor": lambda: statement_ns("logger.isEnabledFor(DEBUG)", names, many),
                "if event": lambda: statement_ns("if event: pass", names, many),
                "debug": lambda: statement_ns("logger.debug('%d', 1)", names, many),
                "emit": lambda: statement_ns("event.emit(1, 2)", names, many),
            }
        )
    yield ratio_row("if event: disabled", best["if event"], best["isEnabledFor"], "isEnabledFor", 0.55)
    yield ratio_row("event.emit(a, b) disabled", best["emit"], best["debug"], "logger.debug", 0.25)


def emitting(
    directory: str,
    tree: Tracefs,
    session: utracefs.Session,
    statement: str,
    event: Any,
    number: int = BURST,
) -> float:
    names = {"event": event}
    took = statement_ns(statement, names, number)
    if not session.flush(20):
        raise SystemExit("bench: the daemon does not answer")
    return took


def enabled() -> Iterator[Row]:
    with daemon("--buffer-size-kb", "65536") as directory, Tracefs(directory) as tree:
        with utracefs.Session(directory) as session, drained(a_pipe) as pipe:
            numbers = session.event("bench_two u64 a; u64 b")
            string = session.event("bench_str u64 a; u64 b; __rel_loc char[] s")
            until_off(numbers, string)
            tree.write_file("events/user_events/enable", b"1\n")
            names: dict[str, Any] = {"write": os.write, "pipe": pipe, "RECORD": bytes(24)}
            subjects = {
                "write": lambda: statement_ns("write(pipe, RECORD)", names, BURST),
                "two": lambda: emitting(directory, tree, session, "event.emit(1, 2)", numbers),
                "string": lambda: emitting(
                    directory, tree, session, "event.emit(1, 2, 'fifteen letters')", string
                ),
            }
            best = in_turns(subjects, 25)
            lost = numbers.lost + string.lost
        write = "os.write 24 bytes to a pipe"
        yield ratio_row("event.emit(a, b) into the data ring", best["two"], best["write"], write, 0.15)
        yield ratio_row("the same plus a 15-character string", best["string"], best["write"], write, 0.2)
        if lost:
            print(f"  (lost {lost}: the ring was full in between)")
        with contextlib.ExitStack() as stack:
            os.environ["UTRACEFS_DATA_RING"] = "0"
            stack.callback(os.environ.pop, "UTRACEFS_DATA_RING")
            session = stack.enter_context(utracefs.Session(directory))
            near = stack.enter_context(drained(a_socket))
            event = session.event("bench_two u64 a; u64 b")
            assert event
            names = {"send": near.send, "RECORD": RECORD}
            best = in_turns(
                {
                    "send": lambda: statement_ns("send(RECORD)", names, BURST),
                    "emit": lambda: emitting(directory, tree, session, "event.emit(1, 2)", event),
                },
                25,
            )
        yield ratio_row(
            "event.emit(a, b) batched over the socket", best["emit"], best["send"], "send a record", 0.5
        )


def rows() -> Iterator[Row]:
    yield from disabled()
    yield from enabled()
