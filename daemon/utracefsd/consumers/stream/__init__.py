"""Streams: records of many events as they come, in a ring that a reader maps; status bit 7.

streams    opening a stream: the events that it takes, now and later; its limits
_sink      the record path (compiled): into the ring, or counted as lost
"""
