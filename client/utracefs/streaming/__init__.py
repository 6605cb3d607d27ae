"""Records of a running daemon as they come.

stream     `attach`, and what it gives
waiting    in whatever way the caller waits
_records   of the ring that the daemon fills (compiled)
_columns   records as columns (compiled)
"""

from utracefs.streaming.stream import Batch, Stream, attach

__all__ = ["Batch", "Stream", "attach"]
