"""A recording with numbers worth counting, and many of them."""

from __future__ import annotations

import random
from pathlib import Path

import utracefs
from tests.client.recordings.events import Events
from tests.protocol.pages.page_writer import PageWriter
from utracefs.html import write_html
from utracefs.recordings.trace_dat.writer import Contents, TraceDatWriter
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text

EVENTS = Events(
    500,
    b"http_request u16 status; u32 usec; u64 bytes; __rel_loc char[] path",
    b"queue_length s32 length; s64 change",
    b"big u64 wide; u64 key",
)
WORKERS = 12
DIFFERENT = 100_003
"""Entries are made once, and written again and again; more than what deflate looks back for."""

MANY = 20_000


def write_many(path: Path, count: int, *, times: int = 1, cpus: int = 4, lost_every: int = 0) -> Path:
    """times: that all pages are written, each time later. lost_every: pages in front of which records were
    lost."""
    chance = random.Random(count)
    entries = []
    for n in range(DIFFERENT):
        tid = 1000 + n % WORKERS
        kind = chance.random()
        if kind < 0.7:
            usec = int(chance.lognormvariate(7, 1.2))
            status = chance.choices([200, 204, 302, 404, 500, 503], [70, 10, 8, 8, 3, 1])[0]
            target = f"/api/v1/{chance.choice(['orders', 'users', 'stock', 'cart'])}/{chance.randrange(3000)}"
            entries.append(EVENTS.entry(500, tid, status, usec, usec * chance.randrange(1, 2000), target))
        elif kind < 0.95:
            entries.append(
                EVENTS.entry(501, tid, chance.randrange(-3, 400), chance.randrange(-(2**40), 2**40))
            )
        else:
            entries.append(EVENTS.entry(502, tid, chance.randrange(2**64), 2**63 + n))
    time = begin = 10**12
    pages = [PageWriter() for _ in range(cpus)]
    written: list[tuple[int, bytes]] = []

    def write(cpu: int) -> None:
        is_lossy = lost_every and not (len(written) + 1) % lost_every
        written.append((cpu, pages[cpu].page(10 if is_lossy else 0)))
        pages[cpu] = PageWriter()

    for n in range(count):
        cpu = n // 5 % cpus
        entry = entries[n * 7919 % DIFFERENT]
        time += 400 + n * 31 % 1777 + (40_000 if n % 3000 > 2400 else 0)
        if not pages[cpu].add(time, entry):
            write(cpu)
            assert pages[cpu].add(time, entry)
    for cpu in range(cpus):
        write(cpu)
    with TraceDatWriter(path, nr_cpus=cpus) as writer:
        for later in range(times):
            for cpu, page in written:
                since = int.from_bytes(page[:8], "little") + later * (time - begin)
                writer.add_page(cpu, since.to_bytes(8, "little") + page[8:])
        writer.finish(
            Contents(
                header_page=header_page_text(),
                header_event=HEADER_EVENT_TEXT,
                formats={b"user_events": EVENTS.formats()},
                cmdlines=b"".join(b"%d worker-%d\n" % (1000 + n, n) for n in range(WORKERS)),
                trace_clock=b"[mono]",
                cpu_stats={0: b"entries: 5\noverrun: 77\ndropped events: 0\n"},
            )
        )
    return path


def page_of(recording: Path, **selection: object) -> Path:
    """The page, beside its recording."""
    path = recording.with_suffix(".html")
    whole = utracefs.open(recording, **selection)  # type: ignore[arg-type]
    with whole as opened, path.open("wb") as out:
        write_html(opened, out)
    return path
