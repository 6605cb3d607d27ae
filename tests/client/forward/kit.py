"""A target in memory, batches without a daemon, and the sums that the far end makes of them."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tests.protocol.events.plain_layout import Layout
from utracefs.forward.batch import Batch
from utracefs.forward.losses import Loss, Marks, Selection
from utracefs.forward.target import Limits, Sent
from utracefs.recordings.origin import ClockPair
from utracefs_protocol.events.declaration import parse
from utracefs_protocol.events.event_format import format_text
from utracefs_protocol.messages.tracefs import Missed, StreamMissed

FORMAT = b"""name: work
ID: %d
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:unsigned char common_preempt_count;\toffset:3;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:u32 a;\toffset:8;\tsize:4;\tsigned:0;

print fmt: "a=%%u", REC->a
"""
EVENT = "user_events:work"
LIMITS = Limits(records=1000, bytes=1 << 20)


def record(a: int, *, id_: int = 5, tid: int = 7, time_ns: int = 1000) -> bytes:
    """A raw record in the layout of include/stream_ring.h."""
    entry = id_.to_bytes(2, "little") + bytes(2) + tid.to_bytes(4, "little") + a.to_bytes(4, "little")
    head = (40).to_bytes(4, "little") + bytes(2) + (1).to_bytes(2, "little") + time_ns.to_bytes(8, "little")
    return head + (77).to_bytes(4, "little") + len(entry).to_bytes(4, "little") + entry + bytes(4)


def batch(numbers: Sequence[int] = (1, 2), *, losses: Sequence[Loss] = (), pad: int = 0) -> Batch:
    """A batch of records with these values of `a`. pad: bytes that enlarge its header."""
    body = b"".join(map(record, numbers))
    return Batch(
        "",
        0,
        "here",
        "boot",
        ClockPair(10, 10**18 + 10, 3),
        {5: ("user_events", FORMAT % 5)} if numbers else {},
        {7: "x" * pad or "main"},
        {EVENT: len(numbers)} if numbers else {},
        losses,
        1000,
        1000,
        False,
        body,
    )


def marks_at(total: int) -> Marks:
    """The daemon has counted so many records of EVENT."""
    missed = StreamMissed(b"daemon", 0, (Missed(EVENT.encode(), total, 0),))
    return Marks.at(missed, Selection(["work"], ["*:*"], is_whole=True))


def batch_of(
    commands: Mapping[int, str],
    records: Iterable[tuple[int, bytes]],
    *,
    losses: Sequence[Loss] = (),
    forwarder: str = "00" * 8,
    sequence: int = 1,
    comms: Mapping[int, str] = {7: "main"},
) -> Batch:
    """A batch of records with event and payload, by declarations in user_events."""
    events = {}
    names = {}
    for id_, command in commands.items():
        declaration = parse(command.encode())
        names[id_] = f"user_events:{declaration.name.decode()}"
        events[id_] = ("user_events", format_text(declaration.name, id_, declaration.fields))
    body = b""
    counts: Counter[str] = Counter()
    for n, (id_, payload) in enumerate(records):
        entry = struct.pack("<HHi", id_, 0, 7) + payload
        size = (24 + len(entry) + 7) & ~7
        body += struct.pack("<IHHQiI", size, 0, 1, 1000 + n, 77, len(entry)) + entry
        body += bytes(size - 24 - len(entry))
        counts[names[id_]] += 1
    clock = ClockPair(10, 10**18 + 10, 3)
    return Batch(
        forwarder, sequence, "here", "boot", clock, events, comms, counts, losses, 1000, 2000, False, body
    )


def packed(command: str, *values: object) -> bytes:
    """A record's payload."""
    return Layout(parse(command.encode()).fields).pack(*values)


class Store:
    """A target that keeps everything. before: called with the batches, may raise."""

    limits = LIMITS

    def __init__(self, before: Callable[[Sequence[Batch]], Sent | None] = lambda _: None) -> None:
        self.before = before
        self.batches: dict[tuple[str, int], Batch] = {}
        self.repeated = 0
        self.refused: Counter[str] = Counter()
        self.has_some = threading.Event()
        self.is_closed = False

    def send(self, batches: Sequence[Batch]) -> Sent:
        refused = self.before(batches) or {}
        for one in batches:
            self.repeated += (one.forwarder, one.sequence) in self.batches
            self.batches[one.forwarder, one.sequence] = one
        self.refused.update(refused)
        self.has_some.set()
        return refused

    def close(self) -> None:
        self.is_closed = True

    @property
    def arrived(self) -> Counter[str]:
        """Records by event."""
        found: Counter[str] = Counter()
        for one in self.batches.values():
            found.update(one.counts)
        return found - self.refused

    @property
    def lost(self) -> Counter[tuple[str, str]]:
        """Known losses by event and cause."""
        found: Counter[tuple[str, str]] = Counter()
        for one in self.batches.values():
            for loss in one.losses:
                found[loss.event, loss.cause] += loss.count or 0
        return found

    @property
    def sum(self) -> int:
        """Records that arrived and records known to be lost."""
        return self.arrived.total() + self.lost.total()
