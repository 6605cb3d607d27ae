"""Operations on the tree with two hundred instances and 4,000 events, and the memory."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator

import utracefs
from bench.measure import Row, at_most_row, daemon
from utracefs.tree.tracefs import Tracefs

EVENTS = 4_000
INSTANCES = 200
FILTERS = 40
EACH = 20
"""Repetitions of an operation; the slowest counts."""


def rows() -> Iterator[Row]:
    with daemon() as directory, Tracefs(directory) as tree:
        session = utracefs.Session(directory)
        events = session.events([f"bench_{i} u32 a" for i in range(EVENTS)])
        while not all(event.registered for event in events):
            time.sleep(0.0005)
        for i in range(INSTANCES):
            tree.mkdir(f"instances/i{i}")
            tree.write_file(f"instances/i{i}/buffer_size_kb", b"4\n")
        yield at_most_row(
            f"{EVENTS:,} events, {INSTANCES} instances: the daemon's memory", memory_mib(), 200, "MiB"
        )
        yield from operations(tree, "")
        for i in range(INSTANCES):
            tree.write_file(f"instances/i{i}/events/user_events/bench_{i}/enable", b"1\n")
        yield from operations(tree, "an event enabled in each: ")
        for i in range(INSTANCES):
            for event in range(0, EVENTS, 40):
                tree.write_file(f"instances/i{i}/events/user_events/bench_{event}/enable", b"1\n")
        yield at_most_row("100 events enabled in each: memory", memory_mib(), 200, "MiB")
        yield from operations(tree, "100 events enabled in each: ")
        for i in range(INSTANCES):
            for event in range(0, 40 * FILTERS, 40):
                path = f"instances/i{i}/events/user_events/bench_{event}/filter"
                tree.write_file(path, b"a > 10 && common_pid != 1\n")
        yield at_most_row(f"{FILTERS} filters in each, too: memory", memory_mib(), 200, "MiB")
        yield from operations(tree, f"{FILTERS} filters in each, too: ")
        session.close()


def operations(tree: Tracefs, state: str) -> Iterator[Row]:
    for what, operation in {
        "cat events/enable": lambda: tree.read_file("instances/i7/events/enable"),
        "cat set_event": lambda: tree.read_file("instances/i7/set_event"),
        "cat available_events": lambda: tree.read_file("available_events"),
        "cat trace": lambda: tree.read_file("instances/i7/trace"),
        "ls events/user_events": lambda: tree.list_dir("instances/i7/events/user_events"),
        "enable and disable an event": lambda: switch(tree),
        "write and clear a filter": lambda: set_filter(tree),
        "echo 1 > snapshot": lambda: tree.write_file("instances/i7/snapshot", b"1\n"),
        "mkdir and rmdir of an instance": lambda: make_and_remove(tree),
    }.items():
        yield at_most_row(f"{state}{what}, worst of {EACH}", worst_ms(operation), 50, "ms")


def switch(tree: Tracefs) -> None:
    for value in (b"1\n", b"0\n"):
        tree.write_file("instances/i7/events/user_events/bench_3999/enable", value)


def set_filter(tree: Tracefs) -> None:
    for text in (b"a == 1 || a == 7\n", b"0\n"):
        tree.write_file("instances/i7/events/user_events/bench_3998/filter", text)


def make_and_remove(tree: Tracefs) -> None:
    tree.mkdir("instances/more")
    tree.rmdir("instances/more")


def worst_ms(operation: Callable[[], object]) -> float:
    worst = 0.0
    for _ in range(EACH):
        begin = time.perf_counter()
        operation()
        worst = max(worst, time.perf_counter() - begin)
    return worst * 1e3


def memory_mib() -> float:
    """Memory of the daemon, without its ring buffers, which are files."""
    with open(f"/proc/{os.environ['UTRACEFS_BENCH_DAEMON']}/status") as file:
        found = re.search(r"^RssAnon:\s*(\d+) kB", file.read(), re.MULTILINE)
    assert found
    return int(found[1]) / 1024
