"""`per_cpu/cpuN/stats`: the numbers of one cpu of a ring buffer, and their text."""

import attrs


@attrs.frozen
class BufferStats:
    """The numbers of `per_cpu/cpuN/stats`, tracing_stats_read() in kernel/trace/trace.c."""

    entries: int
    """Records not yet read."""
    overrun: int
    """Records overwritten before they were read, since the last clear."""
    commit_overrun: int
    """Always 0: nothing interrupts the writer."""
    bytes: int
    """Bytes of the unread records, with headers, time extends and page-end padding."""
    oldest_ts: int
    """Time stamp of the oldest page in trace-clock units; 0 if never used."""
    dropped_events: int
    """Records refused because the ring was full and overwrite off."""
    read_events: int
    """Records taken by consuming readers."""
    late_events: int = 0
    """Records older than the last one of their cpu, whose time they got; since the last clear."""
    late_by: int = 0
    """The largest change of a late record's time, in trace-clock units."""


def timestamp_text(ts: int, *, clock_is_ns: bool) -> bytes:
    """A time stamp as `stats` shows it: seconds and truncated microseconds, or the bare count of the
    clock."""
    if not clock_is_ns:
        return b"%d" % ts
    seconds, rest_us = divmod(ts // 1000, 1_000_000)
    return b"%5d.%06d" % (seconds, rest_us)


def stats_text(stats: BufferStats, now_ts: int, *, clock_is_ns: bool) -> bytes:
    """`per_cpu/cpuN/stats`; now_ts is the time in the instance's own clock.

    Its last two lines, which the kernel does not have, appear only when a record was late.
    """
    late = b""
    if stats.late_events:
        most = timestamp_text(stats.late_by, clock_is_ns=clock_is_ns)
        late = b"late events: %d\nlate by at most: %s\n" % (stats.late_events, most)
    return (
        b"entries: %d\noverrun: %d\ncommit overrun: %d\nbytes: %d\n"
        b"oldest event ts: %s\nnow ts: %s\ndropped events: %d\nread events: %d\n"
    ) % (
        stats.entries,
        stats.overrun,
        stats.commit_overrun,
        stats.bytes,
        timestamp_text(stats.oldest_ts, clock_is_ns=clock_is_ns),
        timestamp_text(now_ts, clock_is_ns=clock_is_ns),
        stats.dropped_events,
        stats.read_events,
    ) + late
