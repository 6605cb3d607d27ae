"""What an event costs the application: disabled, and enabled through the socket."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import utracefs
from bench.measure import Row, daemon, in_turns, ratio_row, statement_ns
from utracefs.tracefs import Tracefs

RECORD = bytes(20)
"""A write_index and two u64, as one `send` would carry it."""


def drain(sock: socket.socket) -> None:
    while sock.recv(1 << 20):
        pass


def rows() -> Iterator[Row]:
    logger = logging.getLogger("bench")
    logger.setLevel(logging.WARNING)
    with daemon() as directory:
        event = utracefs.event("bench_app u64 a; u64 b")
        bool(event)
        names: dict[str, Any] = {"logger": logger, "DEBUG": logging.DEBUG, "event": event, "RECORD": RECORD}
        many = 2_000_000
        best = in_turns(
            {
                "isEnabledFor": lambda: statement_ns("logger.isEnabledFor(DEBUG)", names, many),
                "if event": lambda: statement_ns("if event: pass", names, many),
                "debug": lambda: statement_ns("logger.debug('%d', 1)", names, many),
                "emit": lambda: statement_ns("event.emit(1, 2)", names, many),
            }
        )
        yield ratio_row("if event: disabled", best["if event"], best["isEnabledFor"], "isEnabledFor", 1.0)
        yield ratio_row("event.emit(a, b) disabled", best["emit"], best["debug"], "logger.debug", 1.0)

        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        reader = threading.Thread(target=drain, args=(far,))
        # In a process of its own, like the daemon: the baseline must not pay for its reader's GIL.
        child = os.fork()
        if not child:
            near.close()
            drain(far)
            os._exit(0)
        del reader
        far.close()
        with Tracefs(directory) as tree:
            tree.write_file("events/user_events/bench_app/enable", b"1\n")
            names["send"] = near.send
            count = 20_000

            def emits() -> float:
                took = statement_ns("event.emit(1, 2)", names, count)
                utracefs.flush()
                return took

            best = in_turns({"send": lambda: statement_ns("send(RECORD)", names, count), "emit": emits}, 15)
        near.close()
        os.waitpid(child, 0)
        yield ratio_row(
            "event.emit(a, b) batched over the socket", best["emit"], best["send"], "send a record", 0.5
        )
        utracefs.close()
