"""Parsers of writes to control files: the kernel's shared parsers, with their errno.

    unsigned_decimal   enable, options/*, tracing_on, sizes     kstrtoul_from_user(.., 10, ..)
    flag               the same, and only 0 or 1
    word               trace_clock, trace_options               a 64-byte copy, white space stripped
    command_line       filter, trigger                          at most 4095 bytes, trimmed at the end
    cpumask            tracing_cpumask                          bitmap_parse of lib/bitmap-str.c
    pids               set_event_pid                            trace_pid_write of kernel/trace/trace.c

One write is one command: pass all bytes of one write(2).
"""

import errno

from utracefs_protocol.errors import TraceError
from utracefs_protocol.text import any_base, shown, unsigned_of

_NUMBER_COPY = 66
"""The kernel copies this many bytes of a number (sign, 64 binary digits, newline) and ignores the rest."""

_WORD_COPY = 64
"""The kernel's buffer for a word, its NUL included: 64 bytes and more are EINVAL."""

_LINE_MAX = 4096
"""PAGE_SIZE: a command line of so many bytes and more is EINVAL."""

_PID_LIMIT = 1 << 30
"""MAX_PID of kernel/trace/pid_list.h: EPERM from there on."""

_PID_TEXT = 126
"""Characters of one number in a list of pids: PID_BUF_SIZE less its NUL."""


def unsigned_decimal(data: bytes) -> int:
    """See `unsigned_of`; everything from a NUL byte on is ignored."""
    return unsigned_of(data[:_NUMBER_COPY].split(b"\0", 1)[0], 10)


def flag(data: bytes) -> bool:
    """0 or 1, in the format of unsigned_decimal. EINVAL for other numbers, and as there."""
    value = unsigned_decimal(data)
    if value > 1:
        raise TraceError(errno.EINVAL, f"{value} is neither 0 nor 1")
    return bool(value)


def word(data: bytes) -> bytes:
    """White space around it stripped; the caller checks the word. EINVAL from 64 bytes on."""
    if len(data) >= _WORD_COPY:
        raise TraceError(errno.EINVAL, f"{shown(data)} is too long for a name")
    return data.split(b"\0", 1)[0].strip()


def command_line(data: bytes) -> bytes:
    """Trimmed at the end; at the beginning blanks are part of it. EINVAL from 4096 bytes on."""
    if len(data) >= _LINE_MAX:
        raise TraceError(
            errno.EINVAL, f"{len(data)} bytes are too long for a command: at most {_LINE_MAX - 1}"
        )
    return data.split(b"\0", 1)[0].rstrip()


def cpumask(data: bytes, nr_cpus: int) -> int:
    """A hexadecimal mask, groups of up to 8 digits separated by commas (or white space), up to the first
    newline or NUL. EINVAL for anything else; EOVERFLOW for bits at nr_cpus and above."""
    mask = 0
    if not data:
        raise TraceError(errno.EINVAL, "an empty write is not a mask")
    groups = data.split(b"\0", 1)[0].split(b"\n", 1)[0].replace(b",", b" ").split()
    if len(groups) > (nr_cpus + 31) // 32:
        raise TraceError(errno.EOVERFLOW, f"{shown(data)} has more groups than {nr_cpus} cpus need")
    for group in groups:
        if group.lower().strip(b"0123456789abcdef"):
            raise TraceError(errno.EINVAL, f"{shown(data)} is not a hexadecimal mask")
        if len(group) > 8:
            raise TraceError(
                errno.EOVERFLOW, f"{shown(data)}: a group has at most 8 digits; separate by commas"
            )
        mask = mask << 32 | int(group, 16)
    if mask >> nr_cpus:
        raise TraceError(errno.EOVERFLOW, f"{shown(data)} names cpus beyond the {nr_cpus} there are")
    return mask


def cpumask_text(mask: int, nr_cpus: int) -> bytes:
    """As `%*pb` prints it: as many digits as nr_cpus bits need, a comma every 8 digits."""
    groups = []
    for first in range(0, nr_cpus, 32):
        digits = (min(32, nr_cpus - first) + 3) // 4
        groups.append(b"%0*x" % (digits, mask >> first & 0xFFFF_FFFF))
    return b",".join(reversed(groups))


def pids(data: bytes) -> list[int]:
    """Thread ids separated by white space: decimal, or as in C with 0x or 0 in front. EINVAL. As in the
    kernel the low 32 bits count, and are EPERM where no thread can have such a number."""
    found = []
    for text in data.replace(b"\0", b" ").split():
        value = any_base(text) if len(text) <= _PID_TEXT else None
        if value is None:
            raise TraceError(errno.EINVAL, f"{shown(text)} is not a thread id: write decimal numbers")
        value &= 0xFFFF_FFFF
        if value >= _PID_LIMIT:
            raise TraceError(errno.EPERM, f"{shown(text)} is larger than any thread id")
        found.append(value)
    return found
