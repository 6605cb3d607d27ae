"""Records of a running daemon, live.

stream        `attach`, and the stream that it returns
waiting       waiting with or without an event loop
_records      records of the ring (compiled)
_columns      records as columns (compiled)
replay        recordings, for readers that look for a daemon
_ring_writer  their records in a ring (compiled)
"""

from utracefs.streaming.stream import Batch, Stream, attach

__all__ = ["Batch", "Stream", "attach"]
