"""One byte per event."""

import errno
import mmap

import pytest

from utracefs_protocol.errors import TraceError
from utracefs_protocol.status_page import StatusBit, StatusPage, check_size, size_for, usable_events


def test_sizes() -> None:
    assert usable_events(4096) == 4095
    assert [size_for(n) for n in (0, 1, 4095, 4096, 32767, 32768)] == [4096, 4096, 4096, 8192, 32768, 36864]
    for size in (4096, 36864):
        check_size(size)


@pytest.mark.parametrize("size", [-4096, 0, 1, 4095, 4097])
def test_sizes_of_no_status_page(size: int) -> None:
    with pytest.raises(TraceError) as caught:
        check_size(size)
    assert caught.value.errno == errno.EINVAL


def test_what_is_written_is_seen() -> None:
    with mmap.mmap(-1, 8192) as mapping:
        page = StatusPage(mapping)
        assert page.size == 8192
        assert not page.is_enabled(1)
        mapping[1] = 0x81
        mapping[8191] = 2
        assert page[1] == StatusBit.FTRACE | StatusBit.OTHER
        assert page[8191] is StatusBit.PERF
        assert page.is_enabled(8191)
        for index in (-1, 0, 8192):
            with pytest.raises(IndexError, match="this page has 1 to 8191"):
                page[index]


def test_not_a_page() -> None:
    with pytest.raises(TraceError):
        StatusPage(bytes(100))


def test_words_of_user_events_status() -> None:
    assert StatusBit(0).names() == []
    assert StatusBit(0x83).names() == ["ftrace", "perf", "other"]
    assert [int(bit) for bit in StatusBit] == [1, 2, 0x80]
