"""The forwarder and NATS JetStream: a target's rate against the encoding alone, with the same batches in
turns; cpu time of a whole forwarder behind a program that emits about a million records a second, and that of
the daemon, compared with a plain stream consumer."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

import utracefs
from bench.measure import Row, at_least_row, at_most_row, daemon, in_turns, ratio_row
from tests.client.nats.server import NatsServer, serving
from utracefs.forward.batch import Batch
from utracefs.forward.forwarder import RING_BYTES, STATUS_FILE
from utracefs.forward.nats import NatsTarget
from utracefs.forward.nats_messages import Encoder
from utracefs.forward.target import Settings
from utracefs.recordings.origin import ClockPair
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text

DECLARATION = "bench_sent u64 a; u64 b; u32 status; u32 usec; u32 size"
RECORD = 64
PER_BATCH = (1 << 20) // RECORD
BATCHES = 16
ROUNDS = 9

LIVE = 8_000_000
WARM = 1_000_000
PACED = 10_000
"""Records that the program emits at once, each hundredth of a second."""


def batches(first: int) -> list[Batch]:
    declared = parse(DECLARATION.encode())
    text = format_text(declared.name, 5, declared.fields)
    found = []
    for number in range(BATCHES):
        body = b"".join(
            struct.pack(
                "<IHHQIIHHiQQIII4x",
                *(RECORD, 0, at % 4, 10**9 + 1000 * at + at * at % 499, 77, 36, 5, 0, 7 + at // 1000 % 8),
                *(at, at * 7919 % 100_003, 200 if at % 50 else 500, at * 7919 % 5003, at % 977),
            )
            for at in range(number * PER_BATCH, (number + 1) * PER_BATCH)
        )
        found.append(
            Batch(
                "f",
                first + number,
                "host",
                "boot",
                ClockPair(1, 10**18, 50),
                {5: ("user_events", text)},
                {7: "main"},
                {"user_events:bench_sent": PER_BATCH},
                (),
                1,
                1,
                False,
                body,
            )
        )
    return found


def against_encoding(server: NatsServer) -> Iterator[Row]:
    sent = batches(1)
    encoder = Encoder("lz4")
    target = NatsTarget(f"nats://{server.at}/BENCH", Settings({"max_bytes": "2G"}))
    cpu: list[float] = []
    rounds = 0

    def encoded() -> float:
        begin = time.perf_counter()
        for batch in sent:
            encoder.parts(batch, 1 << 20)
        return time.perf_counter() - begin

    def stored() -> float:
        nonlocal rounds
        mine = [attrs.evolve(batch, sequence=batch.sequence + rounds * BATCHES) for batch in sent]
        rounds += 1
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for batch in mine:
            target.send([batch])
        cpu.append((time.process_time() - begin_cpu) / (BATCHES * PER_BATCH) * 1e9)
        return time.perf_counter() - begin

    best = in_turns({"encoded": encoded, "stored": stored}, ROUNDS)
    target.close()
    records = BATCHES * PER_BATCH
    rate, alone = records / best["stored"], records / best["encoded"]
    yield Row(
        "stored by nats-server",
        rate / 1e6,
        "million/s",
        ">= 0.3 x",
        rate >= 0.3 * alone,
        alone / 1e6,
        "encoding alone",
    )
    yield at_most_row("the same, cpu time of the target", min(cpu), 250, "ns/record")


def produce(directory: str, go: Any) -> None:
    os.environ["UTRACEFS_RING_KB"] = "32768"
    with utracefs.Session(directory) as session:
        event = session.event(DECLARATION)
        while not (event.registered and event):
            time.sleep(0.001)
        emit = event.emit
        go.wait()
        due = time.monotonic()
        for begin in range(0, LIVE, PACED):
            for n in range(begin, begin + PACED):
                emit(n, n * 7, 200, n % 5003, 77)
            due += PACED / 1e6
            time.sleep(max(0.0, due - time.monotonic()))
        session.flush(60)


def cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def started(directory: str) -> Any:
    """The program, which emits now."""
    context: Any = multiprocessing.get_context("fork")
    go = context.Event()
    process = context.Process(target=produce, args=(directory, go))
    process.start()
    go.set()
    return process


def daemon_beside_a_stream() -> float:
    """CPU time of the daemon for a record, in nanoseconds."""
    with (
        daemon() as directory,
        utracefs.attach(
            "bench_sent", ring_bytes=RING_BYTES, watermark=RING_BYTES // 8, timeout_s=1
        ) as stream,
    ):
        pid = int(os.environ["UTRACEFS_BENCH_DAEMON"])
        before, got = cpu_s(pid), 0
        process = started(directory)
        while got + sum(stream.lost.values()) < LIVE:
            got += sum(sum(batch.counts.values()) for batch in stream.batches())
        used = cpu_s(pid) - before
        process.join()
    return used / LIVE * 1e9


def whole_forwarder(server: NatsServer) -> Iterator[Row]:
    spool = Path(tempfile.mkdtemp(prefix="utracefs-bench-"))
    with daemon() as directory:
        command = [sys.executable, "-m", "utracefs.cli", "--dir", directory, "forward", "--spool", str(spool)]
        command += ["-e", "bench_sent", "-O", "max_bytes=2G", f"nats://{server.at}/BENCH"]
        forwarder = subprocess.Popen(command)

        def status(name: str) -> Any:
            try:
                return json.loads((spool / STATUS_FILE).read_text())[name]
            except (FileNotFoundError, ValueError):
                return 0

        try:
            while not status("attached"):
                time.sleep(0.05)
            pid = int(os.environ["UTRACEFS_BENCH_DAEMON"])
            daemon_s = cpu_s(pid)
            process = started(directory)
            while status("records_sent") < WARM:  # libraries are imported, buffers have their sizes
                time.sleep(0.05)
            warm, before, begin = status("records_sent"), cpu_s(forwarder.pid), time.perf_counter()
            lost = 0
            while status("records_sent") + lost < LIVE:
                time.sleep(0.2)
                lost = sum(n for causes in (status("lost") or {}).values() for n in causes.values())
            took, cpu = time.perf_counter() - begin, cpu_s(forwarder.pid) - before
            sent = status("records_sent")
            daemon_ns = (cpu_s(pid) - daemon_s) / LIVE * 1e9
            process.join()
        finally:
            forwarder.terminate()
            forwarder.wait(30)
            shutil.rmtree(spool)
    yield at_least_row("forwarded, of those emitted", 100 * sent / LIVE, 99.9, "%")
    yield at_least_row("forwarded to NATS, program and server beside", (sent - warm) / took, 0, "records/s")
    yield at_most_row("the same, cpu time of the forwarder", cpu / (sent - warm) * 1e9, 250, "ns/record")
    stream_ns = daemon_beside_a_stream()
    yield ratio_row("cpu time of the daemon beside it", daemon_ns, stream_ns, "a plain stream", 1.2)


def rows() -> Iterator[Row]:
    with (
        tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder,
        serving(Path(folder) / "nats") as server,
    ):
        yield from against_encoding(server)
        yield from whole_forwarder(server)
