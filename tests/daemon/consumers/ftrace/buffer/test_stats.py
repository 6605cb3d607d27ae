"""The file `stats`."""

import attrs

from utracefsd.consumers.ftrace.buffer.stats import BufferStats, stats_text, timestamp_text

STATS = BufferStats(158, 442, 0, 10208, 1393339859123, 3, 5)


def test_stats() -> None:
    assert stats_text(STATS, 1393341377999, clock_is_ns=True) == (
        b"entries: 158\noverrun: 442\ncommit overrun: 0\nbytes: 10208\n"
        b"oldest event ts:  1393.339859\nnow ts:  1393.341377\ndropped events: 3\nread events: 5\n"
    )
    assert b"\noldest event ts: 3\nnow ts: 77\n" in stats_text(
        attrs.evolve(STATS, oldest_ts=3), 77, clock_is_ns=False
    )
    assert timestamp_text(0, clock_is_ns=True) == b"    0.000000"
    late = attrs.evolve(STATS, late_events=2, late_by=1_500_000)
    assert stats_text(late, 7, clock_is_ns=True).endswith(
        b"read events: 5\nlate events: 2\nlate by at most:     0.001500\n"
    )
