"""Recordings of several hosts, written as their recorders do."""

from collections.abc import Sequence
from pathlib import Path

from tests.client.recordings.events import Events
from tests.client.recordings.trace_dat import example
from utracefs.recordings.origin import ClockPair, Origin

SECOND = 10**9
DAY = 86_400 * SECOND
EVENTS = Events(300, b"tick u32 n; __rel_loc char[] path")
PID = 11


def origin(host: str, offset_ns: int, *, boot: str = "", uncertainty_ns: int | None = None) -> Origin:
    pair = ClockPair(SECOND, SECOND + offset_ns, error_ns=uncertainty_ns)
    return Origin(host, boot or f"boot of {host}", (pair,))


def write(
    path: Path,
    of: Origin | None,
    times: Sequence[int],
    *,
    events: Events = EVENTS,
    lost: int = 0,
    comm: str = "alpha",
    offset_ns: int | None = None,
) -> Path:
    """Records with n = 0, 1, ... on alternate cpus."""
    cpus = [
        example.pages(
            [
                (time, events.entry(300, PID, n, f"/{n}") if events is EVENTS else events.entry(300, PID, n))
                for n, time in enumerate(times)
                if n % 2 == cpu
            ],
            lost=lost,
        )
        for cpu in (0, 1)
    ]
    return example.write(
        path,
        cpus if times else [[], []],
        formats={b"user_events": events.formats()},
        cmdlines=f"{PID} {comm}\n".encode(),
        origin=of,
        offset_ns=offset_ns,
    )
