"""Forwarding to Parquet: batches into the spool, out of it, and into files; CPU time a record."""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Row, at_most_row
from utracefs.forward.batch import Batch
from utracefs.forward.spool import Spool
from utracefs.forward.target import Settings, open_target
from utracefs.recordings.origin import Origin
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text

RECORDS = 20_000
"""Records of a batch; each has 48 bytes."""
BATCHES = 50
ROUNDS = 5
DECLARED = parse(b"bench_in u64 a; u64 b")


def batch(number: int) -> Batch:
    origin = Origin.here("mono")
    now = origin.clocks[0].clock_ns
    body = b"".join(
        struct.pack(
            "<IHHQIIHHiQQ", 48, 0, n % 4, now + 1000 * n + n * n % 499, 7, 24, 5, 0, 7, n, n * n % 9973
        )
        for n in range(RECORDS)
    )
    event = ("user_events", format_text(DECLARED.name, 5, DECLARED.fields))
    counts = {"user_events:bench_in": RECORDS}
    return Batch(
        "", number, origin.host, origin.boot_id, origin.clocks[0], {5: event}, {7: "bench"}, counts, (), now,
        now, False, body,
    )  # fmt: skip


def rows() -> Iterator[Row]:
    made = [batch(number) for number in range(BATCHES)]
    whole = alone = float("inf")
    with tempfile.TemporaryDirectory(prefix="utracefs-bench-") as folder:
        spool = Spool(Path(folder, "spool"), 1 << 30)
        target = open_target(f"parquet:{folder}/out", Settings(directory=spool.directory))
        for _ in range(ROUNDS):
            begin = time.process_time()
            for one in made:
                spool.append(one)
            taken = spool.take(target.limits, 0, at_once=True)
            middle = time.process_time()
            target.send(taken)
            end = time.process_time()
            spool.done()
            nr_records = sum(one.nr_records for one in taken)
            whole = min(whole, (end - begin) / nr_records)
            alone = min(alone, (end - middle) / nr_records)
        spool.close()
    yield at_most_row("forward to Parquet: spool and files, CPU a record", whole * 1e9, 250, "ns")
    yield at_most_row("the files alone", alone * 1e9, 250, "ns")
