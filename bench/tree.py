"""Registering, enabling, and reading `trace`."""

from __future__ import annotations

import time
from collections.abc import Iterator

import utracefs
from bench.measure import Row, at_most_row, daemon, until_off
from utracefs.tree.tracefs import Tracefs

EVENTS = 4_000
LINES = 100_000


def register() -> float:
    """Microseconds per event: `utracefs.events` with all of them, until the daemon has them all."""
    with daemon() as directory, Tracefs(directory) as tree:
        declarations = [f"bench_{i} u32 a; u64 b; __rel_loc char[] c" for i in range(EVENTS)]
        session = utracefs.Session(directory)
        begin = time.perf_counter()
        events = session.events(declarations)
        while not all(event.registered for event in events):
            time.sleep(0.0005)
        took = time.perf_counter() - begin
        status = tree.read_file("user_events_status")
        assert b"Active: %d" % EVENTS in status, status[-100:]
        session.close()
    return took / EVENTS * 1e6


def rows() -> Iterator[Row]:
    yield at_most_row(f"register {EVENTS:,} events, each", min(register() for _ in range(5)), 40, "us")
    with daemon("--buffer-size-kb", "65536") as directory, Tracefs(directory) as tree:
        session = utracefs.Session(directory)
        event = session.event("bench_line u32 a; u64 b; __rel_loc char[] c")
        until_off(event)
        seen = []
        for _ in range(20):
            begin = time.perf_counter()
            tree.write_file("events/user_events/bench_line/enable", b"1\n")
            while not (event.registered and event):
                pass
            seen.append(time.perf_counter() - begin)
            tree.write_file("events/user_events/bench_line/enable", b"0\n")
        yield at_most_row("enable seen by a running program (worst of 20)", max(seen) * 1e3, 5, "ms")
        tree.write_file("events/user_events/bench_line/enable", b"1\n")
        assert event
        for i in range(LINES):
            event.emit(i, i * 3, "a string")
            if i % 10_000 == 0:
                session.flush()
        session.flush()
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            text = tree.read_file("trace")
            best = min(best, time.perf_counter() - begin)
        assert text.count(b"\n") > LINES, text[:1000]
        yield at_most_row("cat trace of 100,000 records, a line", best / LINES * 1e6, 3, "us")
        session.close()
