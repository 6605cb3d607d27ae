"""A perf.data, written from perf's description of the format."""

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.client.recordings.events import Events
from utracefs_protocol.pages.subbuf import HEADER_EVENT_TEXT, header_page_text

SAMPLE_TYPE = 0x10587  # IDENTIFIER, IP, TID, TIME, CPU, PERIOD, RAW


def trailer(pid: int, tid: int, time: int, cpu: int = 0) -> bytes:
    return struct.pack("<iiQIIQ", pid, tid, time, cpu, 0, 1)


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


def comm(pid: int, tid: int, name: bytes, time: int = 0) -> bytes:
    padded = name + bytes(8 - len(name) % 8)
    return record(3, struct.pack("<ii", pid, tid) + padded + trailer(pid, tid, time))


def lost(number: int, time: int) -> bytes:
    return record(2, struct.pack("<QQ", 1, number) + trailer(0, 0, time))


def sample(time: int, cpu: int, pid: int, tid: int, entry: bytes) -> bytes:
    raw = entry + bytes(-(len(entry) + 4) % 8)
    body = struct.pack("<QQiiQIIQI", 1, 0, pid, tid, time, cpu, 0, 1, len(raw)) + raw
    return record(9, body)


def write(
    path: Path,
    events: Events,
    records: Sequence[bytes],
    cmdlines: bytes = b"",
    features: Sequence[tuple[int, bytes]] = (),
) -> Path:
    """features: bit and body, besides TRACING_DATA, in the order of bits."""
    formats = events.formats()
    page, event = header_page_text(), HEADER_EVENT_TEXT
    tracing = b"\x17\x08\x44tracing0.6\0\0\x08" + struct.pack("<I", 4096)
    tracing += b"header_page\0" + struct.pack("<Q", len(page)) + page
    tracing += b"header_event\0" + struct.pack("<Q", len(event)) + event
    tracing += struct.pack("<II", 0, 1) + b"user_events\0" + struct.pack("<I", len(formats))
    tracing += b"".join(struct.pack("<Q", len(text)) + text for text in formats)
    tracing += struct.pack("<IIQ", 0, 0, len(cmdlines)) + cmdlines
    ids_at = 104
    attrs_at = ids_at + 8 * len(events.declared)
    data = b"".join(records)
    data_at = attrs_at + 128 * len(events.declared)
    body = b"".join(struct.pack("<Q", n + 1) for n in range(len(events.declared)))
    for n, number in enumerate(events.declared):
        head = struct.pack("<IIQQQQQ", 2, 112, number, 1, SAMPLE_TYPE, 4, 0x2040020)
        attr = head.ljust(92, b"\0") + struct.pack("<i", 1)
        body += attr.ljust(112, b"\0") + struct.pack("<QQ", ids_at + 8 * n, 8)
    features_at = data_at + len(data)
    body += data
    bodies = [tracing, *(text for _, text in features)]
    at = features_at + 16 * len(bodies)
    for text in bodies:
        body += struct.pack("<QQ", at, len(text))
        at += len(text)
    body += b"".join(bodies)
    bits = 2 | sum(1 << bit for bit, _ in features)
    sizes = (104, 128, attrs_at, 128 * len(events.declared), data_at, len(data), 0, 0)
    path.write_bytes(struct.pack("<8s8Q", b"PERFILE2", *sizes) + bits.to_bytes(32, "little") + body)
    return path
