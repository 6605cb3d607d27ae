"""The sizes that the descriptions of the structures give."""

import utracefs.recordings.perf_data.format as layout


def test_sizes() -> None:
    assert layout.HEADER_SIZE == 104
    assert layout.FEATURES_AT == 72
    assert layout.ATTR_SIZE == 112
    assert layout.LOST_RECORD.size == 56
    assert layout.COMM_TRAILER.size == 32
    assert len(layout.TRACING_DATA_BEGIN) == 3 + 7 + 4 + 1 + 1
