"""One byte per event."""

from utracefs_protocol.pages.status_page import StatusBit


def test_words_of_user_events_status() -> None:
    assert StatusBit(0).names() == []
    assert StatusBit(0x83).names() == ["ftrace", "perf", "other"]
    assert [int(bit) for bit in StatusBit] == [1, 2, 0x80]
