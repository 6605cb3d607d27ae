"""The cost of tracing in a program that forks: each fork, and the first emit of a child, which connects and
gets a data ring of its own before it returns.

Medians of many children, each after the daemon has become idle; with a session and without one in turns. The
time of a child depends on the pages that it copies: it writes into nearly each that it reads, because of
reference counts.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator

import utracefs
from bench.measure import Row, at_most_row, daemon, until_off
from utracefs.tree.tracefs import Tracefs

ROUNDS = 5
CHILDREN = 21
IDLE_S = 0.04
"""Longer than the daemon stays awake after a record."""


def child_us(job: Callable[[], object]) -> tuple[float, float]:
    """(os.fork() in the parent, `job` in the child): medians, taken one child after the other."""
    forks, times = [], []
    reader, writer = os.pipe()
    for _ in range(CHILDREN):
        time.sleep(IDLE_S)
        begin = time.perf_counter_ns()
        pid = os.fork()
        if not pid:
            begin = time.perf_counter_ns()
            job()
            os.write(writer, b"%d\n" % (time.perf_counter_ns() - begin))
            os._exit(0)
        forks.append(time.perf_counter_ns() - begin)
        os.waitpid(pid, 0)
        times.append(int(os.read(reader, 64)))
    os.close(reader)
    os.close(writer)
    return statistics.median(forks) / 1e3, statistics.median(times) / 1e3


def rows() -> Iterator[Row]:
    without_us, with_us, emit_us = [], [], []
    with daemon() as directory, Tracefs(directory) as tree:
        for _ in range(ROUNDS):
            without_us.append(child_us(lambda: None)[0])
            with utracefs.Session(directory) as session:
                event = session.event("bench_fork u32 a")
                until_off(event)
                with_us.append(child_us(lambda: None)[0])
                tree.write_file("events/user_events/bench_fork/enable", b"1")
                emit_us.append(child_us(functools.partial(event.emit, 1))[1])
                tree.write_file("events/user_events/bench_fork/enable", b"0")
    more_us = statistics.median(with_us) - statistics.median(without_us)
    yield at_most_row("the first emit of a forked child", statistics.median(emit_us), 300, "us")
    yield at_most_row("what a fork costs more", more_us, 150, "us")
