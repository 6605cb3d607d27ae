"""The records of a perf ring one by one, in plain Python."""

import struct
from collections.abc import Iterator

import attrs

from utracefs_protocol.pages.perf_ring import DEFAULT_SAMPLE_TYPE, PerfRingReader, Sample, SampleType


@attrs.frozen
class Lost:
    id: int
    count: int


def perf_records(reader: PerfRingReader, wanted: int = DEFAULT_SAMPLE_TYPE) -> Iterator[Sample | Lost]:
    for data in reader.take():
        at = 0
        while at < len(data):
            kind, _, size = struct.unpack_from("<IHH", data, at)
            body = bytes(data[at + 8 : at + size])
            assert size % 8 == 0 and len(body) == size - 8
            at += size
            if kind == 2:
                yield Lost(*struct.unpack_from("<QQ", body))
            elif kind == 9:
                yield _sample(body, wanted)


def _sample(body: bytes, wanted: int) -> Sample:
    """In the order of perf_output_sample()."""
    parts = {
        SampleType.IDENTIFIER: "Q",
        SampleType.IP: "Q",
        SampleType.TID: "ii",
        SampleType.TIME: "Q",
        SampleType.CPU: "Q",
        SampleType.PERIOD: "Q",
        SampleType.RAW: "I",
    }
    layout = struct.Struct(
        "<" + "".join(kind if wanted & part else "0s" * len(kind) for part, kind in parts.items())
    )
    id, ip, pid, tid, time, cpu, period, size = (value or 0 for value in layout.unpack_from(body))
    assert layout.size + size <= len(body)
    return Sample(id, ip, pid, tid, time, cpu, period, body[layout.size : layout.size + size])
