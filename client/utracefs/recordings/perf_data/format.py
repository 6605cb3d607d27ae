"""The layout of a perf.data, shared by writer and reader.

    +----------+---------+----------------+--------------------+------------------+-----------+
    | HEADER   | records | FEATURE_EXTENT | bodies of the      | ATTR per event,  | u64 id of |
    | 104 bytes|         | per feature    | features           | ID_EXTENT        | each      |
    +----------+---------+----------------+--------------------+------------------+-----------+

perf itself puts attributes in front of the records; a reader finds both through the header. Here events may
appear while records are written. The extents of the features must follow the records directly.

Records are those of a perf ring (utracefs_protocol.pages.perf_ring) with sample_type
DEFAULT_SAMPLE_TYPE, and COMM.
All numbers are little-endian.

Sources: include/uapi/linux/perf_event.h; tools/perf/Documentation/perf.data-file-format.txt.
"""

import re
import struct
from typing import Final

from utracefs.recordings.trace_dat import format as trace_dat

MAGIC: Final = b"PERFILE2"

HEADER: Final = struct.Struct("<8s8Q")
"""Magic, size of the header, of an ATTR with its EXTENT; offset and size of the attributes, of the records,
of `event types` (unused). Behind it the features: 256 bits."""
FEATURES_AT: Final = HEADER.size
HEADER_SIZE: Final = HEADER.size + 32
PIPE_HEADER_SIZE: Final = 16
"""Magic and size of the header; a file from a pipe has only these."""

EXTENT: Final = struct.Struct("<QQ")
"""Offset in the file, bytes."""
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")

ATTR_HEAD: Final = struct.Struct("<IIQQQQQ")
"""Members of every struct perf_event_attr: type, size, config, sample_period or sample_freq, sample_type,
read_format, flags."""
ATTR_SIZE_LEAST: Final = 64
"""PERF_ATTR_SIZE_VER0."""
CLOCKID: Final = struct.Struct("<i")
CLOCKID_AT: Final = 92
"""Its offset in an attr that is long enough."""
ATTR: Final = struct.Struct("<IIQQQQQ44xi16x")
"""Size with clockid, which is written here."""
ATTR_SIZE: Final = ATTR.size
TYPE_TRACEPOINT: Final = 2
READ_FORMAT_ID: Final = 4
FLAG_FREQ: Final = 1 << 10
FLAG_SAMPLE_ID_ALL: Final = 1 << 18
FLAG_USE_CLOCKID: Final = 1 << 25
FLAGS: Final = 1 << 5 | FLAG_SAMPLE_ID_ALL | FLAG_USE_CLOCKID
"""exclude_kernel (or perf warns of kernel symbols), and these two."""
CLOCK_MONOTONIC: Final = 1

RECORD_HEADER: Final = struct.Struct("<IHH")
"""Type, misc, bytes of all of it: a multiple of 8."""
PERF_RECORD_COMM: Final = 3
COMM_HEAD: Final = struct.Struct("<II")
"""Process, thread; then the name with a NUL and up to a multiple of 8, and COMM_TRAILER."""
COMM_TRAILER: Final = struct.Struct("<IIQIIQ")
"""struct sample_id: process, thread, time, cpu, 0, identifier."""
COMM_LENGTH: Final = 15
"""Bytes of a name; TASK_COMM_LEN less its NUL."""
LOST_RECORD: Final = struct.Struct("<IHHQQIIQIIQ")
"""Header, identifier, number, struct sample_id."""
LOST_COUNT_AT: Final = RECORD_HEADER.size + U64.size

CLOCK_DATA: Final = struct.Struct("<IIQQ")
"""Version 1, clock id, wall clock and that clock at one moment, in nanoseconds."""

TRACING_MAGIC: Final = trace_dat.MAGIC
TRACING_DATA_BEGIN: Final = TRACING_MAGIC + b"0.6\0\0\x08"
"""As in a trace.dat: magic, version, byte order, bytes of a long."""


class Feature:
    """HEADER_*: bits of the features. Their bodies have this order."""

    TRACING_DATA: Final = 1
    HOSTNAME: Final = 3
    OSRELEASE: Final = 4
    VERSION: Final = 5
    ARCH: Final = 6
    NRCPUS: Final = 7
    CPUDESC: Final = 8
    CPUID: Final = 9
    CMDLINE: Final = 11
    EVENT_DESC: Final = 12
    SAMPLE_TIME: Final = 21
    CLOCKID: Final = 23
    CLOCK_DATA: Final = 29
    ORIGIN: Final = 255
    """The lines of an Origin. perf skips unknown features."""


def readable_name(name: bytes) -> bytes:
    """An event's name in its format: for other characters perf would refuse the whole file. It shows the name
    of EVENT_DESC."""
    return re.sub(rb"\W", b"_", name)
