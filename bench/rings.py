"""The data rings end to end: taking in, many consumers, many events, many producers, and memory."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import utracefs
from bench.application import BURST
from bench.measure import Row, at_least_row, at_most_row, daemon, in_turns, ratio_row, statement_ns, until_off
from tests.daemon.consumers.ftrace.histograms import defined
from tests.daemon.intake.producing import new_ring
from utracefs.tree.tracefs import PerfAttr, Tracefs
from utracefs_protocol.events.declaration import parse
from utracefsd.consumers.ftrace.buffer._ring_buffer import RingBuffer
from utracefsd.consumers.ftrace.event._sink import FtraceProbe, FtraceSink
from utracefsd.consumers.ftrace.hist._hist import Hist, HistTable
from utracefsd.consumers.ftrace.hist.program import compile_definition
from utracefsd.consumers.ftrace.trigger._triggers import HistTrigger
from utracefsd.events._tracepoint import Tracepoint
from utracefsd.intake._index_table import IndexTable
from utracefsd.intake._intake import Intake

DATA = 65536
"""Offset of the data area in a ring's memory."""


def taking_in() -> Iterator[Row]:
    """One core, one event: a ring of 16 MiB filled in one go and taken in, into a ring buffer or counted."""
    declaration = parse(b"bench_in u64 a; u64 b")
    tracepoint = Tracepoint(2000, declaration.name, declaration.fields)
    probe = FtraceProbe(FtraceSink(RingBuffer(os.cpu_count() or 1, 8192)))
    tracepoint.attach(probe)
    best = taken_in_s(tracepoint)
    yield at_least_row("records taken in from a data ring, one core", best, 10_000_000, "records/s")
    probe.soft_disabled = True
    for keys in (b"a", b"a,b"):
        definition = defined(b"keys=%s:vals=b" % keys, declaration)
        program = compile_definition(definition)
        table = HistTable.create(11, definition.key_size, program.nr_words)
        probe.triggers = (HistTrigger(probe.sink, Hist(program, table)),)
        best = taken_in_s(tracepoint)
        yield at_least_row(f"counted by hist:keys={keys.decode()}:vals=b", best, 2_000_000, "records/s")


def put(memory: mmap.mmap, size: int, data: bytes) -> None:
    """Write committed records into an empty data ring of this size."""
    (head,) = struct.unpack_from("<Q", memory, 64)
    place = head % size
    first = min(len(data), size - place)
    memory[DATA + place : DATA + place + first] = data[:first]
    memory[DATA : DATA + len(data) - first] = data[first:]
    struct.pack_into("<Q", memory, 64, head + len(data))


def taken_in_s(
    tracepoint: Tracepoint, count: int | None = None, between: Callable[[], object] | None = None
) -> float:
    """Records per second, at best. count: taken in at a time; None: a whole ring. between: called after each
    time."""
    table = IndexTable()
    table.append(tracepoint)
    size = 16 << 20
    ring = new_ring(table, size)
    intake = Intake(os.cpu_count() or 1)
    intake.add(ring)
    memory = mmap.mmap(ring.fd, os.fstat(ring.fd).st_size)
    count = size // 40 if count is None else count
    best = float("inf")
    for _ in range(9):
        records = struct.pack("<IIQIHH", 1 << 31 | 16, 0, time.monotonic_ns(), os.getpid(), 0, 0) + bytes(16)
        data = records * count
        put(memory, size, data)
        begin = time.perf_counter()
        taken = intake.take_in()
        best = min(best, time.perf_counter() - begin)
        assert taken == count
        if between:
            between()
    memory.close()
    return count / best


def emit_ns(session: utracefs.Session, event: Any) -> float:
    took = statement_ns("event.emit(1, 2)", {"event": event}, BURST)
    session.flush(20)
    return took


def consumers() -> Iterator[Row]:
    with daemon() as directory, Tracefs(directory) as tree, utracefs.Session(directory) as session:
        one, four = session.events(["bench_one u64 a; u64 b", "bench_four u64 a; u64 b"])
        until_off(one, four)
        tree.write_file("events/user_events/enable", b"1\n")
        for _ in range(3):
            tree.perf_event_open(PerfAttr(name=b"user_events:bench_four", sample_period=1, data_pages=64))
        best = in_turns({"one": lambda: emit_ns(session, one), "four": lambda: emit_ns(session, four)}, 25)
        yield ratio_row("emit with 4 consumers", best["four"], best["one"], "1 consumer", 1.1)


def many_events() -> Iterator[Row]:
    with daemon() as directory, Tracefs(directory) as tree:
        with utracefs.Session(directory) as small, utracefs.Session(directory) as large:
            alone = small.event("bench_alone u64 a; u64 b")
            events = large.events([f"bench_{i} u64 a; u64 b" for i in range(4000)])
            until_off(alone)
            while not all(event.registered for event in events):
                time.sleep(0.01)
            tree.write_file("events/user_events/bench_alone/enable", b"1\n")
            tree.write_file("events/user_events/bench_3999/enable", b"1\n")
            best = in_turns(
                {"one": lambda: emit_ns(small, alone), "many": lambda: emit_ns(large, events[-1])}, 25
            )
        yield ratio_row("emit with 4,000 events", best["many"], best["one"], "1 event", 1.1)


WARM_UP = 30_000


def produce(directory: str, count: int, go: Any, done: Any) -> None:
    os.environ["UTRACEFS_DIR"] = directory
    session = utracefs.Session(directory)
    event = session.event("bench_flat u64 a; u64 b")
    while not (event.registered and event):
        time.sleep(0.001)
    emit = event.emit
    for i in range(WARM_UP):  # the ring's pages are mapped, in both processes
        emit(i, i)
    session.flush(60)
    done.release()
    go.wait()
    for i in range(count):
        emit(i, i)
    session.flush(60)
    done.release()
    session.close()


def flat_out(producers: int, count: int, directory: str, tree: Tracefs) -> tuple[float, int, int, int]:
    """(seconds, emitted, recorded, lost) for `producers` processes that emit `count` records each."""
    context: Any = multiprocessing.get_context("fork")
    go, done = context.Event(), context.Semaphore(0)
    processes = [context.Process(target=produce, args=(directory, count, go, done)) for _ in range(producers)]
    for process in processes:
        process.start()
    for _ in processes:
        done.acquire()
    before = stats(tree)
    begin = time.perf_counter()
    go.set()
    for _ in processes:
        done.acquire()
    took = time.perf_counter() - begin
    for process in processes:
        process.join()
    after = stats(tree)
    return (took, *(a - b for a, b in zip(after, before, strict=True)))  # type: ignore[return-value]


def stats(tree: Tracefs) -> tuple[int, int, int]:
    try:
        text = tree.read_file("events/user_events/bench_flat/stats").decode()
    except OSError:
        return 0, 0, 0
    found = re.search(r"emitted: (\d+)\n(?:.*\n)*ftrace: recorded (\d+) filtered 0 lost (\d+)", text)
    return tuple(map(int, found.groups())) if found else (0, 0, 0)  # type: ignore[return-value]


def many_producers() -> Iterator[Row]:
    emitted_rate: dict[tuple[int, str], float] = {}
    taken_rate: dict[tuple[int, str], float] = {}
    total = 6_400_000
    for producers, ring_kb in ((1, "4096"), (2, "4096"), (1, "1024"), (64, "1024")):
        os.environ["UTRACEFS_RING_KB"] = ring_kb
        with daemon("--buffer-size-kb", "16384") as directory, Tracefs(directory) as tree:
            tree.write_file("standing_events", b"bench_flat\n")
            fastest, most_taken, most_lost = float("inf"), 0.0, 0.0
            for _ in range(5):
                took, emitted, recorded, lost = flat_out(producers, total // producers, directory, tree)
                if emitted != total or recorded + lost != emitted:
                    raise SystemExit(f"bench: {total} emitted, {emitted} counted, {recorded} + {lost}")
                fastest = min(fastest, took)
                most_taken = max(most_taken, recorded / took)
                most_lost = max(most_lost, lost / total)
        os.environ.pop("UTRACEFS_RING_KB")
        emitted_rate[producers, ring_kb] = total / fastest
        taken_rate[producers, ring_kb] = most_taken
        name = f"{producers} in Python flat out, {ring_kb} KiB rings"
        yield at_least_row(f"{name}: lost at most {most_lost:.0%}, counted", total / fastest, 0, "records/s")
    for what, rate in (("emitted", emitted_rate), ("taken in", taken_rate)):
        one, many = rate[1, "1024"], rate[64, "1024"]
        held = many >= 0.8 * one
        yield Row(
            f"64 producers: {what}, all together", many, "records/s", ">= 0.8 x", held, one, "1 producer"
        )


def memory_of(pid: int) -> tuple[int, int]:
    """(anonymous and file-backed, shared memory) resident KiB."""
    with open(f"/proc/{pid}/status") as f:
        found = dict(re.findall(r"^(Rss\w+):\s+(\d+) kB", f.read(), re.MULTILINE))
    return int(found["RssAnon"]) + int(found["RssFile"]), int(found["RssShmem"])


def idle(directory: str, ready: Any, go: Any) -> None:
    session = utracefs.Session(directory)
    until_off(session.event("bench_idle u64 a"))
    ready.release()
    go.wait()
    session.close()


def memory() -> Iterator[Row]:
    context: Any = multiprocessing.get_context("fork")
    with daemon() as directory:
        go, ready = context.Event(), context.Semaphore(0)
        processes = [context.Process(target=idle, args=(directory, ready, go)) for _ in range(64)]
        for process in processes:
            process.start()
        for _ in processes:
            ready.acquire()
        own, shared = memory_of(int(os.environ["UTRACEFS_BENCH_DAEMON"]))
        go.set()
        for process in processes:
            process.join()
    yield at_most_row(
        f"RSS of the daemon with 64 idle producers (and {shared >> 10} MiB shared)", own / 1024, 60, "MiB"
    )


def rows() -> Iterator[Row]:
    yield from taking_in()
    yield from consumers()
    yield from many_events()
    yield from many_producers()
    yield from memory()
