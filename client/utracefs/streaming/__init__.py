"""Records of a running daemon, live.

stream     `attach`, and the stream that it returns
waiting    waiting with or without an event loop
_records   records of the ring (compiled)
_columns   records as columns (compiled)
"""

from utracefs.streaming.stream import Batch, Stream, attach

__all__ = ["Batch", "Stream", "attach"]
